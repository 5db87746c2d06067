"""Blocks away: a loop nest as plain loops, conditions, bindings and stores.

A block's iteration variables are replaced by their bindings, its predicate and its reduction
init become conditions. What remains is the loop that the person wrote, whatever form it had
(``T.axis.scan``, ``T.axis.opaque``, ``T.axis.remap`` or no block at all), and every statement
remembers the node it came from so that a refusal can underline it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Var
from tvm.s_tir import SBlockRealize
from tvm.tirx import ForKind, IterVar

from tvm_scan import tir
from tvm_scan.recurrence import Refusal, RefusalKind

__all__ = [
    "Alloc",
    "Condition",
    "Let",
    "Loop",
    "Store",
    "Tree",
    "allocated_in",
    "flatten",
    "is_pure_call",
    "keep_stores",
    "rebuild",
    "stores_in",
    "stores_to",
    "without_allocs",
]


@dataclass(eq=False)
class Loop:
    """``for var in range(extent): body``."""

    var: Var
    extent: Any
    body: list[Any]
    origin: Any
    thread: str = ""


@dataclass(eq=False)
class Condition:
    """``if cond: then else: orelse``."""

    cond: Any
    then: list[Any]
    orelse: list[Any]
    origin: Any


@dataclass(eq=False)
class Store:
    """``buffer[indices] = value``."""

    buffer: Var
    indices: list[Any]
    value: Any
    origin: Any


@dataclass(eq=False)
class Let:
    """``var = value``, immutable, in scope until the end of the surrounding list."""

    var: Var
    value: Any
    origin: Any


@dataclass(eq=False)
class Alloc:
    """A buffer that lives as long as the surrounding list runs."""

    buffer: Var


@dataclass(eq=False)
class Tree:
    """A flattened nest, the variables of its reduction loops, and the buffers it writes."""

    body: list[Any]
    reduced: tir.VarMap = field(default_factory=tir.VarMap)
    written: tir.VarMap = field(default_factory=tir.VarMap)


class _Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def flatten(nest: Any) -> Tree | Refusal:
    """Flatten the loop nest ``nest``.

    Parameters
    ----------
    nest : Stmt
        A statement of a root block.

    Returns
    -------
    Tree or Refusal
        The plain nest, or the first statement in it that has effects which a re-ordering of
        time could change.
    """
    tree = Tree([], written=tir.buffers_stored(nest))
    try:
        tree.body = _stmts(nest, tir.VarMap(), tree)
    except _Refused as refused:
        return refused.refusal
    return tree


def _refuse(kind: RefusalKind, node: Any, detail: str, fix: str) -> _Refused:
    return _Refused(Refusal(kind, node, detail, fix))


def _stmts(stmt: Any, env: tir.VarMap, tree: Tree) -> list[Any]:
    if isinstance(stmt, tirx.SeqStmt):
        return [item for part in stmt.seq for item in _stmts(part, env, tree)]
    if isinstance(stmt, tirx.For):
        return [_loop(stmt, env, tree)]
    if isinstance(stmt, SBlockRealize):
        return _block(stmt, env, tree)
    if isinstance(stmt, tirx.BufferStore):
        _check_pure([stmt.value, *stmt.indices])
        _check_scalar(stmt)
        indices = [tir.substitute(index, env) for index in stmt.indices]
        return [Store(stmt.buffer, indices, tir.substitute(stmt.value, env), stmt)]
    if isinstance(stmt, tirx.Bind):
        _check_pure([stmt.value])
        value = tir.substitute(stmt.value, env)
        if tir.dtype_of(value).startswith(("int", "uint")) and not any(
            load.source in tree.written for load in tir.loads(value)
        ):
            # It may stand in an index, whose distance from time must be seen.
            env[stmt.var] = value
            return []
        return [Let(stmt.var, value, stmt)]
    if isinstance(stmt, tirx.IfThenElse):
        _check_pure([stmt.condition])
        orelse = [] if stmt.else_case is None else _stmts(stmt.else_case, env, tree)
        cond = tir.substitute(stmt.condition, env)
        return [Condition(cond, _stmts(stmt.then_case, env, tree), orelse, stmt)]
    if isinstance(stmt, tirx.AllocBuffer):
        return [Alloc(stmt.buffer)]
    if isinstance(stmt, tirx.Evaluate):
        if tir.as_int(stmt.value) is not None:
            return []
        raise _refuse(
            RefusalKind.SIDE_EFFECT,
            stmt,
            f"expected stores only, found the evaluated call {stmt.value}",
            "move calls with effects out of the time loop",
        )
    if isinstance(stmt, tirx.DeclBuffer):
        raise _refuse(
            RefusalKind.ALIASING,
            stmt,
            f"expected buffers with storage of their own, found the view {stmt.buffer.name}",
            "index the original buffer instead of a declared view of its data",
        )
    raise _refuse(
        RefusalKind.UNSUPPORTED_BODY,
        stmt,
        f"expected loops, conditions, bindings and stores, found {type(stmt).__name__}",
        "write the step without while loops, breaks, asserts or attributes",
    )


def _check_scalar(stmt: tirx.BufferStore) -> None:
    if any(isinstance(index, tirx.Ramp) for index in stmt.indices):
        raise _refuse(
            RefusalKind.UNSUPPORTED_BODY,
            stmt,
            f"expected scalar stores, found a store of several cells of {stmt.buffer.name} at once",
            "write the vector as a loop and leave its vector form to the schedule",
        )


def _loop(stmt: tirx.For, env: tir.VarMap, tree: Tree) -> Loop:
    _check_pure([stmt.min, stmt.extent])
    if stmt.step is not None and tir.as_int(stmt.step) != 1:
        raise _refuse(
            RefusalKind.UNSUPPORTED_BODY,
            stmt,
            f"expected loops that advance by one, found the step {stmt.step}",
            "divide the extent by the step and multiply the index by it",
        )
    thread = "" if stmt.thread_binding is None else str(stmt.thread_binding.thread_tag)
    if stmt.kind == ForKind.THREAD_BINDING and not thread.startswith(("blockIdx", "threadIdx")):
        raise _refuse(
            RefusalKind.UNSUPPORTED_BODY,
            stmt,
            f"expected bindings to blockIdx or threadIdx, found {thread}",
            "leave virtual threads to the schedule",
        )
    extent = tir.substitute(stmt.extent, env)
    bounds = [*tir.loads(stmt.min), *tir.loads(extent)]
    if any(load.source in tree.written for load in bounds):
        raise _refuse(
            RefusalKind.UNSUPPORTED_BODY,
            stmt,
            f"expected loops whose extent the step does not change, found {stmt.extent}",
            "bound the loop by a value that is read before the time loop",
        )
    minimum = tir.substitute(stmt.min, env)
    if tir.as_int(minimum) == 0:
        return Loop(stmt.loop_var, extent, _stmts(stmt.body, env, tree), stmt, thread)
    inner = env.copy()
    inner[stmt.loop_var] = stmt.loop_var + minimum
    return Loop(stmt.loop_var, extent, _stmts(stmt.body, inner, tree), stmt, thread)


def _block(stmt: SBlockRealize, env: tir.VarMap, tree: Tree) -> list[Any]:
    block = stmt.block
    if len(block.match_buffers):
        raise _refuse(
            RefusalKind.ALIASING,
            stmt,
            f"expected buffers with storage of their own, found a match_buffer in block "
            f"{block.name_hint}",
            "index the original buffer instead of a matched sub-region of it",
        )
    inner = env.copy()
    reducing: list[Any] = []
    for axis, value in zip(block.iter_vars, stmt.iter_values, strict=True):
        bound = tir.substitute(value, env)
        inner[axis.var] = bound
        if int(axis.iter_type) == IterVar.CommReduce:
            reducing.append((bound, axis.dom.min))
            for var in tir.variables(bound).keys():
                tree.reduced[var] = True
    body: list[Any] = [Alloc(buffer) for buffer in block.alloc_buffers]
    if block.init is not None:
        # A reduction starts where all of its reduction iterators are at their minimum.
        first = None
        for bound, minimum in reducing:
            test = tirx.EQ(bound, minimum)
            first = test if first is None else tirx.And(first, test)
        init = _stmts(block.init, inner, tree)
        body += init if first is None else [Condition(first, init, [], block)]
    body += _stmts(block.body, inner, tree)
    _check_pure([stmt.predicate, *stmt.iter_values])
    predicate = tir.substitute(stmt.predicate, env)
    return body if tir.is_true(predicate) else [Condition(predicate, body, [], stmt)]


#: Operators that TVM calls pure although their value is more than a function of arguments:
#: it is an address, or depends on the thread that asks.
_IMPURE = (
    "tirx.address_of",
    "tirx.buffer_data",
    "tirx.buffer_offset",
    "tirx.cuda.",
    "tirx.end_profile_intrinsic",
    "tirx.handle_add_byte_offset",
    "tirx.ptr_byte_offset",
    "tirx.ptx.",
    "tirx.start_profile_intrinsic",
    "tirx.tile.",
    "tirx.tvm_thread_invariant",
)
#: Pure ones of which TVM does not say so.
_UNMARKED = ("tirx.ctpop", "tirx.isfinite", "tirx.isinf")
#: ``CallEffectKind`` of a function of its arguments, and of an annotation on an expression.
_EFFECT_FREE = (0, 1)


def is_pure_call(call: Call) -> bool:
    """Whether a call is a function of its arguments and nothing else."""
    name = tir.call_name(call)
    if name is None or name.startswith(_IMPURE):
        return False
    if name in _UNMARKED:
        return True
    effect = call.op.get_attr("TCallEffectKind")
    return effect is not None and int(effect) in _EFFECT_FREE


_POINTERS = ("tirx.address_of", "tirx.buffer_data", "tirx.tvm_access_ptr")


def _check_pure(exprs: list[Any]) -> None:
    bad: list[Any] = []

    def visit(call: Call) -> None:
        if not is_pure_call(call):
            bad.append(call)

    for expr in exprs:
        tvm_ffi.structural_walk(expr, [(Call, visit)])
    if bad:
        name = tir.call_name(bad[0]) or str(bad[0].op)
        raise _refuse(
            RefusalKind.ALIASING if name in _POINTERS else RefusalKind.SIDE_EFFECT,
            bad[0],
            f"expected a step without effects, found the call {name}",
            "compute the value before the loop, or use an intrinsic without effects",
        )


def rebuild(stmts: list[Any]) -> Any:
    """TensorIR statement of a flattened list."""
    out: list[Any] = []
    for stmt in stmts:
        if isinstance(stmt, Loop):
            zero = tirx.IntImm(tir.dtype_of(stmt.var), 0)
            extent = stmt.extent
            loop = tirx.For(stmt.var, zero, extent, ForKind.SERIAL, rebuild(stmt.body))
            out.append(loop)
        elif isinstance(stmt, Condition):
            orelse = rebuild(stmt.orelse) if stmt.orelse else None
            out.append(tirx.IfThenElse(stmt.cond, rebuild(stmt.then), orelse))
        elif isinstance(stmt, Store):
            out.append(tirx.BufferStore(stmt.buffer, stmt.value, stmt.indices))
        elif isinstance(stmt, Let):
            out.append(tirx.Bind(stmt.var, stmt.value))
    return tir.seq(out)


def keep_stores(stmts: list[Any], wanted: Callable[[Var], bool]) -> list[Any]:
    """``stmts`` with only the stores to wanted buffers, and what surrounds those."""
    out: list[Any] = []
    for stmt in stmts:
        if isinstance(stmt, Store):
            if wanted(stmt.buffer):
                out.append(stmt)
        elif isinstance(stmt, Loop):
            body = keep_stores(stmt.body, wanted)
            if stores_in(body):
                out.append(Loop(stmt.var, stmt.extent, body, stmt.origin, stmt.thread))
        elif isinstance(stmt, Condition):
            then, orelse = keep_stores(stmt.then, wanted), keep_stores(stmt.orelse, wanted)
            if stores_in(then) or stores_in(orelse):
                out.append(Condition(stmt.cond, then, orelse, stmt.origin))
        else:
            out.append(stmt)
    return out


def without_allocs(stmts: list[Any]) -> list[Any]:
    """``stmts`` less their allocations."""
    return [stmt for stmt in stmts if not isinstance(stmt, Alloc)]


def allocated_in(stmts: list[Any]) -> list[Var]:
    """Every buffer that ``stmts`` allocate, at any depth."""
    out: list[Var] = []
    for stmt in stmts:
        if isinstance(stmt, Alloc):
            out.append(stmt.buffer)
        elif isinstance(stmt, Loop):
            out += allocated_in(stmt.body)
        elif isinstance(stmt, Condition):
            out += allocated_in(stmt.then) + allocated_in(stmt.orelse)
    return out


def stores_in(stmts: list[Any]) -> list[Store]:
    """Every store of a flattened list, in program order."""
    out: list[Store] = []
    for stmt in stmts:
        if isinstance(stmt, Store):
            out.append(stmt)
        elif isinstance(stmt, Loop):
            out += stores_in(stmt.body)
        elif isinstance(stmt, Condition):
            out += stores_in(stmt.then) + stores_in(stmt.orelse)
    return out


def stores_to(buffer: Var, stmts: list[Any]) -> bool:
    """Whether ``stmts`` store to ``buffer``."""
    return any(store.buffer.same_as(buffer) for store in stores_in(stmts))
