"""Rows that a block of lanes reads and writes along time, one for each of neighbouring lanes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.extraction.nest import linear_in
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.branches import unconditional_loads
from tvm_scan.schedules.common.invariants import values_of
from tvm_scan.schedules.common.ir import as_dtype, int_const, local
from tvm_scan.schedules.common.sizes import known_extent
from tvm_scan.schedules.common.stack import SLOT_BYTES
from tvm_scan.schedules.cpu.line_stores import output_stores
from tvm_scan.schedules.cpu.transpose import square_side


@dataclass(frozen=True, eq=False)
class Stream:
    """Cells that a step reads or writes, one per lane, and the tile that holds them, in parts."""

    buffer: Var
    indices: tuple[Any, ...]
    tiles: tuple[Var, ...]
    is_output: bool


#: Steps of a tile of cells of four bytes, a line of memory: shorter rows gain nothing by tiles.
TILE_STEPS = 16

#: Buffers of a square's rows, and of a tile in registers. As one buffer either has 1024 bytes,
#: which TVM takes from its pool; what is left there LLVM has to store, though nobody reads it: 48
#: of the 64 stores of a square.
HALVES = 2


def tile_parts(width: int, sizes: Iterable[int]) -> int:
    """Buffers that hold a tile: one in memory, or more that registers and the stack have room for.

    Parameters
    ----------
    width : int
        Lanes of the tile.
    sizes : iterable of int
        Bytes of its cells, of which it holds four at least; a line of the narrowest is its steps.
    """
    known = [max(4, size) for size in sizes]
    part = tir.LINE_BYTES // min(known, default=4) // HALVES * width * max(known, default=4)
    return HALVES if part < SLOT_BYTES else 1


def takes_lane_tiles(recurrence: Recurrence) -> bool:
    """Return whether a step reads or writes rows along time that lie a row apart for every lane."""
    if not recurrence.lanes or recurrence.guard is not None:
        return False
    return bool(loads_along_time(recurrence)) or bool(stores_along_time(recurrence))


def gains_by_lane_tiles(recurrence: Recurrence) -> bool:
    """Return whether tiles of such rows are worth a try."""
    whole = known_extent(recurrence.time.extent) >= TILE_STEPS
    return whole and takes_lane_tiles(recurrence)


def _along_time(recurrence: Recurrence, buffer: Var, indices: Any) -> bool:
    """Return whether time moves the last index by one, and the last lane another one."""
    time, lane = recurrence.time.var, recurrence.lanes[-1].var
    if not indices:
        return False
    last = linear_in(indices[-1], time)
    if last is None or abs(last[0]) != 1 or tir.contains_var(last[1], [lane]):
        return False
    others = list(indices[:-1])
    if any(tir.contains_var(index, [time]) for index in others):
        return False
    moves = any(tir.contains_var(index, [lane]) for index in others)
    inner = tir.variables_bound(recurrence.body)
    fixed = not any(var in inner for var in tir.variables(list(indices)).keys())
    return moves and fixed and square_side(tir.wide_dtype(tir.dtype_of(buffer))) > 0


def loads_along_time(recurrence: Recurrence) -> list[TensorLoad]:
    """Loads of a step in rows along time, each once."""
    return tir.each_once(
        load
        for load in unconditional_loads(recurrence.body)
        if _is_input(recurrence, load) and _along_time(recurrence, load.source, list(load.indices))
    )


# A choice asks several times.
@lru_cache(maxsize=256)
def loads_across_lanes(recurrence: Recurrence) -> tuple[TensorLoad, ...]:
    """Loads of neighbouring lanes, a row from those of the next step, each once."""
    if not recurrence.lanes:
        return ()
    time, lane = recurrence.time.var, recurrence.lanes[-1].var
    inner = tir.variables_bound(recurrence.body)

    def is_across(indices: list[Any]) -> bool:
        last = linear_in(indices[-1], lane) if indices else None
        across = last is not None and last[0] == 1 and not tir.contains_var(last[1], [time])
        fixed = not any(var in inner for var in tir.variables(indices).keys())
        return across and fixed and any(tir.contains_var(i, [time]) for i in indices[:-1])

    across = (
        load
        for load in unconditional_loads(recurrence.body)
        if _is_input(recurrence, load) and is_across(list(load.indices))
    )
    return tuple(tir.each_once(across))


def _is_input(recurrence: Recurrence, load: TensorLoad) -> bool:
    """Return whether a load is of memory that no step writes."""
    written = any(load.source.same_as(output) for output in recurrence.outputs)
    return not written and str(load.source.scope()) != "local"


def asked_for(buffer: Var, at: list[Any], *, written: bool = False) -> Any:
    """Statement that asks for the line of a cell; beyond the end of a row it asks in vain."""
    # The address is taken inside the buffer: the first and last cells bound it.
    cell = at[-1]
    most = as_dtype(tir.shape_of(buffer)[-1], tir.dtype_of(cell)) - int_const(1, cell)
    inside = tirx.Max(tirx.Min(cell, most), tir.zero_like(cell))
    return asked_inside(buffer, [*at[:-1], inside], written=written)


def asked_inside(buffer: Var, at: list[Any], *, written: bool = False) -> Any:
    """Statement that asks for the line of a cell that is inside its buffer.

    Into the second cache: few lines may be on their way to the first one at a time, and rows some
    KB apart put one another out of it. On a Zen 4 linear recurrences of 2048 rows of 2900 steps
    take 3.4 ms if tiles ask for lines in the first cache and 2.6 in the second one, one row of
    2^24 sums 4.8 and 3.6; in the caches both take the same time.
    """
    return tirx.Evaluate(tir.prefetch(tirx.BufferLoad(buffer, at), cache=2, written=written))


def stores_along_time(recurrence: Recurrence) -> list[tirx.BufferStore]:
    """Stores of a step in rows along time that it does not read."""
    stores = output_stores(recurrence)
    return [s for s in stores if _along_time(recurrence, s.buffer, list(s.indices))]


@dataclass(frozen=True, eq=False)
class Shared:
    """Cells along time that all lanes of a block read, in constant loops of the step."""

    load: TensorLoad
    loops: tuple[tuple[Var, int], ...]
    tile: Var
    ahead: bool


#: Cells of a shared tile for one step.
_CELLS = 64


def shared_loads(recurrence: Recurrence, steps: int) -> list[Shared]:
    """Loads along time that all lanes share, within constant loops, each once.

    Tiles have ``steps`` steps.
    """
    time, lane = recurrence.time.var, recurrence.lanes[-1].var
    bound = tir.variables_bound(recurrence.body)
    bound[time] = True
    around = tir.ExprMap()
    for value, loops in values_of(recurrence.body):
        for load in unconditional_loads(value):
            around[load] = loops
    shared: list[Shared] = []
    for load, loops in around.items():
        inner = [(v, n) for v, n in loops if tir.contains_var(list(load.indices), [v])]
        sizes = [n for _, n in inner if n is not None]
        last = linear_in(load.indices[-1], time)
        if last is None or abs(last[0]) != 1 or len(sizes) < len(inner) or not inner:
            continue
        names = tir.VarMap((v, True) for v, _ in inner)
        others = [*load.indices[:-1], last[1]]
        free = all(v in names or v not in bound for v in tir.variables(others).keys())
        dtype = tir.wide_dtype(tir.dtype_of(load.source))
        if (
            free
            and prod(sizes) <= _CELLS
            and _is_input(recurrence, load)
            and square_side(dtype) > 0
            and not tir.contains_var(list(load.indices), [lane])
        ):
            tile = local(f"shared{len(shared)}", [*sizes, steps], dtype)
            pairs = tuple(zip([v for v, _ in inner], sizes, strict=True))
            shared.append(Shared(load, pairs, tile, last[0] == 1))
    return shared
