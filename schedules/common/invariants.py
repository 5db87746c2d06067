"""Values that a step computes from inputs that time does not change, computed once per lane.

In a vector of lanes, ``A[lane, n]`` is one load per lane and state; LLVM cannot keep hundreds of
them in registers, and loads them again at every step. They are gathered once, into a small array
in which neighbouring lanes are neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.extraction.nest import linear_in
from tvm_scan.recurrence import Recurrence, Register
from tvm_scan.schedules.common.ir import each, local

Result = TypeVar("Result")

LOG2E = 1.4426950408889634
#: Arrays, and cells of one for each lane: what stays in the first-level cache beside the rest.
_MOST = 8
_CELLS = 64
_COSTLY = {f"tirx.{name}" for name in ("exp", "exp2", "log", "log1p", "tanh", "sigmoid", "sqrt")}


#: Loops around an expression: variable, and extent where that is a constant.
Loops = tuple[tuple[Var, int | None], ...]


@dataclass(frozen=True, eq=False)
class Invariants:
    """A recurrence that reads some of its inputs from registers, and what fills these.

    Attributes
    ----------
    recurrence : Recurrence
        With the registers, which ``fill`` sets and ``body`` reads.
    fill : Stmt or None
        To run for every lane before its first step.
    """

    recurrence: Recurrence
    fill: Any


@dataclass(frozen=True, eq=False)
class _Invariant:
    """An expression, and the loops of the step around it: variables and constant extents."""

    expr: Any
    loops: tuple[tuple[Var, int], ...]


def hold_invariants(recurrence: Recurrence, *, fold: bool = True) -> Invariants:
    """Find the expressions of a step that cost something and that time does not change.

    Parameters
    ----------
    recurrence : Recurrence
        With at least one lane axis.
    fold : bool
        Whether ``exp(x a)``, with ``a`` such an expression, becomes ``exp2(x (a log2 e))``.
    """
    invariants = _Search(recurrence).run()[:_MOST]
    stores, registers = [], []
    body = recurrence.body
    for i, invariant in enumerate(invariants):
        held = local(
            f"held{i}",
            [extent for _, extent in invariant.loops] or [1],
            tir.dtype_of(invariant.expr),
        )
        index: list[Any] = [var for var, _ in invariant.loops]
        load = tirx.BufferLoad(held, index or [tirx.IntImm("int32", 0)])
        scale = 1.0
        if fold:
            folded = fold_exponent(body, invariant.expr)
            if folded is not None:
                body, scale = folded, LOG2E
        body = replaced(body, invariant.expr, load)
        stores.append(_fill(held, invariant, scale))
        registers.append(register_of(held))
    if not invariants:
        return Invariants(recurrence, None)
    extended = replace(recurrence, body=body, registers=(*recurrence.registers, *registers))
    return Invariants(extended, tir.seq(stores))


def _fill(held: Var, invariant: _Invariant, scale: float) -> Any:
    def store(index: list[Any]) -> Any:
        table = tir.VarMap((var, p) for (var, _), p in zip(invariant.loops, index, strict=True))
        value = tir.substitute(invariant.expr, table)
        if scale != 1.0:
            value = value * tirx.FloatImm(tir.dtype_of(value), scale)
        return tirx.BufferStore(held, value, index or [tirx.IntImm("int32", 0)])

    return each([extent for _, extent in invariant.loops], store, unroll=False)


def register_of(held: Var) -> Register:
    """A local array as a register of a recurrence, so that every lane has its own."""
    extents = tuple(int(extent) for extent in tir.shape_of(held))
    zeros = tuple(0 for _ in extents)
    base = tuple(tirx.IntImm("int32", 0) for _ in extents)
    return Register(held, held, (), base, extents, zeros, False, False)


def replaced(body: Any, expr: Any, by: Any) -> Any:
    """``body`` with every occurrence of an expression replaced."""

    def on_node(node: Any) -> Any:
        return by if tir.structurally_equal(node, expr) else node

    return tvm_ffi.structural_map(body, (type(expr), on_node))


def fold_exponent(body: Any, expr: Any) -> Any:
    """``body`` with ``exp2(x * expr)`` for ``exp(x * expr)``; None if ``expr`` has other uses."""
    if tir.dtype_of(expr) != "float32":
        return None
    folded = 0

    def on_call(call: Call) -> Any:
        nonlocal folded
        if tir.call_name(call) != "tirx.exp" or not isinstance(call.args[0], tirx.Mul):
            return call
        product = call.args[0]
        sides = [tir.structurally_equal(side, expr) for side in (product.a, product.b)]
        if sum(sides) != 1:
            return call
        folded += 1
        return tirx.exp2(product)

    uses = sum(tir.structurally_equal(node, expr) for node in tir.nodes(body, type(expr)))
    changed = tvm_ffi.structural_map(body, (Call, on_call))
    return changed if folded and folded == uses else None


def values_of(stmt: Any, loops: Loops = ()) -> Iterator[tuple[Any, Loops]]:
    """Every value that a statement stores outside of conditions, and the loops around it."""
    if isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from values_of(part, loops)
    elif isinstance(stmt, tirx.For):
        extent = tir.as_int(stmt.extent) if tir.as_int(stmt.min) == 0 else None
        yield from values_of(stmt.body, (*loops, (stmt.loop_var, extent)))
    elif isinstance(stmt, tirx.BufferStore):
        yield stmt.value, loops


class _Search:
    """Maximal expressions over inputs, lanes and constant loops of the step, outside conditions."""

    def __init__(self, recurrence: Recurrence) -> None:
        self.recurrence = recurrence
        self.lane = recurrence.lanes[-1].var
        self.known = tir.VarMap((lane.var, True) for lane in recurrence.lanes)
        for axis in (*recurrence.lanes, recurrence.time):
            for var in tir.variables(axis.extent).keys():
                self.known[var] = True
        self.written = tir.VarMap((b, True) for b in recurrence.outputs)
        for register in recurrence.registers:
            for buffer in (register.local, *register.previous):
                self.written[buffer] = True
        self.loops: Loops = ()

    def run(self) -> list[_Invariant]:
        """Every such expression, once."""
        kinds = (TensorLoad, Call, tirx.Mul, tirx.Add, tirx.Sub, tirx.Div, tirx.Max, tirx.Min)
        invariants = tir.ExprMap()
        for value, loops in values_of(self.recurrence.body):
            self.loops = loops
            for invariant in largest(value, kinds, self._take):
                if invariant.expr not in invariants:
                    invariants[invariant.expr] = invariant
        return [invariant for _, invariant in invariants.items()]

    def _take(self, expr: Any) -> _Invariant | None:
        """``expr``, if it may be computed before the first step and is worth it."""
        inputs = tir.loads(expr)
        if not inputs or any(load.source in self.written for load in inputs):
            return None
        if any(str(load.source.scope()) == "local" for load in inputs):
            return None
        inner = [(var, extent) for var, extent in self.loops if tir.contains_var(expr, [var])]
        loops = [(var, extent) for var, extent in inner if extent is not None]
        names = tir.VarMap((var, True) for var, _ in loops)
        buffers = tir.VarMap((load.source, True) for load in inputs)
        for var in tir.variables(expr).keys():
            if not (var in self.known or var in names or var in buffers):
                return None
        if not tir.contains_var(expr, [self.lane]) or prod(n for _, n in loops) > _CELLS:
            return None
        costly = any(self._is_gather(load) for load in inputs) or is_costly(expr)
        return _Invariant(expr, tuple(loops)) if costly else None

    def _is_gather(self, load: TensorLoad) -> bool:
        """Return whether neighbouring lanes are not neighbours in memory."""
        moving = [tir.contains_var(index, [self.lane]) for index in load.indices]
        if not any(moving):
            return False
        last = linear_in(load.indices[-1], self.lane)
        return any(moving[:-1]) or last is None or last[0] != 1


def largest(expr: Any, kinds: Iterable[type], take: Callable[[Any], Result | None]) -> list[Result]:
    """Return what ``take`` makes of the largest parts of an expression that it takes.

    Parameters
    ----------
    expr : Expr
        What is looked into, but under conditions: what stands there may not be computed where
        they are false.
    kinds : iterable of type
        Classes of the parts that ``take`` is asked about.
    take : callable
        Returns None of a part that it does not take; only such a part is looked into.
    """
    results: list[Result] = []
    skip = tvm_ffi.WalkResult.SKIP

    def visit(node: Any) -> Any:
        result = take(node)
        if result is not None:
            results.append(result)
            return skip
        conditional = isinstance(node, Call) and tir.call_name(node) == "prim.if_then_else"
        return skip if conditional else None

    tvm_ffi.structural_walk(expr, [(kind, visit) for kind in kinds], order="pre")
    return results


def is_costly(expr: Any) -> bool:
    """Return whether an expression has a call that takes many instructions."""
    return any(tir.call_name(call) in _COSTLY for call in tir.nodes(expr, Call))
