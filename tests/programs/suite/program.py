"""A program of the suite, and the buffers that most of them have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm.script import tirx as T

from tvm_scan import tir

#: Lanes and steps of most programs: odd, so that no chunk divides the steps.
B, L = 3, 29

Range = tuple[int, int] | tuple[float, float]


def buffer(dtype: str = "float32", *shape: int) -> Callable[[], Any]:
    """Return an annotation of a parameter: one row of steps per lane if no shape is given."""
    return lambda: T.Buffer(shape or (B, L), dtype)


F32, I32, U32, I8, BOOL = map(buffer, ("float32", "int32", "uint32", "int8", "bool"))
#: One value per lane, and a history with one step more than the inputs.
LANE, LANE_I32 = buffer("float32", B), buffer("int32", B)
LONGER, LONGER_I32 = buffer("float32", B, L + 1), buffer("int32", B, L + 1)


@dataclass(frozen=True)
class Program:
    """A loop that must be taken.

    Attributes
    ----------
    func : PrimFunc
        The sequential loop.
    families : str
        Families of its levels in order, separated by ``", "``.
    inputs : mapping
        Ranges of the inputs by name: of integers, upper end excluded, or of a uniform
        distribution where the ends are floats. -1, 0 and 1 where nothing is said, with which
        sums and products of floats are exact.
    rounds : bool
        Whether another order of the arithmetic may round differently.
    growth : float
        How much larger than the values the elements of many steps are (a double integrator's
        grow like their number), by which their rounding errors are larger too.
    """

    func: Any
    families: str
    inputs: Mapping[str, Range] = field(default_factory=dict)
    rounds: bool = False
    growth: float = 1.0

    @property
    def name(self) -> str:
        return str(self.func.attrs["global_symbol"])


@dataclass(frozen=True)
class Refused:
    """A loop that must be refused.

    Attributes
    ----------
    func : PrimFunc
        The sequential loop.
    kind : str
        Kind of the refusal, as printed.
    why : str
        What is wrong with it, in the words of the field.
    """

    func: Any
    kind: str
    why: str

    @property
    def name(self) -> str:
        return str(self.func.attrs["global_symbol"])


def arguments(
    func: Any, ranges: Mapping[str, Range] | None = None, seed: int = 0
) -> list[np.ndarray]:
    """Return an array for every parameter."""
    rng = np.random.default_rng(seed)
    out = []
    for param in func.params:
        low, high = (ranges or {}).get(str(param.name), (-1, 2))
        shape = [tir.as_int(extent) for extent in tir.shape_of(param)]
        dtype = tir.dtype_of(param)
        if isinstance(low, float):
            out.append(rng.uniform(low, high, shape).astype(dtype))
        else:
            low = max(low, 0) if dtype.startswith(("uint", "bool")) else low
            out.append(rng.integers(low, high, shape).astype(dtype))
    return out
