"""One step executed on whole arrays: what it leaves in every buffer, as a function of the indices.

Theorem (distribution). Let a loop ``x`` of the step store to a buffer B. If every access to B
inside of the loop has the bare ``x`` in the dimension in which a store has it, no iteration reads
what another one stored. If no index of B has ``x``, and B occurs in a single store
``B[..] = B[..] + e``, with e free of B, the loop adds the sum of e over ``x``. If B is stored by an
iteration before that iteration reads it, it is private to the iteration. In each of these cases
what a load yields is one expression of the loops around it; every other load is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.extraction.statements import (
    Alloc,
    Let,
    Loop,
    Store,
    allocated_in,
    stores_in,
)
from tvm_scan.extraction.step_loops import (
    NotUnderstood,
    addend,
    check_own,
    has_loop,
    is_sum,
    loop_of,
)

#: Titans: the theorem carries over, but not with a diagonal, whatever the basis: one in which a
#: momentum and its memory are apart has quotients of their gates, which grow with every step.
COUPLED_MATRICES = (
    "for two matrices that feed each other, as a memory and its momentum, each row has a matrix of "
    "two by two in the place of a gate, which no kernel multiplies; keep one matrix, or this loop"
)


def map_known(node: Any, fn: Callable[[TensorLoad], Any]) -> Any:
    """Map loads as ``tir.map_loads`` does, with an ``fn`` that may raise ``NotUnderstood``."""
    failed: list[NotUnderstood] = []

    def careful(load: TensorLoad) -> Any:
        if failed:
            return load
        try:
            return fn(load)
        except NotUnderstood as reason:
            failed.append(reason)
            return load

    out = tir.map_loads(node, careful)
    if failed:
        raise failed[0]
    return out


@dataclass(eq=False)
class Known:
    """The known contents of a buffer: ``buffer[indices] = value`` for all values of the loops."""

    indices: list[Any]
    loops: list[Loop]
    value: Any

    def loops_at(self, indices: list[Any], around: list[Loop]) -> tir.VarMap | None:
        """The loops at ``indices`` for the own ones, None where the cell may be another one."""
        table = tir.VarMap()
        for mine, wanted in zip(self.indices, indices, strict=True):
            loop = loop_of(mine, self.loops)
            if loop is None:
                if not tir.structurally_equal(mine, wanted):
                    return None
                continue
            other = loop_of(wanted, around)
            if other is None or not _same_extent(loop, other):
                return None
            table[loop.var] = other.var
        return table

    def at(self, indices: list[Any], around: list[Loop]) -> Any | None:
        """The value at ``indices``, None where the cell may be another one."""
        table = self.loops_at(indices, around)
        return None if table is None else tir.substitute(self.value, table)


@dataclass(eq=False)
class Sum:
    """``symbol[loops] = sum over the rows of term``."""

    symbol: Var
    loops: list[Loop]
    over: Loop
    term: Any


@dataclass(eq=False)
class ArrayStep:
    """The symbolic memory of one step.

    Attributes
    ----------
    written : VarMap
        Every buffer that the nest stores to; all others are inputs.
    carried : Var or None
        The buffer that is read before it is stored to: the state.
    versions : list of (Var, Known)
        The state before the step, without a value, and after each of its stores: a symbol that
        stands for it, indexed by the loops of its indices, and what was stored.
    sums : list of Sum
        Every sum, in order.
    """

    written: tir.VarMap
    known: tir.VarMap = field(default_factory=tir.VarMap)
    carried: Var | None = None
    versions: list[tuple[Var, Known]] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    #: Stores of a buffer at more than one index, and values that only a last iteration left.
    _lost: tir.VarMap = field(default_factory=tir.VarMap)
    _fresh: tir.VarMap = field(default_factory=tir.VarMap)
    _lets: tir.VarMap = field(default_factory=tir.VarMap)

    def run(self, stmts: list[Any]) -> None:
        """Execute statements.

        Raises
        ------
        NotUnderstood
            If the theorem does not cover one of them.
        """
        for buffer in allocated_in(stmts):
            self._fresh[buffer] = True
        self._block(stmts, [], None)

    def value_of(self, buffer: Var) -> Known | None:
        """The present contents of a buffer; None where they are not known for all of its cells."""
        return None if buffer in self._lost else self.known.get(buffer)

    def _block(self, stmts: list[Any], around: list[Loop], over: Loop | None) -> None:
        for stmt in stmts:
            if isinstance(stmt, Loop):
                self._loop(stmt, around, over)
            elif isinstance(stmt, Store):
                self._store(stmt, around, over)
            elif isinstance(stmt, Let):
                self._lets[stmt.var] = self._resolved(stmt.value, around, stmt.origin)
            elif not isinstance(stmt, Alloc):
                origin = getattr(stmt, "origin", None)
                raise NotUnderstood("a condition around a store", origin)

    def _loop(self, loop: Loop, around: list[Loop], over: Loop | None) -> None:
        if tir.as_int(loop.extent) is None:
            raise NotUnderstood(f"an inner loop of the extent {loop.extent}", loop.origin)
        stored = tir.VarMap((store.buffer, True) for store in stores_in(loop.body)).keys()
        summed = [b for b in stored if not has_loop(b, loop) and is_sum(b, loop)]
        private = [b for b in stored if not has_loop(b, loop) and not is_sum(b, loop)]
        for buffer in stored:
            if has_loop(buffer, loop):
                check_own(buffer, loop)
        for buffer in private:
            self._lost[buffer] = True
        if summed and over is not None:
            raise NotUnderstood("a sum over two loops", loop.origin)
        self._block(loop.body, [*around, loop], loop if summed else over)
        for buffer in private:
            self._lost[buffer] = True

    def _store(self, store: Store, around: list[Loop], over: Loop | None) -> None:
        buffer, indices = store.buffer, [self._resolved(i, around, None) for i in store.indices]
        added = addend(store)
        inside = over is not None and not tir.contains_var(indices, [over.var])
        if over is not None and inside and added is not None and is_sum(buffer, over):
            before = self._load(buffer, indices, around, store.origin)
            term = self._resolved(added, around, store.origin)
            if any(s.symbol in tir.variables(term) for s in self.sums):
                raise NotUnderstood("a sum of sums", store.origin)
            outer = [l for l in around if l is not over]
            shape = [int(tir.as_int(l.extent) or 0) for l in outer] or [1]
            symbol = tirx.decl_buffer(shape, tir.dtype_of(buffer), f"sum{len(self.sums)}")
            self.sums.append(Sum(symbol, outer, over, term))
            at = [l.var for l in outer] or [tirx.IntImm("int32", 0)]
            value = before + tirx.BufferLoad(symbol, at)
            around = outer
        else:
            value = self._resolved(store.value, around, store.origin)
        self._put(buffer, indices, value, around, store.origin)
        if isinstance(store.value, Var) and store.value in self._lets:
            # What the cell holds now, by the name that it was stored by.
            self._lets[store.value] = self._load(buffer, indices, around, store.origin)

    def _put(
        self, buffer: Var, indices: list[Any], value: Any, around: list[Loop], origin: Any
    ) -> None:
        used = [l for l in around if any(loop_of(i, [l]) is not None for i in indices)]
        bare = [l for i in indices if (l := loop_of(i, around)) is not None]
        if len(bare) != len(used):
            raise NotUnderstood(f"a store to {buffer.name} along a diagonal", origin)
        rest = [i for i in indices if loop_of(i, around) is None]
        if tir.contains_var(rest, [l.var for l in around]):
            raise NotUnderstood(f"an index of {buffer.name} that is not a bare loop", origin)
        known = Known(indices, used, value)
        earlier = self.known.get(buffer)
        if earlier is not None and earlier.loops_at(indices, used) is None:
            raise NotUnderstood(f"stores to several cells of {buffer.name} in one step", origin)
        if self.carried is not None and buffer.same_as(self.carried):
            if len(used) != len(self.known[buffer].loops):
                raise NotUnderstood(f"a store to a part of {buffer.name}", origin)
            known = self._version(buffer, known)
        self.known[buffer] = known
        if buffer in self._lost:
            # Known again, within the iteration that stored it.
            self._lost = tir.VarMap((b, True) for b in self._lost.keys() if not b.same_as(buffer))

    def _version(self, buffer: Var, known: Known) -> Known:
        shape = [int(tir.as_int(l.extent) or 0) for l in known.loops] or [1]
        symbol = tirx.decl_buffer(shape, tir.dtype_of(buffer), f"state{len(self.versions)}")
        self.versions.append((symbol, known))
        at = [l.var for l in known.loops] or [tirx.IntImm("int32", 0)]
        return Known(known.indices, known.loops, tirx.BufferLoad(symbol, at))

    def _resolved(self, expr: Any, around: list[Loop], origin: Any) -> Any:
        expr = tir.substitute(expr, self._lets)

        def on_load(load: Any) -> Any:
            if load.source not in self.written:
                return load
            return self._load(load.source, list(load.indices), around, origin)

        return map_known(expr, on_load)

    def _load(self, buffer: Var, indices: list[Any], around: list[Loop], origin: Any) -> Any:
        if buffer in self._lost:
            raise NotUnderstood(f"a read of {buffer.name} across iterations of a loop", origin)
        known = self.known.get(buffer)
        if known is None:
            known = self._begin(buffer, indices, around, origin)
        value = known.at(indices, around)
        if value is None:
            raise NotUnderstood(f"a read of {buffer.name} at an index that moved", origin)
        return value

    def _begin(self, buffer: Var, indices: list[Any], around: list[Loop], origin: Any) -> Known:
        """The state: read before anything was stored to it."""
        if self.carried is not None:
            of = self.known[self.carried].indices
            is_matrix = self.sums and len(of) == len(indices)
            fix = COUPLED_MATRICES if is_matrix and buffer not in self._fresh else ""
            detail = f"{self.carried.name} and {buffer.name} both carried"
            raise NotUnderstood(detail, origin, fix)
        if buffer in self._fresh:
            raise NotUnderstood(f"a read of {buffer.name} before it is set", origin)
        loops = [l for i in indices if (l := loop_of(i, around)) is not None]
        rest = [i for i in indices if loop_of(i, around) is None]
        if tir.contains_var(rest, [l.var for l in around]):
            raise NotUnderstood(f"an index of {buffer.name} that is not a bare loop", origin)
        self.carried = buffer
        known = self.known[buffer] = self._version(buffer, Known(indices, loops, None))
        return known


def _same_extent(left: Loop, right: Loop) -> bool:
    extent = tir.as_int(left.extent)
    return extent is not None and extent == tir.as_int(right.extent)
