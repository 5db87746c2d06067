"""The search for plans, and the records that it makes.

Reading order: ``decisions`` (what may be decided), ``space`` (the rule that samples it), ``expand``
(the postproc), ``mutator`` (moves), ``costs`` and ``features`` (what ``cost_model`` sees),
``candidates`` (where they come from), ``check`` (against the loop), ``workers`` and ``scratch``
(what runs in other processes, and what it leaves), ``search``, ``loop`` and ``finals`` (``tune``),
``checked`` (the same check in TVM's own search), ``database``, ``entry``, ``files`` and ``lines``
(the records), ``replay``, ``nearest`` and ``dispatch`` (their use).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_scan.meta.checked import CheckedTuning
    from tvm_scan.meta.database import RecordStore
    from tvm_scan.meta.nearest import plan_for
    from tvm_scan.meta.result import TuningResult
    from tvm_scan.meta.search import tune
    from tvm_scan.meta.space import register_hooks, scan_space
    from tvm_scan.meta.workers import local_builder

__all__ = [
    "CheckedTuning",
    "RecordStore",
    "TuningResult",
    "local_builder",
    "plan_for",
    "register_hooks",
    "scan_space",
    "tune",
]

_HOMES = {
    "CheckedTuning": "checked",
    "RecordStore": "database",
    "TuningResult": "result",
    "local_builder": "workers",
    "plan_for": "nearest",
    "register_hooks": "space",
    "scan_space": "space",
    "tune": "search",
}


def __getattr__(name: str) -> Any:
    # Lazily: importing tvm_scan.meta.replay, as every Relax pipeline does, loads no search.
    if name in _HOMES:
        return getattr(import_module(f"tvm_scan.meta.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
