"""Steps of time as the lanes of a vector: a scan inside registers by shuffles.

Work and span for V steps: V log V combinations as log V vector operations, of which the next
vector waits for one application to the carry alone. (The scan of W. D. Hillis and G. L. Steele,
"Data parallel algorithms", CACM 29 (12), 1986, over the lanes of a vector.)
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.algebra.base import Combine
from tvm_scan.recurrence import Group, Recurrence
from tvm_scan.schedules.branches import branches
from tvm_scan.schedules.elements import Elements, store_all
from tvm_scan.schedules.ir import int_const, loop
from tvm_scan.schedules.lanes import clear
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.replica import Replica
from tvm_scan.schedules.vector_math import Pool, hoist_first_iteration, with_vector_math
from tvm_scan.schedules.vector_values import Lanes, blend, names, on_vectors, shift

__all__ = ["TimeVector"]


class TimeVector:
    """Steps of one lane, ``width`` at a time; the carry is in the registers of a ``Replica``.

    Parameters
    ----------
    recurrence : Recurrence
        One stage, carries of one cell.
    lanes : sequence of Expr
        Value of each lane variable.
    plan : ScanPlan
        ``time_vector`` is the width.
    one : Replica
        Registers of single steps, which hold the carry before and after.
    """

    def __init__(
        self, recurrence: Recurrence, lanes: list[Any], plan: ScanPlan, one: Replica
    ) -> None:
        self.recurrence, self.plan, self.one = recurrence, plan, one
        self.width = plan.time_vector
        self.many = Replica(
            recurrence, lanes, unroll=False, width=self.width, tag="_v", moves=False
        )
        self.pool = Pool(self.width)
        self.dtype = tir.dtype_of(recurrence.time.var)
        # Two sets of elements: a level reads all of one and writes the other.
        self.elements: dict[int, list[list[Lanes]]] = {
            i: [
                [Lanes(f"v{side}{i}{j}", self.width, d) for j, d in enumerate(g.algebra.dtypes)]
                for side in range(2)
            ]
            for i, g in enumerate(recurrence.groups)
        }

        self.halves: dict[tuple[int, int], list[Lanes]] = {}

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        sides = [side for sides in self.elements.values() for side in sides]
        elements = [e.buffer for side in (*sides, *self.halves.values()) for e in side]
        return [*self.many.buffers, *self.pool.buffers, *elements]

    def begin(self) -> Any:
        """What must stand before the first vector: TVM would shrink registers not seen outside."""
        return clear(self.buffers)

    def walk(self, start: Any, extent: Any) -> Any:
        """``extent`` steps from ``start`` on: vectors of them, then the rest one by one."""
        width = int_const(self.width, extent)
        full = tir.simplify(extent // width)
        done = tir.simplify(full * width)
        rest = tir.simplify(extent - done)
        blocks = loop("n", full, lambda n: self.block(start + n * width))
        single = loop("i", rest, lambda i: self.one.step(start + done + i))
        kept = self._keep_last()
        if tir.as_int(full) is None:
            kept = tirx.IfThenElse(full > int_const(0, full), kept, None) if kept else None
        return tir.seq([blocks, kept, single])

    def reduce(self, held: Elements, lead: list[Any], start: Any, extent: Any) -> Any:
        """``held[lead]`` followed by ``extent`` steps from ``start`` on.

        A vector is folded by halves, even steps with the odd ones after them: V - 1 combinations
        in log V operations.
        """
        width = int_const(self.width, extent)
        full = tir.simplify(extent // width)
        done = tir.simplify(full * width)
        rest = tir.simplify(extent - done)
        blocks = loop("n", full, lambda n: self._fold(held, lead, start + n * width))
        single = loop(
            "i", rest, lambda i: self.one.extend(held, lead, start + done + i, flush=True)
        )
        return tir.seq([blocks, single])

    def _fold(self, held: Elements, lead: list[Any], first: Any) -> Any:
        out = []
        for i, group in enumerate(self.recurrence.groups):
            algebra = group.algebra
            left, right, _ = names(algebra, [])
            combined = algebra.combine(left, right)
            parts = self.elements[i][0]
            out.append(self._lift(i, parts, first))
            width = self.width
            while width > 2:
                width //= 2
                table = tir.VarMap()
                for parity, variables in enumerate((left, right)):
                    for var, part in zip(variables, parts, strict=True):
                        places = [2 * v + parity for v in range(width)]
                        table[var] = tirx.Shuffle([part.load()], places)
                halves = self.halves.setdefault(
                    (i, width),
                    [Lanes(f"f{width}_{i}{j}", width, d) for j, d in enumerate(algebra.dtypes)],
                )
                for target, value in zip(halves, combined, strict=True):
                    out.append(target.store(on_vectors(value, table, width)))
                parts = halves
            pair = algebra.combine(tuple(p.at(0) for p in parts), tuple(p.at(1) for p in parts))
            total = algebra.flush(algebra.combine(held.load(i, lead, []), pair))
            out.append(held.store(i, lead, [], total))
        return tir.seq(out)

    def block(self, first: Any) -> Any:
        """Steps ``first`` to ``first + width - 1``."""
        befores = [
            part for i, g in enumerate(self.recurrence.groups) for part in self._scan(i, g, first)
        ]
        body = self._across(lambda v: self.many.step(first + v, v))
        return tir.seq([*befores, body])

    def _across(self, make: Any) -> Any:
        """``make`` for every step of a vector."""
        probe = hoist_first_iteration(make(tirx.Var("v", self.dtype)))
        if branches(probe):
            return loop("v", self.width, make, ForKind.SERIAL, self.dtype)

        def vector(v: Any) -> Any:
            code = hoist_first_iteration(make(v))
            if self.plan.library_math:
                return code
            return with_vector_math(code, self.pool, v, ldexp=self.plan.ldexp)

        return loop("v", self.width, vector, ForKind.VECTORIZED, self.dtype)

    def _lift(self, i: int, parts: list[Lanes], first: Any) -> Any:
        """Elements of the steps of a vector."""

        def lifted(v: Any) -> Any:
            values = self.many.lift(i, [], first + v, v)
            return tir.seq(
                [tirx.BufferStore(p.buffer, x, [v]) for p, x in zip(parts, values, strict=True)]
            )

        return self._across(lifted)

    def _scan(self, i: int, group: Group, first: Any) -> list[Any]:
        """Elements of the steps, their scan, the carries before each step and after the last."""
        algebra = group.algebra
        read, write = self.elements[i]
        levels = self.width.bit_length() - 1
        last = write if levels % 2 else read
        lifted = self._lift(i, read, first)
        careful = [
            lifted,
            *self._levels(i, group, algebra.combine),
            *self._hand_over(group, last, algebra.apply),
        ]
        plainly = algebra.plainly()
        if plainly is None:
            return careful
        combine, apply, exact = plainly
        left, _, _ = names(algebra, [])
        table = tir.VarMap((v, e.load()) for v, e in zip(left, last, strict=True))
        # One test of all lanes for the rare vector that needs care.
        everywhere = tirx.call_llvm_pure_intrin(
            "bool", "llvm.vector.reduce.and", on_vectors(exact(left), table, self.width)
        )
        usual = tir.seq(self._hand_over(group, last, apply))
        return [
            tir.fresh_copy(lifted),
            *self._levels(i, group, combine),
            tirx.IfThenElse(everywhere, usual, tir.seq(careful)),
        ]

    def _levels(self, i: int, group: Group, combine: Combine) -> list[Any]:
        """The scan of the elements, from one set to the other and back."""
        width = self.width
        read, write = self.elements[i]
        left, right, _ = names(group.algebra, [])
        combined = combine(left, right)
        out = []
        by = 1
        while by < width:
            vectors = [e.load() for e in read]
            table = tir.VarMap(zip(right, vectors, strict=True))
            for var, vector in zip(left, vectors, strict=True):
                table[var] = shift(vector, by, width)
            for target, vector, value in zip(write, vectors, combined, strict=True):
                out.append(target.store(blend(vector, on_vectors(value, table, width), by, width)))
            read, write = write, read
            by *= 2
        return out

    def _hand_over(self, group: Group, last: list[Lanes], apply: Combine) -> list[Any]:
        """The carries before every step, and after the last one."""
        width = self.width
        dtypes = [self.recurrence.carries[c].dtype for c in group.carries]
        left, _, old = names(group.algebra, dtypes)
        carries = [self.one.get_carry(c, []) for c in group.carries]
        table = tir.VarMap((o, tirx.Broadcast(c, width)) for o, c in zip(old, carries, strict=True))
        for var, element in zip(left, last, strict=True):
            table[var] = shift(element.load(), 1, width)
        out = []
        for c, carry, value in zip(group.carries, carries, apply(left, old), strict=True):
            before = blend(tirx.Broadcast(carry, width), on_vectors(value, table, width), 1, width)
            buffer, cell = self.many.carry(c, [], tirx.Ramp(0, 1, width))
            out.append(tirx.BufferStore(buffer, before, cell))
        after = apply(tuple(element.at(width - 1) for element in last), tuple(carries))
        out.append(store_all([self.one.carry(c, []) for c in group.carries], after))
        return out

    def _keep_last(self) -> Any:
        """Registers that are no carries, as the last step of the last vector left them."""
        return self.one.take(self.many, tirx.IntImm(self.dtype, self.width - 1))
