"""Steps of time as the cells of a vector: a scan inside registers by shuffles.

Work and span for V steps: V log V combinations as log V vector operations, of which the next
vector waits for one application to the carry alone. (The scan of W. D. Hillis and G. L. Steele,
"Data parallel algorithms", CACM 29 (12), 1986, over the cells of a vector.)
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra.base import Combine, Element
from tvm_scan.algebra.literal import is_float
from tvm_scan.recurrence import Group, Recurrence
from tvm_scan.schedules.common.branches import branches
from tvm_scan.schedules.common.elements import Elements, store_all
from tvm_scan.schedules.common.ir import as_dtype, int_const, loop
from tvm_scan.schedules.common.lanes import clear
from tvm_scan.schedules.common.polynomials import Pool
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.cpu.line_stores import HeldStores, flush, hold_stores
from tvm_scan.schedules.cpu.plans import CpuPlan
from tvm_scan.schedules.cpu.reversed_rows import ReversedRows
from tvm_scan.schedules.cpu.time_reduction import TimeReduction
from tvm_scan.schedules.cpu.time_runs import TimeRuns
from tvm_scan.schedules.cpu.vector_math import hoist_first_iteration, with_vector_math
from tvm_scan.schedules.cpu.vector_values import Vector, all_on_vectors, blend, names, shift

#: Cells of a small vector.
_PACKED = 2


class TimeVector:
    """Steps of one lane, ``width`` at a time; the carry is in the registers of a ``Replica``.

    Parameters
    ----------
    recurrence : Recurrence
        One level, carries of one cell.
    lanes : sequence of Expr
        Value of each lane variable.
    plan : CpuPlan
        ``time_vector`` is the width.
    single : Replica
        Registers of single steps, which hold the carry before and after.
    """

    def __init__(
        self, recurrence: Recurrence, lanes: list[Any], plan: CpuPlan, single: Replica
    ) -> None:
        self.recurrence, self.plan, self.single = recurrence, plan, single
        self.width = plan.time_vector
        self.held = HeldStores(recurrence, ())
        if plan.nontemporal:
            self.held = hold_stores(recurrence, recurrence.time.var, self.width)
        self.many = Replica(
            self.held.recurrence, lanes, unroll=False, width=self.width, tag="_v", moves=False
        )
        self.pool = Pool(self.width)
        self.dtype = tir.dtype_of(recurrence.time.var)
        # Two sets of elements: a level reads all of one and writes the other.
        self.elements: dict[int, list[list[Vector]]] = {
            i: [
                [Vector(f"v{side}{i}{j}", self.width, d) for j, d in enumerate(g.algebra.dtypes)]
                for side in range(2)
            ]
            for i, g in enumerate(recurrence.groups)
        }
        #: Carries of integers, in every cell of a small vector: LLVM would pack a scalar with the
        #: number of the block, whose addresses would wait for the carry of the block before.
        self.packed = {
            c: Vector(f"p{c}", _PACKED, carry.dtype)
            for c, carry in enumerate(recurrence.carries)
            if all(not is_float(other.dtype) for other in recurrence.carries)
        }
        self.runs = TimeRuns(self) if plan.time_runs else None
        self.reversed_rows = ReversedRows(self.width)
        self.halves: list[Var] = []

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        sides = [side for sides in self.elements.values() for side in sides]
        elements = [e.buffer for side in sides for e in side]
        runs = self.runs.buffers if self.runs else []
        rows = self.reversed_rows.buffers
        packed = [vector.buffer for vector in self.packed.values()]
        several = [*self.many.buffers, *self.pool.buffers, *elements, *runs, *rows, *packed]
        return [*several, *self.halves]

    def begin(self) -> Any:
        """Clear the registers before the first vector: TVM would shrink those not seen outside."""
        return clear(self.buffers)

    def scan(self, start: Any, extent: Any) -> Any:
        """``extent`` steps from ``start`` on: vectors of them, then the rest one by one."""
        width = int_const(self.width, extent)
        full = tir.simplify(extent // width)
        done = tir.simplify(full * width)
        rest = tir.simplify(extent - done)
        blocks = loop("n", full, lambda n: self.block(start + n * width))
        single = loop("i", rest, lambda i: self.single.step(start + done + i))
        packed = [
            vector.store(tirx.Broadcast(self.single.get_carry(c, []), _PACKED))
            for c, vector in self.packed.items()
        ]
        unpacked = [self.single.set_carry(c, [], v.at(0)) for c, v in self.packed.items()]
        keep_last = self._keep_last()
        if tir.as_int(full) is None:
            keep_last = (
                tirx.IfThenElse(full > int_const(0, full), keep_last, None) if keep_last else None
            )
        return tir.seq([*packed, blocks, *unpacked, keep_last, single])

    def carry(self, c: int) -> Any:
        """Value of a carry before a block."""
        return self.packed[c].at(0) if self.packed else self.single.get_carry(c, [])

    def reduce(self, held: Elements, lead: list[Any], start: Any, extent: Any) -> Any:
        """``held[lead]`` followed by ``extent`` steps from ``start`` on.

        Vectors are reduced by halves, even steps with the odd ones after them: of V steps, V - 1
        combinations in about V / width + log width operations.
        """
        batches = TimeReduction(self)
        batch = int_const(batches.steps, extent)
        full = tir.simplify(extent // batch)
        done = tir.simplify(full * batch)
        rest = tir.simplify(extent - done)
        blocks = loop("n", full, lambda n: batches.reduce(held, lead, start + n * batch))
        single = loop(
            "i", rest, lambda i: self.single.extend(held, lead, start + done + i, flush=True)
        )
        self.halves = batches.buffers
        return tir.seq([blocks, single])

    def block(self, first: Any) -> Any:
        """Steps ``first`` to ``first + width - 1``."""
        befores = [
            part for i, g in enumerate(self.recurrence.groups) for part in self._scan(i, g, first)
        ]
        body = self._across(lambda v: self.many.step(first + v, v))

        def index_at(index: Any, v: Any) -> Any:
            return self.many.instantiate(index, None, first + as_dtype(v, self.dtype))

        return tir.seq([*befores, body, flush(self.held, self.many, self.width, index_at)])

    def _across(self, make: Any) -> Any:
        """``make`` for every step of a vector."""
        probe = hoist_first_iteration(make(tirx.Var("v", self.dtype)))
        if branches(probe):
            return loop("v", self.width, make, ForKind.SERIAL, self.dtype)

        before: list[Any] = []
        after: list[Any] = []

        def vector(v: Any) -> Any:
            loads, code, stores = self.reversed_rows.taken_out(hoist_first_iteration(make(v)), v)
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
        algebra, runs = group.algebra, self.runs
        read, write = self.elements[i]
        levels = self.width.bit_length() - 1
        last = write if levels % 2 else read
        lifted = self.lift(i, read, first)
        total = runs.last(i) if runs else tuple(element.at(self.width - 1) for element in last)

        def scanned(combine: Combine) -> list[Any]:
            return runs.levels(i, group, read, combine) if runs else self._levels(i, group, combine)

        def handed(apply: Combine) -> list[Any]:
            befores = runs.befores(i, group, apply) if runs else self._befores(group, last, apply)
            return [*befores, self._after(group, total, apply)]

        careful = [lifted, *scanned(algebra.combine), *handed(algebra.apply)]
        plain = algebra.plainly()
        if plain is None:
            return careful
        levelled, usual = scanned(plain.combine), handed(plain.apply)
        if plain.exact is None:
            return [lifted, *levelled, *usual]
        # One test of the whole vector for the rare one that needs care.
        everywhere = plain.exact(total)
        rare = tirx.IfThenElse(everywhere, tir.seq(usual), tir.seq(careful))
        return [tir.fresh_copy(lifted), *levelled, rare]

    def _before(self, element: list[Vector], by: int) -> list[Any]:
        """Cell ``v - by`` in cell ``v``; the first cells are any."""
        return [shift(part.load(), by, self.width) for part in element]

    def _levels(self, i: int, group: Group, combine: Combine) -> list[Any]:
        """The scan of the elements, from one set to the other and back.

        The cells that no earlier one meets are kept by a blend.
        """
        width = self.width
        read, write = self.elements[i]
        left, right, _ = names(group.algebra, [])
        combined = combine(left, right)
        out = []
        by = 1
        while by < width:
            vectors = [e.load() for e in read]
            table = tir.VarMap(zip(right, vectors, strict=True))
            for var, vector in zip(left, self._before(read, by), strict=True):
                table[var] = vector
            binds, scanned = all_on_vectors(combined, table, width)
            out += binds
            for target, vector, value in zip(write, vectors, scanned, strict=True):
                out.append(target.store(blend(vector, value, by, width)))
            read, write = write, read
            by *= 2
        return out

    def _befores(self, group: Group, last: list[Vector], apply: Combine) -> list[Any]:
        """The carries before every step."""
        width = self.width
        dtypes = [self.recurrence.carries[c].dtype for c in group.carries]
        left, _, old = names(group.algebra, dtypes)
        carries = [self.carry(c) for c in group.carries]
        table = tir.VarMap((o, tirx.Broadcast(c, width)) for o, c in zip(old, carries, strict=True))
        for var, vector in zip(left, self._before(last, 1), strict=True):
            table[var] = vector
        out, befores = all_on_vectors(apply(left, old), table, width)
        for c, carry, value in zip(group.carries, carries, befores, strict=True):
            before = blend(tirx.Broadcast(carry, width), value, 1, width)
            buffer, cell = self.many.carry(c, [], tirx.Ramp(0, 1, width))
            out.append(tirx.BufferStore(buffer, before, cell))
        return out

    def _after(self, group: Group, total: Element, apply: Combine) -> Any:
        """The carries after the last step, which the element of all steps makes."""
        if self.packed:
            dtypes = [self.recurrence.carries[c].dtype for c in group.carries]
            left, _, old = names(group.algebra, dtypes)
            vectors = [self.packed[c] for c in group.carries]
            table = tir.VarMap(zip(left, (tirx.Broadcast(e, _PACKED) for e in total), strict=True))
            for var, vector in zip(old, vectors, strict=True):
                table[var] = vector.load()
            binds, values = all_on_vectors(apply(left, old), table, _PACKED)
            whole = tirx.Ramp(0, 1, _PACKED)
            return tir.seq([*binds, store_all([(v.buffer, [whole]) for v in vectors], values)])
        carries = tuple(self.single.get_carry(c, []) for c in group.carries)
        targets = [self.single.carry(c, []) for c in group.carries]
        return store_all(targets, apply(total, carries))

    def _keep_last(self) -> Any:
        """Registers that are no carries, as the last step of the last vector left them."""
        return self.single.take(self.many, tirx.IntImm(self.dtype, self.width - 1))
