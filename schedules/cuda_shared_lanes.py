"""CUDA builder: several threads share the states of a lane and walk time together.

For S threads per lane and K items per thread, the threads of a lane take S K steps at a time.
Each thread makes the part of K steps that does not concern the states (step sizes, gates, the
loads and stores of whole sequences), once for all. Then all of them walk the S K steps, each one
over its own states: what a step needs comes from the thread that made it by a shuffle, and what
it leaves are sums over the states, by log2(S) shuffles. No shared memory, no barrier.

Cost of a lane's step: its exponentials and multiply-adds once, shuffles S (values + log2(S)).
Span: the length, as in ``lanes``. Memory: inputs and outputs once; what the lanes of a block
share (B and C of a selective scan) comes from the first-level cache but for the first lane.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.cuda_exponentials import in_base_two, with_share
from tvm_scan.schedules.ir import Kernel, as_dtype, each, int_const, local, loop, threads_over, when
from tvm_scan.schedules.lanes import decode_lanes, lane_count
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.polynomials import Pool
from tvm_scan.schedules.replica import Replica
from tvm_scan.schedules.result import Built
from tvm_scan.schedules.staging import StagedItems, steady_loads
from tvm_scan.schedules.state_split import split_states
from tvm_scan.schedules.vector_access import VectorAccess, vector_access
from tvm_scan.schedules.warp_tree import shuffled

__all__ = ["build_shared_lanes"]


def build_shared_lanes(recurrence: Recurrence, plan: ScanPlan) -> Built:
    """``plan.threads_per_lane`` threads per lane; see the module."""
    rows = lane_count(recurrence)
    slots = tir.simplify(rows * int_const(plan.threads_per_lane, rows))
    slot = tirx.Var("v_slot", tir.dtype_of(rows))
    threads = int_const(plan.threads_per_lane, slot)
    # Every thread takes part in the shuffles: those beyond the last lane repeat it.
    last = tirx.Max(rows - int_const(1, rows), tir.zero_like(rows))
    row = tirx.Min(slot // threads, last)
    owner = as_dtype(slot % threads, "int32")
    walk = _Walk(recurrence, plan, decode_lanes(recurrence, row), owner)

    def kernel(inside: Any) -> Kernel:
        code = when(tir.simplify(rows > tir.zero_like(rows)), walk.code(inside))
        return Kernel("scan_shared", recurrence.inputs, recurrence.outputs, code, walk.buffers)

    return Built([threads_over(kernel, slot, slots, plan.threads_per_block)], [])


class _Walk:
    """One thread's part of a lane."""

    def __init__(
        self, recurrence: Recurrence, plan: ScanPlan, lanes: list[Any], owner: Any
    ) -> None:
        self.recurrence, self.plan, self.owner = recurrence, plan, owner
        split = split_states(recurrence)
        self.base_two = in_base_two(split.loops, recurrence)
        self.split, self.pool = replace(split, loops=self.base_two.loops), Pool(1)
        self.own = self.split.states // plan.threads_per_lane
        self.replica = Replica(recurrence, lanes, unroll=True)
        items, time = plan.items_per_thread, recurrence.time.var
        self.states = tir.VarMap()
        for old, dim in self.split.dims.items():
            shape = [self.own if i == dim else e for i, e in enumerate(tir.shape_of(old))]
            self.states[old] = local(f"{old.name}_own", shape, tir.dtype_of(old))
        counters = [part.loop_var for part in self.split.loops]
        outside = tir.seq([*self.split.before, *self.split.after])
        found = steady_loads(outside, recurrence, [time])
        for part in self.split.loops:
            for load in steady_loads(part.body, recurrence, [time]):
                if not any(tir.structurally_equal(load, other) for other in found):
                    found.append(load)
        self.staged = StagedItems(recurrence, self.replica, items, plan.vector_loads, found)
        # What the loops read that the steps' owners know: registers, and loads.
        read = tir.buffers_loaded(tir.seq(self.split.loops))
        written = tir.buffers_stored(tir.seq(self.split.before)).keys()
        self.kept = [(old, self._kept(old, items)) for old in written]
        sums = tir.VarMap((cell.source, True) for cell in self.split.sums)
        self.sent = [(o, k) for o, k in self.kept if o in read and o not in sums]
        # Of loads in the loops: those at every step and state, and those at every state.
        self.current = [
            (s, local(f"{s.access.source.name}_now", [1], tir.dtype_of(s.access)))
            for s in self.staged.loads
            if s.access.source in read
        ]
        self.timed: list[tuple[TensorLoad, Var, VectorAccess]] = []
        self.fixed: list[tuple[TensorLoad, Var]] = []
        for part, counter in zip(self.split.loops, counters, strict=True):
            for load in steady_loads(part.body, recurrence, [time, counter]):
                vectors = vector_access(load.source, list(load.indices), recurrence, items)
                if plan.vector_loads and vectors.lanes > 1:
                    name, shape = f"{load.source.name}_step", [self.own, vectors.lanes]
                    self.timed.append((load, local(name, shape, tir.dtype_of(load)), vectors))
            for load in steady_loads(part.body, recurrence, [counter], free_of=[time]):
                name = f"{load.source.name}_fixed"
                self.fixed.append((load, local(name, [self.own], tir.dtype_of(load))))
        self.results = [
            local(f"{cell.source.name}_sum", [items], tir.dtype_of(cell))
            for cell in self.split.sums
        ]

    def _kept(self, old: Var, items: int) -> Var:
        return local(f"{old.name}_kept", [items, *tir.shape_of(old)], tir.dtype_of(old))

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        states = [new for _, new in self.states.items()]
        whole = [self.replica._registers[old] for old, _ in self.split.dims.items()]
        rest = [b for b in self.replica.buffers if not any(b.same_as(w) for w in whole)]
        kept = [buffer for _, buffer in self.kept]
        now = [buffer for _, buffer in self.current]
        loaded = [entry[1] for entry in (*self.timed, *self.fixed)]
        return [
            *states,
            *rest,
            *self.pool.buffers,
            *kept,
            *now,
            *loaded,
            *self.results,
            *self.staged.buffers,
        ]

    def _part(self, stmt: Any) -> Any:
        """A part of the recurrence over the thread's own states."""
        if stmt is None:
            return None
        return self.replica.place(self.split.part(stmt, self.owner, self.own, self.states))

    def code(self, inside: Any) -> Any:
        """All of a lane: ``inside`` says that the thread's lane exists, and is not repeated."""
        r, plan = self.recurrence, self.plan
        extent = r.time.extent
        together = int_const(plan.threads_per_lane * plan.items_per_thread, extent)
        groups = tir.simplify((extent + together - 1) // together)

        def group(number: Any) -> Any:
            first = number * together
            mine = first + as_dtype(self.owner, tir.dtype_of(extent)) * int_const(
                plan.items_per_thread, extent
            )
            return tir.seq(
                [self._before(mine), self._steps(first), when(inside, self._after(mine))]
            )

        return tir.seq(
            [
                self._part(r.prologue),
                self._part(r.start),
                *(self._fixed_load(load, buffer) for load, buffer in self.fixed),
                loop("group", groups, group),
                when(inside, self._part(r.finish)) if r.finish is not None else None,
            ]
        )

    def _fixed_load(self, load: TensorLoad, buffer: Var) -> Any:
        return loop("s", self.own, lambda s: self._copied(load, buffer, [s], s, None, None))

    def _copied(
        self, load: TensorLoad, buffer: Var, to: list[Any], s: Any, time: Any, v: Any
    ) -> Any:
        """``buffer[to] = load`` for the thread's state ``s``; a whole vector if ``v`` says how."""
        counter = next(
            part.loop_var for part in self.split.loops if tir.contains_var(load, [part.loop_var])
        )
        dtype = tir.dtype_of(counter)
        state = as_dtype(self.owner, dtype) * int_const(self.own, dtype) + as_dtype(s, dtype)
        table = tir.VarMap([(counter, state)])
        indices = [
            self.replica.place(tir.substitute(index, table), None, time) for index in load.indices
        ]
        value = tirx.BufferLoad(load.source, v.ramp(indices) if v else indices)
        value = value if v else self.base_two.scale(load, value)
        return tirx.BufferStore(buffer, value, to)

    def _valid(self, time: Any) -> Any:
        return time < self.recurrence.time.extent

    def _items(self, first: Any, make: Any) -> Any:
        """``make(item, time)`` for the thread's own steps, those that exist."""

        def one(k: int) -> Any:
            time = first + int_const(k, first)
            return when(self._valid(time), make(int_const(k, "int32"), time))

        return [one(k) for k in range(self.plan.items_per_thread)]

    def _groups(self, first: Any, make: Any) -> list[Any]:
        """``make(item, time)`` for each group of items that vectors move together."""
        step = self.staged.group

        def one(k: int) -> Any:
            time = first + int_const(k, first)
            return when(self._valid(time), make(int_const(k, "int32"), time))

        return [one(k) for k in range(0, self.plan.items_per_thread, step)]

    def _registers(self, old: Var, make: Any) -> Any:
        """``make(register, place)`` for every cell of a register array."""
        new = self.replica._registers[old]
        shape = [int(e) for e in tir.shape_of(new)]
        return each(shape, lambda place: make(new, place), True)

    def _before(self, mine: Any) -> Any:
        def one(k: Any, time: Any) -> Any:
            placed = self.replica.place(tir.seq(self.split.before), None, time)
            stmts = [self.staged.use(placed, k, time)]
            for old, kept in self.kept:
                stmts.append(
                    self._registers(
                        old,
                        lambda new, at, kept=kept: tirx.BufferStore(
                            kept, tirx.BufferLoad(new, at), [k, *at]
                        ),
                    )
                )
            return tir.seq(stmts)

        loads = self._groups(mine, self.staged.fill) if self.staged.loads else []
        return tir.seq([*loads, *self._items(mine, one)])

    def _steps(self, first: Any) -> Any:
        """All steps of the group: those of one owner after the other."""
        items = self.plan.items_per_thread

        def of_owner(q: Any) -> Any:
            start = first + as_dtype(q, tir.dtype_of(first)) * int_const(items, first)
            return tir.seq([self._step(q, k, start + int_const(k, first)) for k in range(items)])

        return loop("q", self.plan.threads_per_lane, of_owner)

    def _step(self, q: Any, k: int, time: Any) -> Any:
        stmts: list[Any] = []
        for load, buffer, vectors in self.timed:
            if k % vectors.lanes == 0:
                stmts.append(self._vector_load(load, buffer, time, vectors))
        width = self.plan.threads_per_lane
        for old, kept in self.sent:

            def receive(new: Var, at: list[Any], kept: Var = kept) -> Any:
                value = tirx.BufferLoad(kept, [int_const(k, "int32"), *at])
                return tirx.BufferStore(new, shuffled("", value, q, width), at)

            stmts.append(self._registers(old, receive))
        for staged, now in self.current:
            value = tirx.BufferLoad(staged.registers, [int_const(staged.vectors.slot(k), "int32")])
            stmts.append(tirx.BufferStore(now, shuffled("", value, q, width), [0]))
        for cell in self.split.sums:
            stmts.append(self._set_sum(cell, tirx.const(0, tir.dtype_of(cell))))
        stmts += [self._loop(part, k, time) for part in self.split.loops]
        for cell, result in zip(self.split.sums, self.results, strict=True):
            distance = 1
            while distance < width:
                part = self.replica.place(cell)
                stmts.append(self._set_sum(cell, part + shuffled("_xor", part, distance)))
                distance *= 2
            keep = tirx.BufferStore(result, self.replica.place(cell), [int_const(k, "int32")])
            stmts.append(tirx.IfThenElse(tirx.EQ(self.owner, q), keep, None))
        return when(self._valid(time), tir.seq(stmts))

    def _vector_load(self, load: TensorLoad, buffer: Var, time: Any, vectors: VectorAccess) -> Any:
        def one(s: Any) -> Any:
            zero = int_const(0, "int32")
            place = tirx.Ramp(zero, int_const(1, zero), vectors.lanes)
            return self._copied(load, buffer, [s, place], s, time, vectors)

        return loop("s", self.own, one, tirx.ForKind.UNROLLED)

    def _set_sum(self, cell: TensorLoad, value: Any) -> Any:
        register = self.replica._registers[cell.source]
        return tirx.BufferStore(register, value, list(cell.indices))

    def _loop(self, part: tirx.For, k: int, time: Any) -> Any:
        """A loop over the thread's states, what it loads taken from registers."""
        dims = self.split.dims.copy()
        registers = self.states.copy()
        for buffer in (*(e[1] for e in self.timed), *(e[1] for e in self.fixed)):
            dims[buffer], registers[buffer] = 0, buffer

        def on_load(load: TensorLoad) -> Any:
            for staged, now in self.current:
                if tir.structurally_equal(load, staged.access):
                    return tirx.BufferLoad(now, [int_const(0, "int32")])
            for timed, buffer, vectors in self.timed:
                if tir.structurally_equal(load, timed):
                    slot = int_const(vectors.slot(k) % vectors.lanes, "int32")
                    return tirx.BufferLoad(buffer, [part.loop_var, slot])
            for fixed, buffer in self.fixed:
                if tir.structurally_equal(load, fixed):
                    return tirx.BufferLoad(buffer, [part.loop_var])
            return load

        split = self.split.with_dims(dims)
        stmt = split.part(tir.map_loads(part, on_load), self.owner, self.own, registers)
        stmt = with_share(stmt, k, self.plan.exp_share, self.pool)
        return self.replica.place(stmt, None, time)

    def _after(self, mine: Any) -> Any:
        def one(k: Any, time: Any) -> Any:
            stmts: list[Any] = []
            for old, kept in self.kept:
                stmts.append(
                    self._registers(
                        old,
                        lambda new, at, kept=kept: tirx.BufferStore(
                            new, tirx.BufferLoad(kept, [k, *at]), at
                        ),
                    )
                )
            for cell, result in zip(self.split.sums, self.results, strict=True):
                total = self.replica.place(cell) + tirx.BufferLoad(result, [k])
                stmts.append(self._set_sum(cell, total))
            placed = self.replica.place(tir.seq(self.split.after), None, time)
            stmts.append(self.staged.use(placed, k, time))
            return tir.seq(stmts)

        stores = self._groups(mine, self.staged.empty) if self.staged.stores else []
        return tir.seq([*self._items(mine, one), *stores])
