"""Registers of a thread that shares a lane's states with others; see ``shared_lanes``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import each, local
from tvm_scan.schedules.common.polynomials import Pool
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.state_split import StateSplit
from tvm_scan.schedules.gpu.shared.staging import (
    MAX_STAGED,
    StagedItems,
    loads_beside_states,
    steady_loads,
)
from tvm_scan.schedules.gpu.shared.state_loads import StateLoads
from tvm_scan.schedules.gpu.shared.walk_tiles import WalkTiles
from tvm_scan.schedules.gpu.thread.plans import WalkPlan
from tvm_scan.schedules.gpu.thread.registers import cell_of, set_cell
from tvm_scan.schedules.gpu.walk.exchange import (
    SentItems,
    SharedItems,
    exchange_layout,
    sent_registers,
)
from tvm_scan.schedules.gpu.walk.exponentials import in_base_two
from tvm_scan.schedules.gpu.walk.owner_sums import OwnerSums
from tvm_scan.schedules.gpu.walk.progressions import Progressions


class WalkRegisters:
    """Registers of a thread that walks its part of a lane.

    Parameters
    ----------
    recurrence, plan
        What is walked, and how the threads share it.
    lanes : list of Expr
        The thread's lane.
    owner, slot : Expr, Var
        Number of the thread among those of the lane, and among all those of a chunk of time.
    split : StateSplit
        The parts of the step that are walked: all of them, or those that the states need.
    end : Expr, optional
        Step before which the walk ends, where that is before the last one.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        plan: WalkPlan,
        lanes: list[Any],
        owner: Any,
        slot: Var,
        split: StateSplit,
        end: Any = None,
    ) -> None:
        self.recurrence, self.plan, self.owner = recurrence, plan, owner
        self.base_two = in_base_two(split.loops, recurrence)
        self.split, self.pool = replace(split, loops=self.base_two.loops), Pool(1)
        self.states_each = self.split.states // plan.threads_per_lane
        self.replica = Replica(recurrence, lanes, unroll=True)
        items, time = plan.items_per_thread, recurrence.time.var
        #: The thread's part of every array that the states count.
        self.states = tir.VarMap()
        for old, dim in self.split.dims.items():
            shape = [self.states_each if i == dim else e for i, e in enumerate(tir.shape_of(old))]
            self.states[old] = local(f"{old.name}_own", shape, tir.dtype_of(old))
        exchange = exchange_layout(plan, recurrence, split)
        self.tiles = WalkTiles(recurrence, plan, slot, split, end, exchange.cells)
        self.staged = StagedItems(
            recurrence,
            self.replica,
            items,
            plan.vector_loads,
            loads_beside_states(self.split, recurrence),
            [part for part, _ in self.tiles.streams],
            held=self.tiles.held,
            writes=bool(self.split.after),
        )
        # What the loops read that the steps' owners know: registers, and loads.
        read = tir.buffers_loaded(tir.seq(self.split.loops))
        written = tir.buffers_stored(tir.seq(self.split.before)).keys()
        self.item_registers = [(old, self._item_registers(old, items)) for old in written]
        sent = tir.VarMap((old, True) for old in sent_registers(self.split))
        self.sent = [(old, items) for old, items in self.item_registers if old in sent]
        # Of loads in the loops: those that every state of a step shares.
        self.current = [
            (s, local(f"{s.access.source.name}_now", [1], tir.dtype_of(s.access)))
            for s in self.staged.loads
            if s.access.source in read
        ]
        self.loads = StateLoads(
            recurrence,
            plan,
            self.split,
            self.replica,
            owner,
            self.states_each,
            self.tiles,
            self.base_two.scale,
        )
        #: Loads beside the states' that time does not change, each in a register.
        lasting = steady_loads(self.split.outside, recurrence, [], free_of=[time])
        self.lasting = tir.ExprMap(
            (load, local(f"{load.source.name}_lasting", [1], tir.dtype_of(load)))
            for load in lasting[:MAX_STAGED]
        )
        count = len(exchange.sent)
        self.progressions = Progressions(
            self.base_two, self.loads, self.states_each, plan.threads_per_lane if count else 1
        )
        self.exchange = SentItems(exchange.sent, self.tiles.beside[:count], self.tiles)
        shared = [
            SharedItems(part, region, self.tiles)
            for part, region in zip(exchange.sums, self.tiles.beside[count:], strict=True)
        ]
        self.sums = OwnerSums(self.split.sums, owner, plan.threads_per_lane, items, shared)

    def _item_registers(self, old: Var, items: int) -> Var:
        return local(f"{old.name}_kept", [items, *tir.shape_of(old)], tir.dtype_of(old))

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        states = [new for _, new in self.states.items()]
        split = tir.VarMap((self.replica.register(c.state), True) for c in self.recurrence.carries)
        rest = [b for b in self.replica.buffers if b not in split]
        kept_items = [buffer for _, buffer in self.item_registers]
        now = [buffer for _, buffer in self.current]
        loaded = [*self.loads.buffers, *self.tiles.buffers]
        return [
            *states,
            *rest,
            *self.pool.buffers,
            *self.progressions.buffers,
            *(register for _, register in self.lasting.items()),
            *kept_items,
            *now,
            *loaded,
            *self.exchange.buffers,
            *self.sums.buffers,
            *self.staged.buffers,
        ]

    def begin_lasting(self) -> list[Any]:
        """Load, before the first step, what lasts."""
        return [
            set_cell(register, self.replica.instantiate(load))
            for load, register in self.lasting.items()
        ]

    def with_lasting(self, stmt: Any) -> Any:
        """``stmt`` with those registers in the place of what they hold."""

        def on_load(load: TensorLoad) -> Any:
            register = self.lasting.get(load)
            return load if register is None else cell_of(register)

        return tir.map_loads(stmt, on_load)

    def part(self, stmt: Any) -> Any:
        """A part of the recurrence over the thread's own states."""
        if stmt is None:
            return None
        return self.replica.instantiate(
            self.split.part(stmt, self.owner, self.states_each, self.states)
        )

    def each_state(self, make: Any) -> Any:
        """``make(s)`` for each of the thread's states."""
        return each([self.states_each], lambda index: make(index[0]), True)

    def state(self, s: Any) -> Any:
        """Number in the lane of the thread's state ``s``."""
        return self.owner * self.states_each + s

    def for_cells(self, old: Var, make: Any) -> Any:
        """``make(register, cell)`` for every cell of a register array."""
        new = self.replica.register(old)
        shape = [int(e) for e in tir.shape_of(new)]
        return each(shape, lambda cell: make(new, cell), True)

    def set_sum(self, cell: TensorLoad, value: Any) -> Any:
        """The cell of a sum := ``value``."""
        register = self.replica.register(cell.source)
        return tirx.BufferStore(register, value, list(cell.indices))
