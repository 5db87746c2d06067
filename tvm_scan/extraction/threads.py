"""Loops that are bound to threads as ordinary loops, where that is the same program.

Theorem (threads). Iterations of a loop that is bound to a thread axis run in any order; where one
reads what an iteration of another bound loop wrote to memory that both see, TVM puts a barrier
between the two loops. So the nest with ordinary loops in their place, which runs them in one of
these orders, leaves the same in memory, if

- no call speaks to another thread (``flatten`` takes none that does);
- no two loops around a statement are bound to the same axis: they would be one thread, not a pair;
- what a thread has for itself is not taken for what all of them see. A buffer of scope ``local``
  that is allocated outside of the loops over threads is one for each thread, and one of scope
  ``shared`` is one for each block. With ordinary loops it is a single one, which is the same if
  every iteration sets it in whole before it reads it, if iterations have cells of their own, or if
  all threads hold the same: none stores to it but in loops that a block declares as a reduction to
  it, whose sum TVM gives to each.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.extraction.accesses import Access, accesses_of, is_private
from tvm_scan.extraction.apart import are_apart
from tvm_scan.extraction.statements import Alloc, Condition, Loop, loops_in, stores_in
from tvm_scan.recurrence import Refusal, RefusalKind

#: Thread axes each of whose threads has a buffer of a scope for itself; other scopes are refused.
_OWNERS = {
    "": (),
    "global": (),
    "shared": ("blockIdx",),
    "shared.dyn": ("blockIdx",),
    "local": ("blockIdx", "threadIdx"),
}


def is_bound(stmt: Any) -> bool:
    """Return whether a loop of a statement is bound to a thread axis."""
    return any(loop.kind == ForKind.THREAD_BINDING for loop in tir.nodes(stmt, tirx.For))


def without_threads(stmt: Any) -> Any:
    """Make ordinary loops of the bound loops of a statement that ``check_threads`` passes.

    Parameters
    ----------
    stmt : Stmt
        A nest, or the body of a function.

    Returns
    -------
    Stmt
        ``stmt`` itself where no loop is bound.
    """
    if not is_bound(stmt):
        return stmt

    def serial(loop: tirx.For) -> tirx.For:
        if loop.kind != ForKind.THREAD_BINDING:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, ForKind.SERIAL, loop.body)

    return tvm_ffi.structural_map(stmt, (tirx.For, serial))


def check_threads(stmts: list[Any], reduced: tir.VarMap) -> Refusal | None:
    """Check the conditions of the theorem.

    Parameters
    ----------
    stmts : list
        A flattened nest.
    reduced : VarMap
        Loop variables that a block declares as reduction iterators.

    Returns
    -------
    Refusal or None
        None where its bound loops may be ordinary ones.
    """
    if not any(loop.thread for loop in loops_in(stmts)):
        return None
    return _pair_of_one_axis(stmts, []) or _check_owned(stmts, reduced)


def _pair_of_one_axis(stmts: list[Any], around: list[str]) -> Refusal | None:
    for s in stmts:
        refusal = None
        if isinstance(s, Condition):
            refusal = _pair_of_one_axis([*s.then, *s.orelse], around)
        elif isinstance(s, Loop) and s.thread and s.thread in around:
            refusal = Refusal(
                RefusalKind.UNSUPPORTED_BODY,
                s.origin,
                f"expected one loop over {s.thread} around a statement, found a second inside of "
                "it, which would be the same thread",
                "bind the inner loop to another axis, or to none",
            )
        elif isinstance(s, Loop):
            refusal = _pair_of_one_axis(s.body, [*around, s.thread] if s.thread else around)
        if refusal is not None:
            return refusal
    return None


def _check_owned(stmts: list[Any], reduced: tir.VarMap) -> Refusal | None:
    """Check the last condition for every buffer of the nest."""
    depth = tir.VarMap()
    _note_depths(stmts, 0, depth)
    by_buffer = tir.VarMap()
    for access in accesses_of(stmts):
        by_buffer[access.buffer] = [*by_buffer.get(access.buffer, []), access]
    for buffer, accesses in by_buffer.items():
        scope = str(buffer.ty.storage_scope)
        if scope not in _OWNERS:
            return Refusal(
                RefusalKind.UNSUPPORTED_BODY,
                accesses[0].origin,
                f"expected memory of scope global, shared or local, found {buffer.name} of scope "
                f"{scope}",
                "keep such a kernel for the device that it was written for",
            )
        first = depth.get(buffer, 0)
        owners = {
            loop.thread: loop
            for access in reversed(accesses)
            for loop in access.inner[first:]
            if loop.thread.startswith(_OWNERS[scope])
        }
        settled: list[str] = []
        # "blockIdx" comes before "threadIdx".
        for axis in sorted(owners):
            if _is_single(buffer, accesses, axis, first, reduced):
                continue
            if not _are_apart(accesses, owners, axis, first, settled):
                return Refusal(
                    RefusalKind.UNSUPPORTED_BODY,
                    accesses[0].origin,
                    f"expected each iteration over {axis} to set {buffer.name}, of scope {scope}, "
                    "before it reads it, found a read of what only some of the threads know",
                    f"give {buffer.name} a cell for every iteration, or one loop over {axis} "
                    "around all that uses it",
                )
            settled.append(axis)
    return None


def _note_depths(stmts: list[Any], loops: int, depth: tir.VarMap) -> None:
    """Note for every buffer that is allocated inside how many loops are around it."""
    for s in stmts:
        if isinstance(s, Alloc):
            depth[s.buffer] = loops
        elif isinstance(s, Loop):
            _note_depths(s.body, loops + 1, depth)
        elif isinstance(s, Condition):
            _note_depths([*s.then, *s.orelse], loops, depth)


def _is_single(
    buffer: Var, accesses: list[Access], axis: str, first: int, reduced: tir.VarMap
) -> bool:
    """Return whether one buffer may stand for those of all threads of an axis."""
    inner = [access.inner[first:] for access in accesses]
    loops = [next((loop for loop in around if loop.thread == axis), None) for around in inner]
    if axis.startswith("threadIdx") and all(
        loop is None or not access.is_store or _is_reduction(buffer, loop, reduced)
        for access, loop in zip(accesses, loops, strict=True)
    ):
        return True
    each = {id(loop): loop for loop in loops if loop is not None}
    return None not in loops and all(is_private(buffer, loop.body) for loop in each.values())


def _are_apart(
    accesses: list[Access], owners: dict[str, Loop], axis: str, first: int, settled: list[str]
) -> bool:
    """Return whether threads of an axis, alike in the settled axes, have cells of their own.

    Threads that differ in a settled axis have, whatever the others are; so threads that differ in
    any axis have, once each axis is settled after those in front of it.
    """
    renamed = []
    for access in accesses:
        inner = access.inner[first:]
        if not any(loop.thread == axis for loop in inner):
            return False
        # Loops over one axis are the same threads': their variables are one number.
        table = tir.VarMap((l.var, owners[l.thread].var) for l in inner if l.thread in owners)
        indices = [tir.substitute(i, table) for i in access.indices]
        rest = [owners.get(l.thread, l) for l in access.inner if l.thread not in (axis, *settled)]
        renamed.append(Access(access.buffer, indices, access.is_store, rest, access.origin))
    return are_apart(owners[axis], renamed)


def _is_reduction(buffer: Var, loop: Loop, reduced: tir.VarMap) -> bool:
    return loop.var in reduced and all(s.buffer.same_as(buffer) for s in stores_in(loop.body))
