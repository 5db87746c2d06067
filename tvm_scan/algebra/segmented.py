"""Resets: a step of any family that at some steps starts again from a given value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.base import Algebra, Around, Element, NotInFamily, System, classify
from tvm_scan.algebra.choices import decided, free_conditions, opposite
from tvm_scan.algebra.literal import is_float, zero
from tvm_scan.text import as_text


@dataclass(frozen=True, eq=False)
class Segmented(Around):
    """``h' = if reset: v else step(h)``.

    Theorem. After a reset the carry is known. So an element is either a known carry, or an
    element of the inner family: ``f then g`` is ``g`` where g is known, the known ``g(f)`` where
    f is, and else their inner composition. (G. E. Blelloch, CMU-CS-90-190: segmented scans.)

    A gate of zero would do for finite numbers; but ``0 * inf`` is NaN, and a reset forgets.
    """

    name: ClassVar[str] = "segmented"
    single: ClassVar[bool] = False
    reset: Any
    values: tuple[Any, ...]
    inner: Algebra
    carried: tuple[str, ...]

    @classmethod
    def prove(cls, system: System) -> Segmented | NotInFamily:
        """Find a condition, free of the carries, that frees all steps of them."""
        if not any(is_float(dtype) for dtype in system.dtypes):
            return NotInFamily(system.steps[0], "")  # where 0 * h is 0, a gate of zero will do
        return _prove(system)

    @property
    def count(self) -> int:
        """Number of carries."""
        return len(self.carried)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of the flag that the carries are known, of the carries, and of the inner parts."""
        return ("int32", *self.carried, *self.inner.dtypes)

    def _split(self, element: Element) -> tuple[Any, Element, Element]:
        k = self.count
        return tirx.EQ(element[0], 1), element[1 : 1 + k], element[1 + k :]

    def _zeros(self) -> Element:
        return tuple(zero(dtype) for dtype in self.carried)

    def lift(self) -> Element:
        """``(reset, v, inner element)``."""
        flag = tirx.op.if_then_else(self.reset, tirx.const(1, "int32"), tirx.const(0, "int32"))
        values = tuple(
            tirx.op.if_then_else(self.reset, v, nothing)
            for v, nothing in zip(self.values, self._zeros(), strict=True)
        )
        # Where there is a reset, the inner step may not even be readable.
        inner = tuple(
            tirx.op.if_then_else(self.reset, nothing, part)
            for nothing, part in zip(self.inner.identity(), self.inner.lift(), strict=True)
        )
        return (flag, *values, *inner)

    def combine(self, earlier: Element, later: Element) -> Element:
        """``g`` where known, ``g(f)`` where f is known, else their composition."""
        return self._compose(
            earlier, later, self.inner.combine(earlier[-self._depth :], later[-self._depth :])
        )

    def extend(self, earlier: Element, step: Element) -> Element:
        """Combine, with the inner family's cheaper step."""
        return self._compose(
            earlier, step, self.inner.extend(earlier[-self._depth :], step[-self._depth :])
        )

    @property
    def _depth(self) -> int:
        return len(self.inner.dtypes)

    def _compose(self, earlier: Element, later: Element, inner: Element) -> Element:
        known, values, _ = self._split(later)
        _, before, _ = self._split(earlier)
        applied = self.inner.apply(later[-self._depth :], before)
        flag = tirx.Select(known, later[0], earlier[0])
        moved = tuple(tirx.Select(known, v, m) for v, m in zip(values, applied, strict=True))
        return (flag, *moved, *inner)

    def identity(self) -> Element:
        """Not known, and the inner identity."""
        return (tirx.const(0, "int32"), *self._zeros(), *self.inner.identity())

    def apply(self, element: Element, carries: Element) -> Element:
        """The known carries, or the inner element applied."""
        known, values, inner = self._split(element)
        applied = self.inner.apply(inner, carries)
        return tuple(tirx.Select(known, v, a) for v, a in zip(values, applied, strict=True))

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        inner = self.inner.formulas()
        return {
            **inner,
            "step": f"h' = v at a reset, else {inner['step'].removeprefix('h' + chr(39) + ' = ')}",
            "element": f"(known?, h, {inner['element']})",
            "combine": "f then g = g if g is known, g(f) if f is known, else " + inner["combine"],
            "identity": f"(no, 0, {inner['identity']})",
            "apply": f"h if known, else {inner['apply']}",
            "reset": as_text(self.reset),
            "v": ", ".join(as_text(v) for v in self.values),
        }


class LateSegmented(Segmented):
    """``Segmented`` as the last resort: integers whose family has no gate of zero."""

    @classmethod
    def prove(cls, system: System) -> Segmented | NotInFamily:
        """Prove what ``Segmented`` proves, for every dtype."""
        return _prove(system)


#: Conditions of a step among which resets are looked for within others.
_MOST_NESTED = 6


class _Reset(NamedTuple):
    """Condition of a reset, the values that it sets, and the step where it does not hold."""

    when: Any
    values: tuple[Any, ...]
    rest: tuple[Any, ...]


def _resets(steps: tuple[Any, ...], olds: Sequence[Var], depth: int) -> Iterator[_Reset]:
    """Choices, free of the carries, one side of which is free of them, within ``depth`` others.

    Of what lies deep, the outermost choice is made first, and no other: whoever makes all others,
    too, comes to the same resets, one after the other.
    """

    def read(sides: Iterable[Any]) -> bool:
        return any(tir.contains_var(side, olds) for side in sides)

    conditions = free_conditions(steps, olds)
    if depth and not depth < len(conditions) <= _MOST_NESTED:
        return
    if depth > 1:
        conditions = conditions[:1]
    decides = [tir.ExprMap((c, True) for c in free_conditions([step], olds)) for step in steps]
    for condition in conditions:
        chooses = [condition in decided_by for decided_by in decides]
        undecided = (step for step, chosen in zip(steps, chooses, strict=True) if not chosen)
        if not depth and read(undecided):
            continue  # nothing is set there
        sides = {
            value: tuple(
                decided(step, condition, value) if chosen else step
                for step, chosen in zip(steps, chooses, strict=True)
            )
            for value in (True, False)
        }
        for chosen in (True, False):
            inside, outside = sides[chosen], sides[not chosen]
            when = condition if chosen else opposite(condition)
            if not read(outside):
                continue
            if not depth:
                if not read(inside):
                    yield _Reset(when, inside, outside)
                continue
            for inner in _resets(inside, olds, depth - 1):
                both = tirx.op.if_then_else(when, inner.when, tirx.const(False, "bool"))
                rest = tuple(
                    tirx.op.if_then_else(when, here, there)
                    for here, there in zip(inner.rest, outside, strict=True)
                )
                yield _Reset(both, inner.values, rest)


def _prove(system: System) -> Segmented | NotInFamily:
    olds = system.olds
    for depth in range(_MOST_NESTED):
        for reset in _resets(system.steps, olds, depth):
            starts = tuple(
                None if start is None else (*start, value)
                for start, value in zip(system.starts, reset.values, strict=False)
            )
            inner = classify(System(reset.rest, olds, system.dtypes, system.declared, starts))
            if isinstance(inner, NotInFamily):
                return inner
            return Segmented(reset.when, reset.values, inner, system.dtypes)
    return NotInFamily(system.steps[0], "")
