"""Recurrences of lag k alone: ``h[t] = f(h[t - k], x[t])``, k interleaved ones of lag one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.base import Algebra, Around, Element, NotInFamily, System, classify
from tvm_scan.algebra.literal import zero

_COUNT = "int32"


@dataclass(frozen=True, eq=False)
class Interleaved(Around):
    """``k`` carries in a circle, of which a step changes one and moves the others on.

    Theorem. Let ``h' = f(g)`` for the last carry ``g`` of a line, and let every other carry
    become the one before it. After ``m`` steps each carry is a function of exactly one of the
    carries before: of the one ``m mod k`` positions back, and it is composed of those steps that
    it passed. So an element is ``m mod k`` and one inner element per carry, and
    ``(r1, e1) then (r2, e2)`` has a rotation by ``r1 + r2`` and, for carry ``j``, the inner element
    ``e1[j - r2] then e2[j]``.

    A recurrence that reads lag k alone is one of these, for any family of its step.
    """

    name: ClassVar[str] = "interleaved"
    single: ClassVar[bool] = False
    #: Positions in the system, in the order in which a value passes through them.
    line: tuple[int, ...]
    inner: Algebra
    dtype: str

    @classmethod
    def prove(cls, system: System) -> Interleaved | NotInFamily:
        """Find the one step that is no move, and the family of it."""
        count, steps = len(system.olds), system.steps
        if count < 2 or system.declared or len(set(system.dtypes)) > 1:
            return NotInFamily(steps[0], "")
        source = [_moved_from(step, system.olds) for step in steps]
        working = [i for i, origin in enumerate(source) if origin is None]
        if len(working) != 1:
            return NotInFamily(steps[0], "")
        line = [working[0]]
        while len(line) < count:
            following = [i for i, origin in enumerate(source) if origin == line[-1]]
            if len(following) != 1:
                return NotInFamily(steps[0], "")
            line.append(following[0])
        step, last = steps[line[0]], system.olds[line[-1]]
        if tir.contains_var(step, [old for old in system.olds if not old.same_as(last)]):
            return NotInFamily(steps[0], "")
        inner = classify(System((step,), (last,), system.dtypes[:1]))
        if isinstance(inner, NotInFamily):
            return inner
        return cls(tuple(line), inner, system.dtypes[0])

    @property
    def count(self) -> int:
        """Number of carries."""
        return len(self.line)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The rotation, and an inner element per carry."""
        return (_COUNT, *(self.inner.dtypes * self.count))

    def _split(self, element: Element) -> list[Element]:
        size = len(self.inner.dtypes)
        return [element[1 + i * size : 1 + (i + 1) * size] for i in range(self.count)]

    def _rotated(self, parts: list[Element], by: Any) -> list[Element]:
        """Element ``j`` of the result is ``parts[j - by]``."""
        known = tir.as_int(by)
        if known is not None:
            return [parts[(j - known) % self.count] for j in range(self.count)]
        out = []
        for j in range(self.count):
            chosen = parts[j]
            for distance in range(1, self.count):
                other = parts[(j - distance) % self.count]
                chosen = tuple(
                    tirx.Select(tirx.EQ(by, distance), o, c)
                    for o, c in zip(other, chosen, strict=True)
                )
            out.append(chosen)
        return out

    def lift(self) -> Element:
        """A rotation by one, the step for the first carry, and nothing for the others."""
        nothing = self.inner.identity() * (self.count - 1)
        return (tirx.const(1, _COUNT), *self.inner.lift(), *nothing)

    def combine(self, earlier: Element, later: Element) -> Element:
        """A rotation by ``r1 + r2``, and ``e1[j - r2] then e2[j]``."""
        total = earlier[0] + later[0]
        distance = tirx.Select(total >= self.count, total - self.count, total)
        before = self._rotated(self._split(earlier), later[0])
        joined = [self.inner.combine(f, g) for f, g in zip(before, self._split(later), strict=True)]
        return (distance, *(part for element in joined for part in element))

    def extend(self, earlier: Element, step: Element) -> Element:
        """Combine; only the carry that was last has one step more."""
        distance = tirx.Select(earlier[0] >= self.count - 1, tirx.const(0, _COUNT), earlier[0] + 1)
        *rest, last = self._split(earlier)
        first = self.inner.extend(last, self._split(step)[0])
        return (distance, *first, *(part for element in rest for part in element))

    def flush(self, element: Element) -> Element:
        """Flush the element of every carry, as the inner family does."""
        parts = [part for inner in self._split(element) for part in self.inner.flush(inner)]
        return (element[0], *parts)

    def identity(self) -> Element:
        """No rotation, and nothing for every carry."""
        return (tirx.const(0, _COUNT), *(self.inner.identity() * self.count))

    def apply(self, element: Element, carries: Element) -> Element:
        """The inner elements, each to the carry that is as many positions back."""
        along = self._rotated([(carries[i],) for i in self.line], element[0])
        out: list[Any] = [zero(self.dtype)] * self.count
        for i, inner, carry in zip(self.line, self._split(element), along, strict=True):
            (out[i],) = self.inner.apply(inner, carry)
        return tuple(out)

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        inner = self.inner.formulas()
        return {
            **inner,
            "step": f"h'[t] = {inner['step'].partition('= ')[2]} of h[t - {self.count}]",
            "element": f"(steps mod {self.count}, {self.count} times {inner['element']})",
            "combine": "(r1, e1) then (r2, e2) = (r1 + r2, e1[j - r2] then e2[j]); "
            + inner["combine"],
            "identity": f"(0, {self.count} times {inner['identity']})",
            "apply": f"e[j] to the carry r positions back; {inner['apply']}",
        }


def _moved_from(step: Any, olds: tuple[Var, ...]) -> int | None:
    """Return the index of the carry that a step passes on unchanged; None if it passes on none."""
    if not isinstance(step, Var):
        return None
    return next((i for i, old in enumerate(olds) if step.same_as(old)), None)
