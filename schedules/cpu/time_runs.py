"""Runs of neighbouring steps in every cell of a vector: few exchanges between the cells.

A row of ``K`` vectors is transposed by blocks of ``K`` by ``K`` cells, so that every cell holds
``K`` neighbouring steps, one in each of ``K`` vectors. The cells scan their runs side by side; only
the totals of the runs meet by shuffles, once for all ``K`` vectors. Work and span for ``K W`` steps
in vectors of ``W``: ``K - 1 + log W`` combinations of vectors, against ``K (log K + log W)``
without runs. (G. E. Blelloch's reduce-then-scan, "Prefix sums and their applications",
CMU-CS-90-190, within registers; the blocks are transposed as in any 4 by 4 transposition by
unpacking.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan.algebra.base import Combine
from tvm_scan.recurrence import Group
from tvm_scan.schedules.cpu.cell_scan import CellScan
from tvm_scan.schedules.cpu.vector_values import Vector, set_vectors

if TYPE_CHECKING:
    from tvm_scan.schedules.cpu.time_vector import TimeVector


#: Steps of a run: the side of the block that unpacking transposes.
RUN = 4


class _Columns:
    """``RUN`` vectors, twice: a transposition reads one set and writes the other."""

    def __init__(self, name: str, width: int, dtype: str) -> None:
        self.width = width
        self.sets = [[Vector(f"{name}{s}{p}", width, dtype) for p in range(RUN)] for s in range(2)]

    @property
    def buffers(self) -> list[Var]:
        return [vector.buffer for group in self.sets for vector in group]

    def transpose(self, rows: list[Any], half: list[Vector]) -> tuple[list[Any], list[Any]]:
        """Statements, and the transposed vectors.

        Cell ``4 b + v`` of vector ``p`` is cell ``4 b + p`` of row ``v``.
        """
        low, high = _unpacked(self.width, 1)
        out = []
        for pair in range(2):
            both = rows[2 * pair : 2 * pair + 2]
            out.append(half[2 * pair].store(tirx.Shuffle(both, low)))
            out.append(half[2 * pair + 1].store(tirx.Shuffle(both, high)))
        first, second = _unpacked(self.width, 2)
        transposed = []
        for part in range(2):
            both = [half[part].load(), half[part + 2].load()]
            transposed += [tirx.Shuffle(both, first), tirx.Shuffle(both, second)]
        return out, transposed


def _unpacked(width: int, size: int) -> tuple[list[int], list[int]]:
    """Cells of two vectors alternating, ``size`` at a time: the lower and upper ones of blocks."""
    halves: tuple[list[int], list[int]] = ([], [])
    for block in range(0, width, RUN):
        for side, order in enumerate(halves):
            begin = block + side * RUN // 2
            for first in range(begin, begin + RUN // 2, size):
                for vector in range(2):
                    order += [vector * width + first + k for k in range(size)]
    return halves


class TimeRuns:
    """The scan of ``RUN`` vectors of steps.

    Parameters
    ----------
    vectors : TimeVector
        What lifts the steps, all of a row at once, and holds the carries.
    """

    def __init__(self, vectors: TimeVector) -> None:
        self.vectors, self.width = vectors, vectors.width // RUN
        blocks, recurrence = self.width // RUN, vectors.recurrence
        #: The totals of the runs.
        self.totals = CellScan(
            recurrence, "g", [i % RUN * blocks + i // RUN for i in range(self.width)]
        )
        self.columns = {
            i: [_Columns(f"c{i}{j}_", self.width, d) for j, d in enumerate(g.algebra.dtypes)]
            for i, g in enumerate(recurrence.groups)
        }
        self.before = {
            c: _Columns(f"b{c}_", self.width, carry.dtype)
            for c, carry in enumerate(recurrence.carries)
        }

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        columns = [b for parts in self.columns.values() for part in parts for b in part.buffers]
        befores = [b for part in self.before.values() for b in part.buffers]
        return [*self.totals.buffers, *columns, *befores]

    def levels(
        self, i: int, lifted: list[Vector], combine: Combine
    ) -> tuple[list[Any], list[Vector]]:
        """The scan of every run, and of the totals of the runs.

        Parameters
        ----------
        i : int
            Number of the group.
        lifted : list of Vector
            Elements of the steps of a row.
        combine : callable
            The algebra's, or a plainer one.

        Returns
        -------
        list of Stmt
        list of Vector
            The totals, scanned.
        """
        out = []
        for columns, part in zip(self.columns[i], lifted, strict=True):
            rows = [
                tirx.Shuffle([part.load()], list(range(v * self.width, (v + 1) * self.width)))
                for v in range(RUN)
            ]
            scanned, raw = columns.sets
            transposition, transposed = columns.transpose(rows, scanned)
            out += [
                *transposition,
                *(vector.store(x) for vector, x in zip(raw, transposed, strict=True)),
            ]
        parts = self.columns[i]
        out += [c.sets[0][0].store(c.sets[1][0].load()) for c in parts]
        for p in range(1, RUN):
            left = [c.sets[0][p - 1].load() for c in parts]
            right = [c.sets[1][p].load() for c in parts]
            out += set_vectors([c.sets[0][p] for c in parts], combine, left, right)
        between, totals = self.totals.levels(i, [c.sets[0][RUN - 1] for c in parts], combine)
        return [*out, *between], totals

    def befores(self, i: int, group: Group, totals: list[Vector], apply: Combine) -> list[Any]:
        """The carries before every step.

        Parameters
        ----------
        i : int
            Number of the group.
        group : Group
            Whose carries.
        totals : list of Vector
            Of the runs, scanned.
        apply : callable
            The algebra's, or a plainer one.
        """
        many = self.vectors.many
        carries = [self.vectors.carry(c) for c in group.carries]
        out, heads = self.totals.befores(totals, carries, apply)
        befores = [self.before[c].sets[0] for c in group.carries]
        out += [columns[0].store(head) for columns, head in zip(befores, heads, strict=True)]
        for p in range(1, RUN):
            element = [c.sets[0][p - 1].load() for c in self.columns[i]]
            old = [columns[0].load() for columns in befores]
            out += set_vectors([columns[p] for columns in befores], apply, element, old)
        for c in group.carries:
            transposition, rows = self.before[c].transpose(
                [vector.load() for vector in self.before[c].sets[0]], self.before[c].sets[1]
            )
            out += transposition
            for v, row in enumerate(rows):
                buffer, cell = many.carry(c, [], tirx.Ramp(v * self.width, 1, self.width))
                out.append(tirx.BufferStore(buffer, row, cell))
        return out
