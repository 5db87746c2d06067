"""Blocks away: a loop nest as plain loops, conditions, bindings and stores.

A block's iteration variables are replaced by their bindings, its predicate and its reduction
init become conditions. What remains is the loop that the person wrote, whatever form it had
(``T.axis.scan``, ``T.axis.opaque``, ``T.axis.remap`` or no block at all), and every statement
remembers the node it came from so that a refusal can underline it.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Call
from tvm.s_tir import SBlockRealize
from tvm.tirx import ForKind, IterVar

from tvm_scan import tir
from tvm_scan.extraction.extents import Extents
from tvm_scan.extraction.indices import tidy_indices
from tvm_scan.extraction.statements import Alloc, Condition, Let, Loop, Store, Tree
from tvm_scan.extraction.threads import check_threads
from tvm_scan.recurrence import Refusal, RefusalKind
from tvm_scan.text import as_text


class _Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def flatten(func: tirx.PrimFunc, nest: Any) -> Tree | Refusal:
    """Flatten the loop nest ``nest``.

    Parameters
    ----------
    func : PrimFunc
        The function that the nest belongs to.
    nest : Stmt
        A statement of its root block.

    Returns
    -------
    Tree or Refusal
        The plain nest, or the first statement in it that has effects which a re-ordering of
        time could change, or that is no longer itself once threads are loops (``threads``).
    """
    tree = Tree([], Extents(func))
    try:
        tree.body = tidy_indices(_stmts(nest, tir.VarMap(), tree))
    except _Refused as refused:
        return refused.refusal
    return check_threads(tree.body, tree.reduced) or tree


def _refuse(kind: RefusalKind, node: Any, detail: str, fix: str) -> _Refused:
    return _Refused(Refusal(kind, node, detail, fix))


def _stmts(stmt: Any, env: tir.VarMap, tree: Tree) -> list[Any]:
    if isinstance(stmt, tirx.SeqStmt):
        return [item for part in stmt.seq for item in _stmts(part, env, tree)]
    if isinstance(stmt, tirx.For):
        loop = _loop(stmt, env, tree)
        # A loop of one iteration, as of a grid of one block, is its body. One that the body names
        # stays, as a lane or as time.
        alone = tir.as_int(loop.extent) == 1 and not tir.contains_var(stmt.body, [stmt.loop_var])
        return loop.body if alone and _is_one_loop(loop.body) else [loop]
    if isinstance(stmt, SBlockRealize):
        return _block(stmt, env, tree)
    if isinstance(stmt, tirx.BufferStore):
        _check_pure(stmt.value, stmt)
        indices = [tir.substitute(index, env) for index in stmt.indices]
        return [Store(stmt.buffer, indices, tir.substitute(stmt.value, env), stmt)]
    if isinstance(stmt, tirx.Bind):
        _check_pure(stmt.value, stmt)
        value = tir.substitute(stmt.value, env)
        if not tir.loads(value):
            # Index arithmetic by name: written out, so that the analysis sees through it.
            env[stmt.var] = value
            return []
        return [Let(stmt.var, value, stmt)]
    if isinstance(stmt, tirx.IfThenElse):
        _check_pure(stmt.condition, stmt)
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
            f"expected stores only, found the evaluated call {as_text(stmt.value)}",
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


def _is_one_loop(body: list[Any]) -> bool:
    return len(body) == 1 and isinstance(body[0], Loop)


def _loop(stmt: tirx.For, env: tir.VarMap, tree: Tree) -> Loop:
    if stmt.step is not None and tir.as_int(stmt.step) != 1:
        raise _refuse(
            RefusalKind.UNSUPPORTED_BODY,
            stmt,
            f"expected loops that advance by one, found the step {as_text(stmt.step)}",
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
    extent = tree.extents.count(tir.substitute(stmt.extent, env))
    tree.extents.enter(stmt.loop_var, extent)
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
            reducing.append(tirx.EQ(bound, axis.dom.min))
            for var in tir.variables(bound).keys():
                tree.reduced[var] = True
    body: list[Any] = [Alloc(buffer) for buffer in block.alloc_buffers]
    if block.init is not None:
        # A reduction starts where all of its reduction iterators are at their minimum.
        first = tir.all_of(reducing)
        init = _stmts(block.init, inner, tree)
        body += init if first is None else [Condition(first, init, [], block)]
    body += _stmts(block.body, inner, tree)
    predicate = tir.substitute(stmt.predicate, env)
    return body if tir.is_true(predicate) else [Condition(predicate, body, [], stmt)]


#: Calls without effect whose value depends on their arguments alone.
_PURE_PREFIXES = ("tirx.", "prim.")
_IMPURE = (
    "tirx.call_extern",
    "tirx.call_packed",
    "tirx.call_cpacked",
    "tirx.call_llvm_intrin",
    "tirx.address_of",
    "tirx.tvm_access_ptr",
    "tirx.tvm_storage_sync",
    "tirx.tvm_warp",
    "tirx.ptx",
    "tirx.cuda",
    "tirx.tvm_call",
    "tirx.break_loop",
    "tirx.continue_loop",
    "tirx.thread_return",
    "tirx.ret",
    "tirx.masked",
    "tirx.print",
)


def is_pure_call(name: str | None) -> bool:
    """Return whether the call of that name is a function of its arguments and nothing else."""
    if name is None:
        return False
    if name in ("tirx.call_pure_extern", "tirx.call_llvm_pure_intrin"):
        return True
    return name.startswith(_PURE_PREFIXES) and not name.startswith(_IMPURE)


def _check_pure(expr: Any, origin: Any) -> None:
    bad = [call for call in tir.nodes(expr, Call) if not is_pure_call(tir.call_name(call))]
    if bad:
        name = tir.call_name(bad[0]) or str(bad[0].op)
        pointer = name in ("tirx.address_of", "tirx.tvm_access_ptr")
        raise _refuse(
            RefusalKind.ALIASING if pointer else RefusalKind.SIDE_EFFECT,
            bad[0],
            f"expected a step without effects, found the call {name}",
            "compute the value before the loop, or use an intrinsic without effects",
        )
