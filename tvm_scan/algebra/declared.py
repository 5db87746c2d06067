"""An operator that its author declares to be associative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.base import Algebra, Element, NotInFamily, System
from tvm_scan.algebra.literal import zero
from tvm_scan.text import as_text


@dataclass(frozen=True, eq=False)
class Declared(Algebra):
    """``h' = combine(h, x)`` with a ``combine`` that was declared associative.

    Not a theorem but a promise of the author, of which ``associative_scan`` tries samples:
    ``combine(combine(h, x1), x2) = combine(h, combine(x1, x2))``. The operator needs no identity:
    an element over no steps is flagged as such.
    """

    name: ClassVar[str] = "declared associative"
    single: ClassVar[bool] = False
    steps: tuple[Any, ...]
    olds: tuple[Var, ...]
    inputs: tuple[Any, ...]
    carried: tuple[str, ...]

    @classmethod
    def prove(cls, system: System) -> Declared | NotInFamily:
        """Find the one load of every declared input."""
        if len(system.declared) != len(system.olds):
            return NotInFamily(system.steps[0], "")
        inputs = []
        for name in system.declared:
            loads = [l for s in system.steps for l in tir.loads(s) if str(l.source.name) == name]
            if not loads or any(not tir.structurally_equal(l, loads[0]) for l in loads):
                return NotInFamily(system.steps[0], f"an operator that does not read {name} once")
            inputs.append(loads[0])
        nothing = [tirx.const(0, tir.dtype_of(load)) for load in inputs]
        algebra = cls(system.steps, system.olds, tuple(inputs), system.dtypes)
        bare = algebra._operator(system.olds, tuple(nothing))
        known = tir.VarMap((old, True) for old in system.olds)
        if any(var not in known for value in bare for var in tir.variables(value).keys()):
            # A test on time, say: the operator must be one and the same at every step.
            return NotInFamily(system.steps[0], "")
        return algebra

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of the flag that there is an operand, and of the operand's parts."""
        return ("int32", *self.carried)

    def _operator(self, left: Element, right: Element) -> Element:
        def value(load: Any) -> Any:
            for variable, part in zip(self.inputs, right, strict=True):
                if tir.structurally_equal(load, variable):
                    return part
            return load

        table = tir.VarMap(zip(self.olds, left, strict=True))
        return tuple(tir.substitute(tir.map_loads(s, value), table) for s in self.steps)

    def lift(self) -> Element:
        """``(1, x)``."""
        casts = zip(self.inputs, self.carried, strict=True)
        return (
            tirx.const(1, "int32"),
            *(x if tir.dtype_of(x) == dtype else tirx.Cast(dtype, x) for x, dtype in casts),
        )

    def combine(self, earlier: Element, later: Element) -> Element:
        """``combine(x1, x2)``, or the one of the two that there is."""
        both = self._operator(earlier[1:], later[1:])
        parts = (
            tirx.Select(tirx.EQ(later[0], 0), e, tirx.Select(tirx.EQ(earlier[0], 0), l, b))
            for e, l, b in zip(earlier[1:], later[1:], both, strict=True)
        )
        return (tirx.bitwise_or(earlier[0], later[0]), *parts)

    def identity(self) -> Element:
        """Nothing."""
        return (tirx.const(0, "int32"), *(zero(dtype) for dtype in self.carried))

    def apply(self, element: Element, carries: Element) -> Element:
        """``combine(h, x)``, or ``h`` where there is nothing."""
        values = self._operator(carries, element[1:])
        return tuple(
            tirx.Select(tirx.EQ(element[0], 0), h, v) for h, v in zip(carries, values, strict=True)
        )

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        return {
            "step": "h' = combine(h, x), declared associative",
            "element": "(anything?, x)",
            "combine": "x1 then x2 = combine(x1, x2)",
            "identity": "nothing",
            "apply": "combine(h, x)",
            "combine(h, x)": ", ".join(as_text(step) for step in self.steps),
        }
