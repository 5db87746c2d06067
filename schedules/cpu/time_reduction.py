"""The element of many steps of time, reduced pair by pair with steps as the cells of vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.base import Combine, Element
from tvm_scan.recurrence import Group
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.cpu.vector_values import Vector, on_vectors, set_vectors, variables

if TYPE_CHECKING:
    from tvm_scan.schedules.cpu.time_vector import TimeVector


#: Vectors that are reduced together: enough of them make the narrow last steps rare.
BATCH = 4


class TimeReduction:
    """Reductions of batches of vectors of time.

    Neighbouring vectors meet first: the even steps of both are the left operands, the odd ones
    the right operands of one vector operation, so that the order of time is kept for operators
    that do not commute. The last vector is reduced by halves.

    Parameters
    ----------
    vectors : TimeVector
        What lifts steps to elements, and how wide.
    """

    def __init__(self, vectors: TimeVector) -> None:
        self.vectors, self.width = vectors, vectors.width
        #: Steps of a batch.
        self.steps = BATCH * self.width
        self._held: dict[tuple[int, str], list[Vector]] = {}

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        return [part.buffer for parts in self._held.values() for part in parts]

    def _registers(self, group: int, name: str, width: int) -> list[Vector]:
        dtypes = self.vectors.recurrence.groups[group].algebra.dtypes
        registers = [Vector(f"f{name}_{group}{j}", width, d) for j, d in enumerate(dtypes)]
        return self._held.setdefault((group, name), registers)

    def reduce(self, held: Elements, lead: list[Any], first: Any) -> Any:
        """``held[lead]`` followed by the steps of a batch from ``first`` on."""
        groups = self.vectors.recurrence.groups
        reduced = [self._group(i, g, held, lead, first) for i, g in enumerate(groups)]
        return tir.seq([*self.vectors.asked(first, self.steps), *reduced])

    def _group(self, i: int, group: Group, held: Elements, lead: list[Any], first: Any) -> Any:
        algebra, plain = group.algebra, group.algebra.plainly()

        def flushed(earlier: Element, later: Element) -> Any:
            return algebra.flush(algebra.combine(earlier, later))

        def add(total: tuple[Any, ...]) -> Any:
            binds, element = on_vectors(flushed, held.load(i, lead, []), total, 1)
            return tir.seq([*binds, held.store(i, lead, [], element)])

        def tree(combine: Combine) -> tuple[list[Any], tuple[Any, ...]]:
            out: list[Any] = []
            parts = self._pairs(i, combine, first, 0, BATCH, out)
            total = self._halves(i, combine, parts, out)
            if algebra.reuses_parts:
                named = variables("total", algebra.dtypes)
                out += [tirx.Bind(name, part) for name, part in zip(named, total, strict=True)]
                total = named
            return out, total

        careful, total = tree(algebra.combine)
        if plain is None:
            return tir.seq([*careful, add(total)])
        usual, quick = tree(plain.combine)
        if plain.exact is None:
            return tir.seq([*usual, add(quick)])
        again = tir.fresh_copy(tir.seq([*careful, add(total)]))
        return tir.seq([*usual, tirx.IfThenElse(plain.exact(quick), add(quick), again)])

    def _pairs(
        self, i: int, combine: Combine, first: Any, begin: int, count: int, out: list[Any]
    ) -> list[Vector]:
        """One vector of elements for ``count`` vectors of steps, each cell a run of steps."""
        parts = self._registers(i, f"{begin}x{count}", self.width)
        if count == 1:
            out.append(self.vectors.lift(i, parts, first + begin * self.width))
            return parts
        half = count // 2
        earlier = self._pairs(i, combine, first, begin, half, out)
        later = self._pairs(i, combine, first, begin + half, half, out)
        sources = [[a.load(), b.load()] for a, b in zip(earlier, later, strict=True)]
        out += _met(combine, sources, parts)
        return parts

    def _halves(
        self, i: int, combine: Combine, parts: list[Vector], out: list[Any]
    ) -> tuple[Any, ...]:
        width = self.width
        while width > 2:
            width //= 2
            halves = self._registers(i, f"half{width}", width)
            out += _met(combine, [[p.load()] for p in parts], halves)
            parts = halves
        binds, total = on_vectors(combine, [p.at(0) for p in parts], [p.at(1) for p in parts], 1)
        out += binds
        return tuple(total)


def _met(combine: Combine, sources: list[list[Any]], targets: list[Vector]) -> list[Any]:
    """Set ``targets`` to the even cells of the sources followed by the odd ones."""
    even, odd = (
        [
            tirx.Shuffle(vectors, [2 * v + parity for v in range(targets[0].width)])
            for vectors in sources
        ]
        for parity in range(2)
    )
    return set_vectors(targets, combine, even, odd)
