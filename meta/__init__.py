"""The search for plans, and the records that it makes.

Rooms, in reading order: ``space`` (what may be decided, as MetaSchedule's rule, postproc and
mutator), ``measure`` (a candidate built, compared with its loop and timed, in other processes),
``search`` (``tune``: what to try next), ``store`` (records, and how they are found again).
``records`` is data: what was measured on the machines of its folders.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_scan.meta.measure.rpc import rpc_runner
    from tvm_scan.meta.measure.workers import local_builder
    from tvm_scan.meta.search.checked import CheckedTuning
    from tvm_scan.meta.search.result import TuningResult
    from tvm_scan.meta.search.tune import tune
    from tvm_scan.meta.space.rule import register_hooks, scan_space
    from tvm_scan.meta.store.database import RecordStore
    from tvm_scan.meta.store.dispatch import plans_by_length
    from tvm_scan.meta.store.nearest import plan_for
    from tvm_scan.meta.store.replay import replay

__all__ = [
    "CheckedTuning",
    "RecordStore",
    "TuningResult",
    "local_builder",
    "plan_for",
    "plans_by_length",
    "register_hooks",
    "replay",
    "rpc_runner",
    "scan_space",
    "tune",
]

_HOMES = {
    "CheckedTuning": "search.checked",
    "RecordStore": "store.database",
    "TuningResult": "search.result",
    "local_builder": "measure.workers",
    "plan_for": "store.nearest",
    "plans_by_length": "store.dispatch",
    "register_hooks": "space.rule",
    "replay": "store.replay",
    "rpc_runner": "measure.rpc",
    "scan_space": "space.rule",
    "tune": "search.tune",
}


def __getattr__(name: str) -> Any:
    # Lazily: importing tvm_scan.meta.store.replay, as every Relax pipeline does, loads no search.
    if name in _HOMES:
        return getattr(import_module(f"tvm_scan.meta.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
