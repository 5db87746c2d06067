"""tvm_scan: sequential TensorIR recurrences become parallel scans.

The public names are imported at first use, so that ``import tvm_scan`` loads neither TVM nor
NumPy, and so that this file is no arrow from the core to the schedules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tvm_scan._folders import find_folders

if TYPE_CHECKING:
    from tvm_scan import library
    from tvm_scan.cuda_math import exact_math
    from tvm_scan.errors import ScanError
    from tvm_scan.extraction import extract
    from tvm_scan.proof import prove
    from tvm_scan.recurrence import Recurrence, Refusal, RefusalKind
    from tvm_scan.schedules import (
        ScanPlan,
        associative_scan,
        default_plan,
        expand_scans,
        parallel_scan,
        parallelize,
        plan_of,
        verify,
    )

find_folders()

__version__ = "0.1.0"

__all__ = [
    "Recurrence",
    "Refusal",
    "RefusalKind",
    "ScanError",
    "ScanPlan",
    "__version__",
    "associative_scan",
    "default_plan",
    "exact_math",
    "expand_scans",
    "extract",
    "library",
    "parallel_scan",
    "parallelize",
    "plan_of",
    "prove",
    "verify",
]

# Public name -> the module that holds it. A module listed as its own home is a subpackage.
# The package behind `extract` is called extraction, because importing a submodule named extract
# would put the module where the function is expected.
_HOMES = {
    "Recurrence": "tvm_scan.recurrence",
    "Refusal": "tvm_scan.recurrence",
    "RefusalKind": "tvm_scan.recurrence",
    "ScanError": "tvm_scan.errors",
    "ScanPlan": "tvm_scan.schedules",
    "associative_scan": "tvm_scan.schedules",
    "default_plan": "tvm_scan.schedules",
    "exact_math": "tvm_scan.cuda_math",
    "expand_scans": "tvm_scan.schedules",
    "extract": "tvm_scan.extraction",
    "library": "tvm_scan.library",
    "parallel_scan": "tvm_scan.schedules",
    "parallelize": "tvm_scan.schedules",
    "plan_of": "tvm_scan.schedules",
    "prove": "tvm_scan.proof",
    "verify": "tvm_scan.schedules",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tvm_scan._guard import ensure_compatible

    ensure_compatible()
    module = import_module(home)
    value = module if home == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
