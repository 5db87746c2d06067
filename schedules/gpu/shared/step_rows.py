"""Streams whose neighbours in memory are lanes, as a tile in shared memory has them: by steps.

``u`` and ``delta`` of a selective scan with channels last are read by a thread for steps that lie
far apart. The block copies one row of its lanes for every step instead, a line of memory at a time.

Theorem. The lanes of block ``b`` are those numbered ``b n`` to ``b n + n - 1``. Let the last index
of a load, over the lane numbered ``b n + y`` with ``0 <= y < n``, simplify to ``y`` and terms
without ``y``, and the other indices to terms without ``y``. Then a step of the block's lanes is
``n`` neighbours in memory. If ``n`` divides the number of lanes, every block has all its lanes.

*Banks.* Threads that share a lane read steps ``k`` apart, and those of a warp read neighbouring
lanes: thread ``q`` of lane ``y`` reads cell ``q (k n + p) + y`` and a constant, with ``p``
elements of padding after every ``k`` steps, which is chosen so that the fewest threads of a warp
meet in a bank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Range, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.extraction.nest import linear_in
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import int_const
from tvm_scan.schedules.common.lanes import decode_lanes, lane_count
from tvm_scan.schedules.gpu.shared.staged import VECTOR, Staged
from tvm_scan.schedules.gpu.thread.banks import LINE, WORD, meetings
from tvm_scan.schedules.gpu.thread.vector_access import VectorAccess


@dataclass(frozen=True, eq=False, kw_only=True)
class StepRows(Staged):
    """A stream: one row of a tile for every step.

    Attributes
    ----------
    lanes : int
        Of the block: elements of a row.
    items, padding : int
        Steps after which so many elements of padding follow.
    """

    lanes: int
    items: int
    padding: int

    @property
    def vectors(self) -> VectorAccess:
        """The map without vectors: those of a copy are of lanes."""
        return VectorAccess()

    def index(self, step: Any, lane: Any = None, state: Any = None) -> Any:
        """Index of a lane's element of a step, numbers or expressions."""
        return step * self.lanes + step // self.items * self.padding + lane

    @property
    def taken(self) -> tuple[int, int, int]:
        """Items of a thread, which lie between two paddings; one at a time, a row apart."""
        return self.items, 1, self.lanes


def step_rows(
    load: TensorLoad,
    recurrence: Recurrence,
    shared: int,
    items: int,
    lanes: int,
    steps: int,
    vectors: bool,
) -> StepRows | None:
    """Rows by which the block stages a load of its lanes; None where these are no neighbours.

    Parameters
    ----------
    load : TensorLoad
        Moves with time, and is read once at every step.
    recurrence : Recurrence
        Whose load.
    shared, items, lanes : int
        Threads of a lane, items of a thread, lanes of a block.
    steps : int
        Of a tile, a multiple of ``shared * items``.
    vectors : bool
        Whether to copy several elements at once.
    """
    size, total = tir.byte_size(tir.dtype_of(load)), lane_count(recurrence)
    indices, within, analyzer = placed_in_block(load, recurrence, lanes)
    *outer, last = [analyzer.simplify(index) for index in indices]
    part = linear_in(last, within)
    if part is None or part[0] != 1 or any(tir.contains_var(index, [within]) for index in outer):
        return None
    if size * lanes < WORD or not _divides(analyzer, lanes, total):
        return None
    width = max(1, min(VECTOR // size, lanes)) if vectors else 1
    row = tir.shape_of(load.source)[-1]
    aligned = (row, part[1])
    while width > 1 and not all(_divides(analyzer, width, value) for value in aligned):
        width //= 2
    while width > 1 and lanes % width:
        width //= 2
    padding, meet = _padding(shared, items, lanes, width, size)
    while meet > 1 and width * size > WORD:
        # Narrower copies allow for paddings in between; a warp's reads count more.
        narrow = _padding(shared, items, lanes, width // 2, size)
        if narrow[1] >= meet:
            break
        width, (padding, meet) = width // 2, narrow
    cells, vector = steps * lanes + steps // items * padding, VECTOR // size
    return StepRows(
        access=load,
        copies=VectorAccess(width),
        axes=(("step", steps), ("lane", lanes)),
        size=size,
        cells=-(-cells // vector) * vector,
        lanes=lanes,
        items=items,
        padding=padding,
    )


def _padding(shared: int, items: int, lanes: int, width: int, size: int) -> tuple[int, int]:
    """Padding, a multiple of ``width``, with which the fewest threads of a warp meet; how many."""

    def meet(padding: int) -> int:
        apart = items * lanes + padding
        return meetings(lambda t: (t % shared * apart + t // shared) * size, size)

    best = min(range(0, LINE // size, width), key=meet)
    return best, meet(best)


def _divides(analyzer: Analyzer, number: int, value: Any) -> bool:
    return bool(analyzer.can_prove_equal(tirx.floormod(value, int_const(number, value)), 0))


def placed_in_block(
    load: TensorLoad, recurrence: Recurrence, lanes: int
) -> tuple[list[Any], Var, Analyzer]:
    """Indices of a load for lane ``y`` of a block; ``y``; and what knows its bounds."""
    total = lane_count(recurrence)
    dtype = tir.dtype_of(total)
    block, within = tirx.Var("b", dtype), tirx.Var("y", dtype)
    row = block * lanes + within
    table = tir.VarMap(
        (lane.var, value)
        for lane, value in zip(recurrence.lanes, decode_lanes(recurrence, row), strict=True)
    )
    analyzer = Analyzer()
    analyzer.bind(within, Range.from_min_extent(int_const(0, dtype), int_const(lanes, dtype)))
    analyzer.bind(block, Range.from_min_extent(int_const(0, dtype), total))
    return [tir.substitute(index, table) for index in load.indices], within, analyzer
