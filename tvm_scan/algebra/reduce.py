"""Steps ``h -> h op x`` for an associative operator ``op``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx

from tvm_scan.algebra.affine import coefficients
from tvm_scan.algebra.base import Element, Forgetting, NotInFamily, Plain, System
from tvm_scan.algebra.literal import is_constant, is_float, zero, zero_keeping_product
from tvm_scan.algebra.reduce_match import OPERATORS, Choice, match_choice, match_operator
from tvm_scan.text import as_text

#: Flag of a floating-point max or min over no steps at all; 1 means "the carry was forgotten".
#: A step of infinity is no substitute: it turns a NaN carry into infinity.
_EMPTY = 2


@dataclass(frozen=True, eq=False)
class Reduce(Forgetting):
    """``h' = h op x`` with ``op`` one of add, mul, max, min, and, or, xor.

    Theorem. For an associative ``op`` with identity ``e``, ``(h op x1) op x2 = h op (x1 op x2)``.
    Commutativity is not used: the earlier operand stays on the left.

    Floating-point max and min are not associative where NaN occurs, and differ by target and
    by the order of their operands: LLVM's ``max(h, NaN)`` forgets ``h``, CUDA's ignores the NaN.
    Elements of those carry a flag, "the carry was forgotten", which is found by applying the
    target's own operator; with it the law is exact on every target (see ``lift``).
    """

    name: ClassVar[str] = "reduce"
    op: str
    x: Any
    dtype: str
    carry_first: bool = True
    choice: Choice | None = None

    @property
    def flagged(self) -> bool:
        """Return whether elements carry the "forgotten" flag."""
        if self.choice is not None and self.choice.nan_wins:
            return False
        return self.op in ("max", "min") and is_float(self.dtype)

    @classmethod
    def prove(cls, system: System) -> Reduce | NotInFamily:
        """Match the step with one operator of the carry and a value free of it."""
        step, old, dtype = system.only
        parts = None if dtype == "bool" else coefficients(step, old)
        if isinstance(parts, tuple):
            a, b = parts
            if a is None:
                return cls("add", zero(dtype) if b is None else b, dtype)
            if b is None and not is_constant(a, 0):
                return cls("mul", a, dtype)
            return NotInFamily(step, "both a gate and an offset: affine, not a reduction")
        if is_float(dtype) and (chosen := match_choice(step, old)) is not None:
            op, x, choice = chosen
            return cls(op, x, dtype, choice=choice)
        matched = match_operator(step, old)
        if matched is None:
            return NotInFamily(step, "not one associative operator of the carry and an input")
        op, x, carry_first = matched
        return cls(op, x, dtype, carry_first)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The carry's dtype, and int32 for the flag."""
        return (self.dtype, "int32") if self.flagged else (self.dtype,)

    def _op(self, left: Any, right: Any) -> Any:
        if self.choice is not None:
            return self.choice.run(left, right)
        run = OPERATORS[self.op].apply
        return run(left, right) if self.carry_first else run(right, left)

    def lift(self) -> Element:
        """``(x,)``, or ``(id op x, isnan(id op x))`` for floating-point max and min.

        ``id op x`` is NaN exactly where the target's operator forgets its carry on this ``x``,
        and is ``id`` where the operator ignores it.
        """
        if not self.flagged:
            return (self.x,)
        value = self._op(OPERATORS[self.op].identity(self.dtype), self.x)
        return (value, tirx.Cast("int32", tirx.isnan(value)))

    def constant(self, values: Element) -> Element:
        """Element that sets the carry to the value, given that the carry is ``neutral``."""
        return (values[0], tirx.const(1, "int32")) if self.flagged else (values[0],)

    def combine(self, earlier: Element, later: Element) -> Element:
        """``x1 op x2``; a forgotten carry in the later part hides the earlier part."""
        if self.op == "mul" and is_float(self.dtype):
            return (zero_keeping_product(later[0], earlier[0], self.dtype),)
        if not self.flagged:
            return (self._op(earlier[0], later[0]),)
        nothing, before = later[1] >= _EMPTY, earlier[1] >= _EMPTY
        hides = tirx.Or(tirx.EQ(later[1], 1), before)
        value = tirx.Select(hides, later[0], self._op(earlier[0], later[0]))
        flag = tirx.Select(before, later[1], tirx.bitwise_or(earlier[1], later[1]))
        return (
            tirx.Select(nothing, earlier[0], value),
            tirx.Select(nothing, earlier[1], flag),
        )

    def extend(self, earlier: Element, step: Element) -> Element:
        """Combine; a single factor cannot have overflowed."""
        if self.op == "mul":
            return (earlier[0] * step[0],)
        return self.combine(earlier, step)

    def plainly(self) -> Plain | None:
        """``op`` alone, exact where no step forgot the carry and where no product overflowed.

        Flags meet by "or": a flag of 0 in the result means 0 in every step that went into it.
        For products see ``Affine.plainly``.
        """
        identity = OPERATORS[self.op].identity(self.dtype)

        def apply(element: Element, carries: Element) -> Element:
            return (self._op(carries[0], element[0]),)

        if self.flagged:

            def flags(earlier: Element, later: Element) -> Element:
                return (self._op(earlier[0], later[0]), tirx.bitwise_or(earlier[1], later[1]))

            none = (identity, tirx.const(0, "int32"))

            def keeps(element: Element) -> Any:
                return tirx.EQ(element[1], 0)

            return Plain(flags, apply, none, keeps, each=keeps)

        def combine(earlier: Element, later: Element) -> Element:
            return (self._op(earlier[0], later[0]),)

        if self.op != "mul" or not is_float(self.dtype):
            return Plain(combine, apply, (identity,))
        top = tirx.max_value(self.dtype)

        def finite(element: Element) -> Any:
            return tirx.And(element[0] <= top, element[0] >= zero(self.dtype) - top)

        def intact(values: Element) -> Any:
            return tirx.Not(tirx.isnan(values[0]))

        return Plain(combine, apply, (identity,), finite, intact=intact)

    def identity(self) -> Element:
        """Identity of ``op``."""
        value = OPERATORS[self.op].identity(self.dtype)
        return (value, tirx.const(_EMPTY, "int32")) if self.flagged else (value,)

    def apply(self, element: Element, carries: Element) -> Element:
        """``h op x``, or ``x`` where the carry is forgotten."""
        (carry,) = carries
        if self.op == "mul" and is_float(self.dtype):
            return (zero_keeping_product(element[0], carry, self.dtype),)
        if not self.flagged:
            return (self._op(carry, element[0]),)
        value = tirx.Select(tirx.EQ(element[1], 1), element[0], self._op(carry, element[0]))
        return (tirx.Select(element[1] >= _EMPTY, carry, value),)

    def neutral(self) -> Element:
        """Identity of ``op``."""
        return (OPERATORS[self.op].identity(self.dtype),)

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        sign = OPERATORS[self.op].symbol
        infix = not sign.isalpha()

        def of(left: str, right: str) -> str:
            return f"{left} {sign} {right}" if infix else f"{sign}({left}, {right})"

        return {
            "step": f"h' = {of('h', 'x')}",
            "element": "(x, carry forgotten?)" if self.flagged else "x",
            "combine": f"x1 then x2 = {of('x1', 'x2')}",
            "identity": as_text(OPERATORS[self.op].identity(self.dtype)),
            "apply": of("h", "x"),
            "x": as_text(self.x),
        }
