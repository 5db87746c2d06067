"""Steps of time as the cells of a vector: a scan inside registers by shuffles.

Work and span for V steps: V log V combinations as log V vector operations, of which the next
vector waits for one application to the carry alone. (The scan of W. D. Hillis and G. L. Steele,
"Data parallel algorithms", CACM 29 (12), 1986, over the cells of a vector.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra.base import Combine, Element
from tvm_scan.algebra.literal import is_float
from tvm_scan.recurrence import Group, Recurrence
from tvm_scan.schedules.common.branches import branches, choices_as_selects, readable
from tvm_scan.schedules.common.elements import Elements, store_all
from tvm_scan.schedules.common.ir import as_dtype, int_const, loop, when, whole_parts
from tvm_scan.schedules.common.lanes import clear
from tvm_scan.schedules.common.polynomials import Pool
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.cpu.cell_scan import CellScan
from tvm_scan.schedules.cpu.lane_streams import asked_for, loads_along_time
from tvm_scan.schedules.cpu.line_stores import HeldStores, flush, hold_stores
from tvm_scan.schedules.cpu.plans import PAGE_BYTES, CpuPlan
from tvm_scan.schedules.cpu.reversed_rows import ReversedRows
from tvm_scan.schedules.cpu.time_reduction import BATCH, TimeReduction
from tvm_scan.schedules.cpu.time_runs import TimeRuns
from tvm_scan.schedules.cpu.vector_math import hoist_first_iteration, with_vector_math
from tvm_scan.schedules.cpu.vector_values import Vector, all_cells, on_vectors

#: Cells of a small vector.
_PACKED = 2


class TimeVector:
    """Steps of one lane, ``width`` at a time; the carry is in the registers of ``single``.

    Parameters
    ----------
    recurrence : Recurrence
        One level, carries of one cell.
    lanes : sequence of Expr
        Value of each lane variable.
    plan : CpuPlan
        ``time_vector`` is the width.
    ahead : Expr, optional
        Steps ahead of which a plan with ``prefetch`` asks for lines, beside its pages.

    Attributes
    ----------
    single : Replica
        Registers of single steps, which hold the carry before and after.
    """

    def __init__(
        self, recurrence: Recurrence, lanes: list[Any], plan: CpuPlan, ahead: Any = None
    ) -> None:
        self.recurrence, self.plan, self.ahead = recurrence, plan, ahead
        self.single = Replica(recurrence, lanes, unroll=False)
        self.width = plan.time_vector
        self.held = HeldStores(recurrence, ())
        if plan.nontemporal:
            self.held = hold_stores(recurrence, recurrence.time.var, self.width)
        self.many = Replica(
            self.held.recurrence, lanes, unroll=False, width=self.width, tag="_v", moves=False
        )
        self.pool = Pool(self.width)
        self.dtype = tir.dtype_of(recurrence.time.var)
        self.elements = CellScan(recurrence, "v", range(self.width))
        #: Carries of integers, in every cell of a small vector: LLVM would pack a scalar with the
        #: number of the block, whose addresses would wait for the carry of the block before.
        self.packed = {
            c: Vector(f"p{c}", _PACKED, carry.dtype)
            for c, carry in enumerate(recurrence.carries)
            if all(not is_float(other.dtype) for other in recurrence.carries)
        }
        self.runs = TimeRuns(self) if plan.time_runs else None
        self.reversed_rows = ReversedRows(self.width)
        self.batches: TimeReduction | None = None
        self._readable = readable(recurrence)

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        return [*self.single.buffers, *self._vectors]

    @property
    def _vectors(self) -> list[Var]:
        scans = [*self.elements.buffers, *(self.runs.buffers if self.runs else [])]
        rows = self.reversed_rows.buffers
        packed = [vector.buffer for vector in self.packed.values()]
        several = [*self.many.buffers, *self.pool.buffers, *scans, *rows, *packed]
        return [*several, *(self.batches.buffers if self.batches else [])]

    def begin(self) -> Any:
        """Clear the registers before the first vector: TVM would shrink those not seen outside."""
        return clear(self._vectors)

    def scan(self, start: Any, extent: Any, beside: Callable[[Any], Any] | None = None) -> Any:
        """``extent`` steps from ``start`` on: vectors of them, then the rest one by one.

        What stands ``beside`` a batch of as many vectors as a reduction takes at once is given its
        number, and comes before it.
        """
        width = int_const(self.width, extent)
        full, done, rest = whole_parts(extent, width)

        def vectors(first: Any, count: Any) -> Any:
            return loop("n", count, lambda n: self.block(start + (first + n) * width))

        if beside is None:
            blocks = vectors(int_const(0, extent), full)
        else:
            batch = int_const(BATCH, extent)
            batches, inside, left = whole_parts(full, batch)

            def several(b: Any) -> Any:
                return tir.seq([beside(b), vectors(b * batch, batch)])

            blocks = tir.seq([loop("b", batches, several), vectors(inside, left)])
        single = loop("i", rest, lambda i: self.single.step(start + done + i))
        packed = [
            vector.store(tirx.Broadcast(self.single.get_carry(c, []), _PACKED))
            for c, vector in self.packed.items()
        ]
        unpacked = [self.single.set_carry(c, [], v.at(0)) for c, v in self.packed.items()]
        # Registers that are no carries are as the last step of the last vector left them.
        last = self.single.take(self.many, tirx.IntImm(self.dtype, self.width - 1))
        if last is not None and tir.as_int(full) is None:
            last = when(full > int_const(0, full), last)
        return tir.seq([*packed, blocks, *unpacked, last, single])

    def carry(self, c: int) -> Any:
        """Value of a carry before a block."""
        return self.packed[c].at(0) if self.packed else self.single.get_carry(c, [])

    def reduction(
        self, held: Elements, lead: list[Any], start: Any, extent: Any
    ) -> tuple[Any, Callable[[Any], Any], Any]:
        """Make ``held[lead]`` the element of itself and ``extent`` steps from ``start`` on.

        Vectors are reduced by halves, even steps with the odd ones after them: of V steps, V - 1
        combinations in about V / width + log width operations.

        Returns
        -------
        Expr, callable, Stmt
            How many batches of vectors, a statement for the batch of a number, and what is left.
        """
        batches = self.batches = TimeReduction(self)
        batch = int_const(batches.steps, extent)
        full, done, rest = whole_parts(extent, batch)
        single = loop(
            "i", rest, lambda i: self.single.extend(held, lead, start + done + i, flush=True)
        )
        return full, lambda n: batches.reduce(held, lead, start + n * batch), single

    def block(self, first: Any) -> Any:
        """Steps ``first`` to ``first + width - 1``."""
        befores = [
            part for i, g in enumerate(self.recurrence.groups) for part in self._scan(i, g, first)
        ]
        body = self._across(lambda v: self.many.step(first + v, v))

        def index_at(index: Any, v: Any) -> Any:
            return self.many.instantiate(index, None, first + as_dtype(v, self.dtype))

        stored = flush(self.held, self.many, self.width, index_at)
        return tir.seq([*self.asked(first, self.width), *befores, body, stored])

    def asked(self, first: Any, steps: int) -> list[Any]:
        """Ask for the lines of so many steps, some pages after these or ``ahead`` steps."""
        out = []
        for load in loads_along_time(self.recurrence) if self.plan.prefetch else ():
            size = tir.byte_size(tir.dtype_of(load.source))
            far = int_const(self.plan.prefetch * PAGE_BYTES // size, first)
            if self.ahead is not None:
                far = tir.simplify(far + self.ahead)
            for k in range(0, steps, tir.LINE_BYTES // size):
                time = first + tir.simplify(far + int_const(k, first))
                at = [self.single.instantiate(i, None, time) for i in load.indices]
                out.append(asked_for(load.source, at))
        return out

    def _across(self, make: Any) -> Any:
        """``make`` for every step of a vector."""

        def code_of(v: Any) -> Any:
            known = [*self.many.buffers, *self._readable]
            return choices_as_selects(hoist_first_iteration(make(v)), known)

        if branches(code_of(tirx.Var("v", self.dtype))):
            return loop("v", self.width, make, ForKind.SERIAL, self.dtype)

        before: list[Any] = []
        after: list[Any] = []

        def vector(v: Any) -> Any:
            loads, code, stores = self.reversed_rows.taken_out(code_of(v), v)
            before.extend(loads)
            after.extend(stores)
            if self.plan.library_math:
                return code
            return with_vector_math(code, self.pool, v, ldexp=self.plan.ldexp)

        steps = loop("v", self.width, vector, ForKind.VECTORIZED, self.dtype)
        return tir.seq([*before, steps, *after])

    def lift(self, i: int, parts: list[Vector], first: Any) -> Any:
        """Elements of the steps of a vector."""

        def lifted(v: Any) -> Any:
            values = self.many.lift(i, [], first + v, v)
            return tir.seq(
                [tirx.BufferStore(p.buffer, x, [v]) for p, x in zip(parts, values, strict=True)]
            )

        return self._across(lifted)

    def _scan(self, i: int, group: Group, first: Any) -> list[Any]:
        """Elements of the steps, their scan, the carries before each step and after the last."""
        algebra, scan = group.algebra, self.runs or self.elements
        elements = self.elements.sets[i][0]
        lifted = self.lift(i, elements, first)
        levels, scanned = scan.levels(i, elements, algebra.combine)
        total = tuple(part.at(part.width - 1) for part in scanned)

        def handed(apply: Combine) -> list[Any]:
            if self.runs:
                befores = self.runs.befores(i, group, scanned, apply)
            else:
                befores = self._befores(group, scanned, apply)
            return [*befores, self._after(group, total, apply)]

        careful = [lifted, *levels, *handed(algebra.apply)]
        plain = algebra.plainly()
        if plain is None:
            return careful
        levelled, usual = scan.levels(i, elements, plain.combine)[0], handed(plain.apply)
        if plain.exact is None:
            return [lifted, *levelled, *usual]
        # One test of the whole vector for the rare one that needs care.
        tested: list[Any] = []
        if plain.each is None:
            everywhere = plain.exact(total)
        else:  # what the test alone reads is not scanned
            tested, everywhere = all_cells(plain.each, elements)
        rare = tirx.IfThenElse(everywhere, tir.seq(usual), tir.seq(careful))
        return [tir.fresh_copy(lifted), *tested, *levelled, rare]

    def _befores(self, group: Group, scanned: list[Vector], apply: Combine) -> list[Any]:
        """The carries before every step."""
        carries = [self.carry(c) for c in group.carries]
        out, befores = self.elements.befores(scanned, carries, apply)
        for c, before in zip(group.carries, befores, strict=True):
            buffer, cell = self.many.carry(c, [], tirx.Ramp(0, 1, self.width))
            out.append(tirx.BufferStore(buffer, before, cell))
        return out

    def _after(self, group: Group, total: Element, apply: Combine) -> Any:
        """The carries after the last step, which the element of all steps makes."""
        if self.packed:
            vectors = [self.packed[c] for c in group.carries]
            element = [tirx.Broadcast(part, _PACKED) for part in total]
            binds, values = on_vectors(apply, element, [v.load() for v in vectors], _PACKED)
            whole = tirx.Ramp(0, 1, _PACKED)
            return tir.seq([*binds, store_all([(v.buffer, [whole]) for v in vectors], values)])
        carries = tuple(self.single.get_carry(c, []) for c in group.carries)
        targets = [self.single.carry(c, []) for c in group.carries]
        return store_all(targets, apply(total, carries))
