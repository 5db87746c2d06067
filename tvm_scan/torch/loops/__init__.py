"""The sequential loops behind the torch functions, adjoints included, as TensorIR.

Imported only when a kernel is built: this is where TVM is needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tvm_scan.library.lfilter import lfilter

from .affine import affine
from .cumulative import cumulative, logcumsumexp
from .extremum import (
    extremum,
    extremum_gradient,
    positions_of_keys,
    positions_packed,
    running_keys,
)
from .outer import outer_products
from .outer_gates import outer_gates
from .selective import selective_forward
from .selective_adjoint import selective_backward_chunk
from .turn import turn

if TYPE_CHECKING:
    from .step import pointwise_step, sliced_step

__all__ = [
    "affine",
    "cumulative",
    "extremum",
    "extremum_gradient",
    "lfilter",
    "logcumsumexp",
    "outer_gates",
    "outer_products",
    "pointwise_step",
    "positions_of_keys",
    "positions_packed",
    "running_keys",
    "selective_backward_chunk",
    "selective_forward",
    "sliced_step",
    "turn",
]


def __getattr__(name: str) -> Any:
    # A user's own step needs TVM's importers and the passes of Relax, which no other loop does.
    if name in ("pointwise_step", "sliced_step"):
        return getattr(import_module(f"{__name__}.step"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
