"""Tiles of steps of neighbouring lanes, transposed between memory and registers.

Where time is contiguous in memory, the lanes of a vector lie a row apart. A tile of as many steps
as a cache line has is read row by row, transposed by shuffles, scanned with the lanes in vectors,
and what it wrote goes back the same way. The step itself is the loop's own, whatever its family.
Halves are float32 in the tiles, converted a row at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.extraction.nest import linear_in
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.invariants import register_of
from tvm_scan.schedules.common.ir import as_dtype, each, int_const, local, loop, whole_parts
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.cpu.lane_streams import (
    HALVES,
    Shared,
    Stream,
    asked_for,
    loads_along_time,
    shared_loads,
    stores_along_time,
    tile_parts,
)
from tvm_scan.schedules.cpu.line_stores import line_store
from tvm_scan.schedules.cpu.step_parts import step_parts
from tvm_scan.schedules.cpu.transpose import Square


class LaneTiles:
    """The tiles of a block of lanes.

    Parameters
    ----------
    recurrence : Recurrence
        One of which ``takes_lane_tiles`` holds.
    width : int
        Lanes of the block, a multiple of 16.
    nontemporal : bool
        Whether lines are stored past the caches.
    prefetch : int
        Tiles ahead of which lines are asked for.
    """

    def __init__(
        self, recurrence: Recurrence, width: int, *, nontemporal: bool = False, prefetch: int = 0
    ) -> None:
        self.width, self.time = width, recurrence.time
        self.nontemporal, self.prefetch = nontemporal, prefetch
        loads, stores = loads_along_time(recurrence), stores_along_time(recurrence)
        named = [(x.source, x.indices, False) for x in loads]
        named += [(x.buffer, x.indices, True) for x in stores]
        dtypes = sorted({_wide(buffer) for buffer, _, _ in named})
        self.squares = {dtype: Square(dtype) for dtype in dtypes}
        #: Steps of a tile: a line of the narrowest cells; longer tiles leave the nearest cache.
        self.steps = max(square.side for square in self.squares.values())
        self.row_buffers = {
            d: [local(f"rows{h}_{d}", [q.side // HALVES, self.steps], d) for h in range(HALVES)]
            for d, q in self.squares.items()
        }
        #: The step in its tile, and in the part of it that a buffer holds.
        self.slot, self.cell = tirx.Var("slot", "int32"), tirx.Var("cell", "int32")
        #: Wider tiles are memory, which is one buffer.
        self.parted = tile_parts(width, map(tir.byte_size, dtypes))
        held = [self.steps // self.parted]
        self.streams = [
            Stream(
                buffer,
                tuple(indices),
                tuple(local(f"tile{i}_{h}", held, _wide(buffer)) for h in range(self.parted)),
                out,
            )
            for i, (buffer, indices, out) in enumerate(named)
        ]
        self.shared = shared_loads(recurrence, self.steps)
        body = self._through_tiles(recurrence.body, loads)
        self.parts = step_parts(recurrence, body, self.slot, self.steps)
        tiles = tuple(register_of(tile) for stream in self.streams for tile in stream.tiles)
        registers = (*tiles, *self.parts.registers)
        #: With the tiles among its registers.
        self.recurrence = replace(recurrence, registers=(*recurrence.registers, *registers))

    def _through_tiles(self, body: Any, loads: list[TensorLoad]) -> Any:
        tiled = tir.ExprMap()
        for shared in self.shared:
            slot = self.slot if shared.ahead else int_const(self.steps - 1, "int32") - self.slot
            indices = [*(var for var, _ in shared.loops), slot]
            tiled[shared.load] = tirx.BufferLoad(shared.tile, indices)
        for load, stream in zip(loads, self.streams[: len(loads)], strict=True):
            tiled[load] = tirx.BufferLoad(stream.tiles[0], [self.cell])
        outputs = tir.VarMap((s.buffer, s.tiles[0]) for s in self.streams if s.is_output)

        def on_load(load: TensorLoad) -> Any:
            return as_dtype(tiled.get(load, load), tir.dtype_of(load))

        def on_store(store: tirx.BufferStore) -> Any:
            if store.buffer not in outputs:
                return store
            return tirx.BufferStore(outputs[store.buffer], _wide_value(store.value), [self.cell])

        body = tvm_ffi.structural_map(body, [(TensorLoad, on_load), (tirx.BufferStore, on_store)])
        return tvm_ffi.structural_map(body, (tirx.Cast, self._wide_again))

    def _wide_again(self, cast: tirx.Cast) -> Any:
        """Drop the rounding of what a tile holds: it is a half already."""
        inner = cast.value
        if not isinstance(inner, tirx.Cast) or not isinstance(inner.value, TensorLoad):
            return cast
        tiles = [*(s.tiles[0] for s in self.streams), *(shared.tile for shared in self.shared)]
        same = tir.dtype_of(inner.value) == tir.dtype_of(cast)
        held = any(inner.value.source.same_as(tile) for tile in tiles)
        return inner.value if same and held else cast

    @property
    def together(self) -> int:
        """Lanes of a vector operation: a row of a square.

        A part of what was stored as a longer vector LLVM takes out of it cell by cell.
        """
        return min(square.side for square in self.squares.values())

    @property
    def buffers(self) -> list[Var]:
        """Registers of the squares, and the tiles that all lanes share."""
        squares = [b for square in self.squares.values() for b in square.buffers]
        buffers = [held for buffers in self.row_buffers.values() for held in buffers]
        return [*squares, *buffers, *(shared.tile for shared in self.shared)]

    def slots(self, replica: Replica) -> list[Var]:
        """The tiles that registers hold, or slots of the stack."""
        tiles = [tile for stream in self.streams for tile in stream.tiles]
        return [replica.register(tile) for tile in tiles] if self.parted > 1 else []

    def serial_scan(self, replica: Replica, across: Callable[[Callable[[Any], Any]], Any]) -> Any:
        """All steps: tiles, then what is left of them one by one.

        Parameters
        ----------
        replica : Replica
            Of ``self.recurrence``.
        across : callable
            ``across(make)`` is ``make(lane)`` for every lane of the block.
        """
        extent = self.time.extent
        steps = int_const(self.steps, extent)
        full, done, rest = whole_parts(extent, steps)

        def tile(n: Any) -> Any:
            first = n * steps

            def steps_of(part: Any, half: int) -> Any:
                begin = half * (self.steps // self.parted)

                def step(i: Any) -> Any:
                    time = first + as_dtype(i + begin, tir.dtype_of(extent))
                    known = [(s.tiles[0], s.tiles[half]) for s in self.streams if half]
                    known += [(self.slot, i + begin), (self.cell, i)]
                    body = tir.substitute(part, tir.VarMap(known))
                    return across(lambda u: replica.instantiate(body, u, time))

                return loop("i", self.steps // self.parted, step)

            inputs = [self._move(s, replica, first) for s in self.streams if not s.is_output]
            inputs += [self._copy(shared, replica, first) for shared in self.shared]
            outputs = [self._move(s, replica, first) for s in self.streams if s.is_output]
            halves = range(self.parted)
            scanned = [steps_of(part, half) for part in self.parts.bodies for half in halves]
            return tir.seq([*inputs, *scanned, *outputs])

        single = loop("i", rest, lambda i: across(lambda u: replica.step(done + i, u)))
        return tir.seq([loop("n", full, tile), single])

    @property
    def stored(self) -> list[str]:
        """Dtypes of the buffers that are stored past the caches."""
        outputs = [stream.buffer for stream in self.streams if stream.is_output]
        lines = [tir.dtype_of(buffer) for buffer in outputs if not _is_narrow(buffer)]
        return lines if self.nontemporal else []

    def _store(self, buffer: Var, value: Any, line: list[Any]) -> Any:
        if not self.nontemporal or _is_narrow(buffer):
            return tirx.BufferStore(buffer, _row(value, buffer), line)
        first = [*line[:-1], line[-1].base]
        return line_store(buffer, first, value)

    def _asks(self, stream: Stream) -> bool:
        """Return whether lines of a stream are asked for: of outputs, those not stored past."""
        if not self.prefetch:
            return False
        row = tir.as_int(tir.shape_of(stream.buffer)[-1])
        # Rows that begin within lines are not stored past the caches.
        size = tir.byte_size(tir.dtype_of(stream.buffer))
        within = row is not None and row * size % tir.LINE_BYTES
        past = self.nontemporal and not _is_narrow(stream.buffer) and not within
        return not (stream.is_output and past)

    def _copy(self, shared: Shared, replica: Replica, first: Any) -> Any:
        """The cells of a tile's steps that all lanes read."""
        begin = first if shared.ahead else first + int_const(self.steps - 1, first)

        def line(index: list[Any]) -> Any:
            table = tir.VarMap((v, p) for (v, _), p in zip(shared.loops, index, strict=True))
            indices = [
                replica.instantiate(tir.substitute(i, table), None, begin)
                for i in shared.load.indices
            ]
            memory = [*indices[:-1], tirx.Ramp(indices[-1], 1, self.steps)]
            held = [*index, tirx.Ramp(tirx.IntImm("int32", 0), 1, self.steps)]
            value = tirx.BufferLoad(shared.load.source, memory)
            return tirx.BufferStore(shared.tile, _row(value, shared.tile), held)

        return each([extent for _, extent in shared.loops], line, unroll=False)

    def _move(self, stream: Stream, replica: Replica, first: Any) -> Any:
        """A stream between memory and its tile, by squares of lanes and steps.

        Rows pass through a buffer: rows a power of two apart meet in one set of the caches, where
        the columns of a square would push one another out.
        """
        dtype = _wide(stream.buffer)
        square, buffers = self.squares[dtype], self.row_buffers[dtype]
        side, tiles = square.side, [replica.register(tile) for tile in stream.tiles]
        rows_of_buffer, tiled_steps = side // HALVES, self.steps // self.parted
        last = linear_in(stream.indices[-1], self.time.var)
        assert last is not None
        ahead = last[0] == 1
        begin = first if ahead else first + int_const(self.steps - 1, first)
        lines = range(0, self.steps, side)
        # Of a row that begins within a line, its last cell is in the line that comes.
        far = self.prefetch * self.steps + side - 1 if ahead else -self.prefetch * self.steps
        asked = [c + far for c in lines] if self._asks(stream) else []
        lane_dtype = tir.dtype_of(self.recurrence.lanes[-1].var)

        def memory(lane: Any, cell: int) -> list[Any]:
            indices = [replica.instantiate(i, lane, begin) for i in stream.indices]
            return [*indices[:-1], tirx.Ramp(indices[-1] + cell, 1, side)]

        def row_at(row: Any, cell: int) -> list[Any]:
            return [row, tirx.Ramp(tirx.IntImm("int32", cell), 1, side)]

        def in_tile(k: Any, cell: int) -> tuple[Var, list[Any]]:
            slot = cell if ahead else self.steps - 1 - cell
            half, cell = divmod(slot, tiled_steps)
            return tiles[half], [tirx.IntImm("int32", cell), tirx.Ramp(k * side, 1, side)]

        def in_rows(i: int, cell: int) -> tuple[Var, list[Any]]:
            half, row = divmod(i, rows_of_buffer)
            return buffers[half], row_at(tirx.IntImm("int32", row), cell)

        def block(k: Any) -> Any:
            """``side`` lanes."""

            def transpose(cell: int) -> Any:
                """A square: its rows lie in a buffer, its columns in the tile, or the reverse."""
                if stream.is_output:
                    return square.transpose(
                        lambda i: tirx.BufferLoad(*in_tile(k, cell + i)),
                        lambda i, v: _stored(v, *in_rows(i, cell)),
                    )
                return square.transpose(
                    lambda i: tirx.BufferLoad(*in_rows(i, cell)),
                    lambda i, v: _stored(v, *in_tile(k, cell + i)),
                )

            def row(half: int, i: Any) -> Any:
                lane, rows = k * side + (i + half * rows_of_buffer), buffers[half]
                if stream.is_output:
                    out = [
                        self._store(
                            stream.buffer,
                            tirx.BufferLoad(rows, row_at(i, c)),
                            memory(lane, c),
                        )
                        for c in lines
                    ]
                else:
                    held = [tirx.BufferLoad(stream.buffer, memory(lane, c)) for c in lines]
                    out = [
                        tirx.BufferStore(rows, _row(value, rows), row_at(i, c))
                        for value, c in zip(held, lines, strict=True)
                    ]
                for line in (memory(lane, c) for c in asked):
                    at = [*line[:-1], line[-1].base]
                    out.append(asked_for(stream.buffer, at, written=stream.is_output))
                return tir.seq(out)

            transposed = tir.seq(transpose(c) for c in lines)
            count = int_const(rows_of_buffer, lane_dtype)
            moved = [loop("r", count, partial(row, half)) for half in range(HALVES)]
            return tir.seq([transposed, *moved] if stream.is_output else [*moved, transposed])

        return loop("k", int_const(self.width // side, lane_dtype), block)


def _stored(value: Any, buffer: Var, indices: list[Any]) -> Any:
    return tirx.BufferStore(buffer, value, indices)


def _is_narrow(buffer: Var) -> bool:
    return tir.is_half(tir.dtype_of(buffer))


def _wide(buffer: Var) -> str:
    return tir.wide_dtype(tir.dtype_of(buffer))


def _wide_value(value: Any) -> Any:
    """Widen a half that is stored to float32: it is rounded where it leaves the tile."""
    dtype = tir.dtype_of(value)
    if not tir.is_half(dtype):
        return value
    wide = tir.wide_dtype(dtype)
    if isinstance(value, tirx.Cast) and tir.dtype_of(value.value) == wide:
        return value.value
    return tirx.Cast(wide, value)


def _row(value: Any, buffer: Var) -> Any:
    """A vector in the dtype of a buffer."""
    dtype, _, lanes = tir.dtype_of(value).partition("x")
    wanted = tir.dtype_of(buffer)
    return value if dtype == wanted else tirx.Cast(f"{wanted}x{lanes}", value)
