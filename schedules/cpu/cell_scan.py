"""Elements that are the cells of vectors: their scan by doubling distances, and what follows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan.algebra.base import Combine
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.cpu.vector_values import Vector, on_vectors


class CellScan:
    """Registers of the elements of every group, and their scan by shuffles.

    Parameters
    ----------
    recurrence : Recurrence
        Whose elements; a vector holds a part of them.
    name : str
        Prefix of the names of registers.
    numbers : sequence of int
        Number in time of the element in every cell.

    Attributes
    ----------
    sets : dict of int
        Two sets of vectors for every group: a level reads all of one and writes the other.
    """

    def __init__(self, recurrence: Recurrence, name: str, numbers: Sequence[int]) -> None:
        self.width, self._numbers = len(numbers), numbers
        self._cell_of = sorted(range(self.width), key=numbers.__getitem__)
        self.sets = {
            i: [
                [Vector(f"{name}{s}{i}{j}", self.width, d) for j, d in enumerate(g.algebra.dtypes)]
                for s in range(2)
            ]
            for i, g in enumerate(recurrence.groups)
        }

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        return [v.buffer for sets in self.sets.values() for part in sets for v in part]

    def _before(self, element: list[Vector], by: int) -> list[Any]:
        """The element ``by`` before that of every cell; the first cells are any."""
        order = [self._cell_of[max(number - by, 0)] for number in self._numbers]
        return [tirx.Shuffle([part.load()], order) for part in element]

    def _blend(self, first: Sequence[Any], rest: Sequence[Any], count: int) -> list[Any]:
        """The ``count`` first cells of ``first``, then those of ``rest`` at the same indices."""
        order = [
            cell + (self.width if number >= count else 0)
            for cell, number in enumerate(self._numbers)
        ]
        return [tirx.Shuffle([*both], order) for both in zip(first, rest, strict=True)]

    def levels(
        self, i: int, read: list[Vector], combine: Combine
    ) -> tuple[list[Any], list[Vector]]:
        """Statements that scan the elements of group ``i``, and the vectors that hold the result.

        The cells that no earlier one meets are kept by a blend.
        """
        out: list[Any] = []
        by = 1
        while by < self.width:
            write = self.sets[i][1 if read is self.sets[i][0] else 0]
            vectors = [part.load() for part in read]
            binds, values = on_vectors(combine, self._before(read, by), vectors, self.width)
            blended = self._blend(vectors, values, by)
            out += [*binds, *(to.store(value) for to, value in zip(write, blended, strict=True))]
            read = write
            by *= 2
        return out, read

    def befores(
        self, scanned: list[Vector], carries: Sequence[Any], apply: Combine
    ) -> tuple[list[Any], list[Any]]:
        """Bindings, and vectors of the carries before every cell, from those before the first."""
        wide = [tirx.Broadcast(carry, self.width) for carry in carries]
        binds, values = on_vectors(apply, self._before(scanned, 1), wide, self.width)
        return binds, self._blend(wide, values, 1)
