"""The layout of each written buffer of a nest: what is fixed, what moves, what varies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction.nest import Nest, linear_in
from tvm_scan.extraction.statements import Loop, lets_in


@dataclass(eq=False)
class Box:
    """Layout of one written buffer: what is fixed, what moves with time, what varies."""

    buffer: Var
    base: list[Any]
    time_dim: int | None
    time_step: int
    lower: list[int]
    upper: list[int]
    lags: int = 0

    @property
    def extents(self) -> list[int]:
        """Extents of the register array."""
        return [high - low + 1 for low, high in zip(self.lower, self.upper, strict=True)]


class Layouts:
    """The boxes of a nest, with the questions that later phases ask of them."""

    def __init__(self, nest: Nest, external: tir.VarMap) -> None:
        self.nest = nest
        self.external = external
        self.boxes: tir.VarMap = tir.VarMap()
        self.registers: tir.VarMap = tir.VarMap()
        self._ranges = [(l.var, l.extent) for l in nest.lanes]
        self.bound = tir.VarMap(
            (let.var, True) for let in lets_in([*nest.before, nest.time, *nest.after])
        )

    def __contains__(self, buffer: Var) -> bool:
        return buffer in self.boxes

    def steps_back(self, buffer: Var, index: Any, step: Any) -> int | None:
        """Number of steps from the time index to ``step``; None where that is not constant."""
        box: Box = self.boxes[buffer]
        assert box.time_dim is not None, "a buffer without time has no steps"
        distance = tir.as_int(tir.simplify(box.base[box.time_dim] + step * box.time_step - index))
        if distance is None or distance % box.time_step:
            return None
        return distance // box.time_step

    def split(self, buffer: Var, indices: list[Any], inner: list[Loop]) -> Split | None:
        """Offsets of an access relative to the box; None where they cannot be computed."""
        box: Box = self.boxes[buffer]
        zero = tir.VarMap((loop.var, tir.zero_like(loop.var)) for loop in inner)
        local: list[Any] = []
        lag = 0
        for dim, index in enumerate(indices):
            if tir.loads(index) or tir.contains_var(index, self.bound.keys()):
                return None  # an index that depends on data
            part = linear_in(index, self.nest.time.var)
            if part is None or part[0] != (box.time_step if dim == box.time_dim else 0):
                return None
            fixed = tir.substitute(part[1], zero)
            distance = tir.as_int(tir.simplify(fixed - box.base[dim]))
            if distance is None:
                return None
            varying = tir.simplify(part[1] - fixed, self._ranges)
            if dim == box.time_dim:
                if tir.as_int(varying) != 0 or distance % box.time_step:
                    return None
                lag = -distance // box.time_step
                local.append(tirx.IntImm(tir.dtype_of(index), 0))
                continue
            allowed = tir.VarMap((loop.var, True) for loop in inner)
            if any(var not in allowed for var in tir.variables(varying).keys()):
                return None
            local.append(tir.simplify(varying + distance))
        return Split(lag, local)


@dataclass(eq=False)
class Split:
    """An access relative to the box: how many steps back, and where in it."""

    lag: int
    offsets: list[Any]
