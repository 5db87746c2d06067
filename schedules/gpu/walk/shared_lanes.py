"""CUDA builder: several threads share the states of a lane and walk time together.

For S threads per lane and K items per thread, the threads of a lane take S K steps at a time.
Each thread makes the part of K steps that does not concern the states (step sizes, gates, the
loads and stores of whole sequences), once for all. Then all of them walk the S K steps, each one
over its own states: what a step needs comes from the thread that made it, by a shuffle or through
shared memory (``exchange``), and what it leaves are sums over the states (``owner_sums``). No
barrier of the block.

Cost of a lane's step: its exponentials and multiply-adds once, shuffles S values, and 3 for its
sums at S = 4.
Span: the length, as in ``lanes``. Memory: inputs and outputs once; what the lanes of a block
share (B and C of a selective scan) comes from the first-level cache but for the first lane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import (
    Kernel,
    as_dtype,
    for_one_block,
    int_const,
    loop,
    parts_of,
    threads_over,
    when,
)
from tvm_scan.schedules.common.lanes import decode_lanes, lane_count
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.state_split import split_states
from tvm_scan.schedules.gpu.thread.banks import WARP
from tvm_scan.schedules.gpu.thread.barriers import wait
from tvm_scan.schedules.gpu.thread.plans import WalkPlan
from tvm_scan.schedules.gpu.thread.registers import cell_of, cells_of
from tvm_scan.schedules.gpu.walk.elementary import in_few_instructions
from tvm_scan.schedules.gpu.walk.exponentials import with_share
from tvm_scan.schedules.gpu.walk.passes import groups_written_out
from tvm_scan.schedules.gpu.walk.registers import WalkRegisters
from tvm_scan.schedules.gpu.warp.shuffles import shuffled
from tvm_scan.schedules.machine.pairs import step


def build_shared_lanes(recurrence: Recurrence, plan: WalkPlan) -> Built:
    """``plan.threads_per_lane`` threads per lane; see the module."""
    threads = SharedThreads(recurrence, plan)
    split = split_states(recurrence)
    walk = Walk(recurrence, plan, threads.lanes, threads.owner, threads.slot, split)

    def kernel(inside: Any) -> Kernel:
        code = walk.code(inside, threads.any_lane)
        return Kernel("scan_shared", recurrence.inputs, recurrence.outputs, code, walk.buffers)

    return Built([threads_over(kernel, threads.slot, threads.count, plan.threads_per_block)], [])


class SharedThreads:
    """The lane that a thread of the grid works on, and its number among the lane's threads."""

    def __init__(self, recurrence: Recurrence, plan: WalkPlan) -> None:
        rows = lane_count(recurrence)
        self.count = tir.simplify(rows * plan.threads_per_lane)
        self.slot = tirx.Var("v_slot", tir.dtype_of(rows))
        # Every thread takes part in the shuffles: those beyond the last lane repeat it.
        last = tirx.Max(rows - 1, tir.zero_like(rows))
        self.row = tirx.Min(self.slot // plan.threads_per_lane, last)
        self.owner = as_dtype(self.slot % plan.threads_per_lane, "int32")
        self.lanes = decode_lanes(recurrence, self.row)
        self.any_lane = tir.simplify(rows > tir.zero_like(rows))


class Walk(WalkRegisters):
    """One thread's part of a lane, or of a chunk of its time."""

    def code(self, inside: Any, any_lane: Any) -> Any:
        """All of a lane; see ``run``."""
        r = self.recurrence
        units = parts_of(r.time.extent, self.unit)
        ends = when(inside, self.part(r.finish)) if r.finish is not None else None
        first = tir.zero_like(units)
        return self.run(inside, any_lane, self.part(r.start), first, units, ends)

    @property
    def unit(self) -> int:
        """Steps that the walk takes at a time: of a tile, or of all the lane's threads."""
        if self.tiles.is_empty:
            return self.plan.threads_per_lane * self.plan.items_per_thread
        return self.tiles.steps

    def run(self, inside: Any, any_lane: Any, begin: Any, first: Any, units: Any, end: Any) -> Any:
        """A walk over some units of time.

        Parameters
        ----------
        inside : Expr
            Whether the thread's lane exists, and is not repeated.
        any_lane : Expr
            Whether there is a lane at all. No barrier may stand under a condition, so that without
            lanes the walk has no steps.
        begin, end : Stmt
            Before the first step and after the last one.
        first, units : Expr
            The first unit, and how many.
        """
        extent = self.recurrence.time.extent
        dtype, items = tir.dtype_of(extent), self.plan.items_per_thread
        together = self.plan.threads_per_lane * items
        in_tile = self.tiles.steps // together
        written = groups_written_out(self.plan, self.states_each)

        def group(number: Any, tile: Any, within: Any, in_steps: bool) -> Any:
            """All steps of a group; ``within`` is its number in the tile."""
            time = number * together
            mine = time + as_dtype(self.owner, dtype) * items
            start = within * together
            return tir.seq(
                [
                    self._before(mine, tile, start),
                    *self._send(in_steps),
                    self._steps(time, tile, start, in_steps),
                    when(inside, self._after(mine)),
                ]
            )

        def ways(make: Callable[[bool], Any]) -> Any:
            """``make(in_steps)`` for what the thread's exponents are."""
            if self.progressions.is_empty:
                return make(False)
            return tirx.IfThenElse(self.progressions.holds, make(True), make(False))

        def of_tile(tile: Any) -> Any:
            def of_groups(g: Any) -> Any:
                def of_group(k: Any, in_steps: bool) -> Any:
                    within = g * written + k
                    number = tile * in_tile + as_dtype(within, dtype)
                    return group(number, tile, as_dtype(within, "int32"), in_steps)

                return ways(
                    lambda way: loop(
                        "k", written, lambda k: of_group(k, way), tirx.ForKind.UNROLLED
                    )
                )

            return tir.seq([self.tiles.load(tile), loop("g", in_tile // written, of_groups)])

        if not tir.is_true(any_lane):
            units = tirx.Select(any_lane, units, tir.zero_like(units))
        if self.tiles.is_empty:
            zero = int_const(0, "int32")
            walk = loop(
                "group", units, lambda g: ways(lambda way: group(_sum(first, g), None, zero, way))
            )
        else:
            walk = loop("tile", units, lambda tile: of_tile(_sum(first, tile)))
        ahead = None if self.tiles.is_empty else self.tiles.begin(first)
        prologue = self.part(self.recurrence.prologue)
        loads = [*self.loads.begin(), *self.begin_lasting(), *self.progressions.begin()]
        before = [prologue, begin, *loads, ahead]
        held = self.tiles.held.begin()
        stmt = tir.seq([*held, when(any_lane, tir.seq(before)), walk, end])
        if self.tiles.is_empty or self.plan.stages > 1:
            return stmt
        # Loads on their way to shared memory pass through registers.
        return for_one_block(stmt)

    def _valid(self, time: Any) -> Any:
        return time < self.recurrence.time.extent

    def _items(self, first: Any, make: Any, step: int = 1) -> list[Any]:
        """``make(item, time)`` for the steps from ``first`` on, every ``step``-th, that exist."""
        count = self.plan.items_per_thread
        steps = [(make(int_const(k, "int32"), first + k), first + k) for k in range(0, count, step)]
        if (tir.as_int(self.recurrence.time.extent) or 1) % count == 0:
            # All steps of a thread exist, or none of them.
            return [when(self._valid(first), tir.seq([stmt for stmt, _ in steps]))]
        return [when(self._valid(time), stmt) for stmt, time in steps]

    def _before(self, mine: Any, tile: Any, start: Any) -> Any:
        def of_item(k: Any, time: Any) -> Any:
            before = self.with_lasting(in_few_instructions(tir.seq(self.split.before)))
            statement = self.replica.instantiate(before, None, time)
            stmts = [self.staged.use(statement, k, time)]
            stmts += self._kept_items(
                lambda new, at, items: tirx.BufferStore(items, tirx.BufferLoad(new, at), [k, *at])
            )
            return tir.seq(stmts)

        loads: list[Any] = []
        if self.staged.loads_alone:
            loads = self._items(mine, self.staged.fill, self.staged.group)
        taken = self.tiles.take(self.staged.by_block, tile, start)
        return tir.seq([*loads, *taken, *self._items(mine, of_item)])

    def _kept_items(self, make: Any) -> list[Any]:
        """``make(register, cell, items)`` for all cells of what is kept of every item."""
        return [self.for_cells(old, partial(make, items=i)) for old, i in self.item_registers]

    def _send(self, in_steps: bool) -> list[Any]:
        """Leave what the states need of the thread's own steps, where that is in shared memory."""
        if self.exchange.is_empty:
            return []

        def sent(load: Any, value: Any) -> Any:
            return self.progressions.sent(load, value) if in_steps else value

        def of_register(old: Var, items_of_old: Var, cell: list[Any]) -> Any:
            load = tirx.BufferLoad(old, cell)
            return lambda k: sent(
                load, tirx.BufferLoad(items_of_old, [int_const(k, "int32"), *cell])
            )

        def of_load(staged: Any) -> Any:
            slots = staged.vectors.slot
            return lambda k: sent(
                staged.access,
                tirx.BufferLoad(staged.registers, [slots(int_const(k, "int32"))]),
            )

        # What the sums leave says that all have what was sent before.
        read = [] if self.sums.are_left else [wait(WARP)]

        values = [
            of_register(old, items, cell) for old, items in self.sent for cell in cells_of(old)
        ]
        values += [of_load(staged) for staged, _ in self.current]
        return [*read, *self.exchange.send(values)]

    def _steps(self, first: Any, tile: Any, within: Any, in_steps: bool) -> Any:
        """All steps of the group: those of one owner after the other.

        With ``in_steps`` for exponents in equal steps; see ``progressions``.
        """
        items, together = self.plan.items_per_thread, self.sums.together

        def of_owner(q: Any, u: int) -> Any:
            start = first + as_dtype(q, tir.dtype_of(first)) * items
            first_step = within + as_dtype(q, "int32") * items

            def of_item(item: Any, time: Any) -> Any:
                k = int(item)
                staged = self.tiles.fill(k, tile, first_step + item)
                loads = [*self.loads.fill(k, time), *staged]
                return self._step(q, u * items + k, time, loads, in_steps)

            return tir.seq([*self.exchange.receive(q), *self._items(start, of_item)])

        def of_owners(block: Any) -> Any:
            stmts: list[Any] = []
            for u in range(together):
                q = block * together + u
                stmts.append(of_owner(q, u))
                stmts += self.sums.exchanged(u + 1)
            return tir.seq([*stmts, *self.sums.totals(block)])

        return loop("block", self.plan.threads_per_lane // together, of_owners)

    def _step(self, q: Any, owned: int, time: Any, loads: list[Any], in_steps: bool) -> Any:
        """A step of owner ``q``, ``owned`` of the owners together, and its sums over states."""
        k = owned % self.plan.items_per_thread
        stmts: list[Any] = []
        number = 0
        for old, items_of_old in self.sent:
            new = self.replica.register(old)
            for at in cells_of(old):
                value = tirx.BufferLoad(items_of_old, [int_const(k, "int32"), *at])
                stmts.append(tirx.BufferStore(new, self._of_owner(value, q, k, number), at))
                number += 1
        for staged, now in self.current:
            value = tirx.BufferLoad(staged.registers, [int_const(staged.vectors.slot(k), "int32")])
            stmts.append(tirx.BufferStore(now, self._of_owner(value, q, k, number), [0]))
            number += 1
        for cell in self.split.sums:
            stmts.append(self.set_sum(cell, tirx.const(0, tir.dtype_of(cell))))
        stmts += [self._loop(part, k, time, in_steps) for part in self.split.loops]
        for number, cell in enumerate(self.split.sums):
            stmts.append(self.sums.hold(number, owned, self.replica.instantiate(cell)))
        return tir.seq([*loads, step(tir.seq(stmts))])

    def _of_owner(self, value: Any, q: Any, k: int, number: int) -> Any:
        """The value that thread ``q`` of the lane has, the ``number``-th of its item ``k``."""
        width = self.plan.threads_per_lane
        if not self.exchange.is_empty:
            return self.exchange.value(number, k, tir.dtype_of(value))
        return value if width == 1 else shuffled("", value, q, width)

    def _loop(self, part: tirx.For, k: int, time: Any, in_steps: bool) -> Any:
        """A loop over the thread's states, what it loads taken from registers."""
        dims = self.split.dims.copy()
        registers = self.states.copy()
        for buffer in (*self.loads.buffers, *self.tiles.registers):
            dims[buffer], registers[buffer] = 0, buffer

        def on_load(load: TensorLoad) -> Any:
            for staged, now in self.current:
                if tir.structurally_equal(load, staged.access):
                    return cell_of(now)
            return self.loads.read(load, part.loop_var, k)

        split = replace(self.split, dims=dims)
        stmt = split.part(tir.map_loads(part, on_load), self.owner, self.states_each, registers)
        if in_steps:
            stmt = self.progressions.applied(stmt)
        else:
            stmt = with_share(stmt, k, self.plan.exp_share, self.pool)
        return self.replica.instantiate(stmt, None, time)

    def _after(self, mine: Any) -> Any:
        def of_item(k: Any, time: Any) -> Any:
            stmts = self._kept_items(
                lambda new, at, items: tirx.BufferStore(new, tirx.BufferLoad(items, [k, *at]), at)
            )
            for cell, result in zip(self.split.sums, self.sums.results, strict=True):
                total = tirx.BufferLoad(result, [k])
                if not self.split.begins_at_zero(cell):
                    total = self.replica.instantiate(cell) + total
                stmts.append(self.set_sum(cell, total))
            after = self.with_lasting(in_few_instructions(tir.seq(self.split.after)))
            statement = self.replica.instantiate(after, None, time)
            stmts.append(self.staged.use(statement, k, time))
            return tir.seq(stmts)

        stores: list[Any] = []
        if self.staged.stores:
            stores = self._items(mine, self.staged.empty, self.staged.group)
        return tir.seq([*self._items(mine, of_item), *stores])


def _sum(first: Any, number: Any) -> Any:
    return number if tir.as_int(first) == 0 else first + number
