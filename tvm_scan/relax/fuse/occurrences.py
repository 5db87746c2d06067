"""Reads and writes of a buffer by a function of TensorIR, and how often they happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.s_tir import SBlock

from tvm_scan import tir
from tvm_scan.extraction import root_nests
from tvm_scan.extraction.flatten import flatten
from tvm_scan.extraction.statements import Condition, Loop, Store, without_allocs
from tvm_scan.recurrence import Refusal


def _within(stmts: list[Any], loops: list[Loop]) -> Iterator[tuple[Any, list[Loop]]]:
    for stmt in without_allocs(stmts):
        if isinstance(stmt, Loop):
            yield from _within(stmt.body, [*loops, stmt])
        else:
            yield stmt, loops
        if isinstance(stmt, Condition):
            yield from _within([*stmt.then, *stmt.orelse], loops)


def _statements(scan: tirx.PrimFunc) -> Iterator[tuple[Any, list[Loop]]]:
    """Every store, binding and condition, with the loops around it."""
    for nest in root_nests(scan):
        tree = flatten(scan, nest)
        if not isinstance(tree, Refusal):
            yield from _within(tree.body, [])


@dataclass(frozen=True, eq=False)
class Last:
    """The point behind which each element of a buffer has its value, until it is written again.

    Attributes
    ----------
    buffer : Var
        That is written.
    loop : Var or None
        The variable of the loop that sums an element up; None where one store makes it.
    indices : tuple of Expr
        The element, behind the loop.
    """

    buffer: Var
    loop: Var | None
    indices: tuple[Any, ...]

    def followed_by(self, body: Any, make: Callable[[Sequence[Any]], Any]) -> Any:
        """`body` with ``make(indices)`` behind every element."""

        def on_store(store: tirx.BufferStore) -> Any:
            if not store.buffer.same_as(self.buffer):
                return store
            return tir.seq([store, make(list(store.indices))])

        def on_for(loop: tirx.For) -> Any:
            return tir.seq([loop, make(self.indices)]) if loop.loop_var.same_as(self.loop) else loop

        if self.loop is None:
            return tvm_ffi.structural_map(body, (tirx.BufferStore, on_store))
        return tvm_ffi.structural_map(body, (tirx.For, on_for))


def last_stores(scan: tirx.PrimFunc, buffer: Var) -> Last | None:
    """Find where the elements of an output are done.

    One store is, if no loop comes by its cell more than once. Several are behind the outermost
    loop that does, if they all lie in it and write the same cell: what it sums up.

    Parameters
    ----------
    scan : tirx.PrimFunc
        A function of loops.
    buffer : Var
        One of its outputs.

    Returns
    -------
    Last or None
        None where neither is so.
    """
    stores = [
        (stmt, loops)
        for stmt, loops in _statements(scan)
        if isinstance(stmt, Store) and stmt.buffer.same_as(buffer)
    ]
    if not stores:
        return None
    first, around = stores[0]
    idle = [loop for loop in around if is_idle([loop], first.indices)]
    if not idle:
        return Last(buffer, None, ()) if len(stores) == 1 else None
    loop = idle[0]
    at = around.index(loop)
    inside = all(len(loops) > at and loops[at].var.same_as(loop.var) for _, loops in stores)
    same = all(tir.structurally_equal(stmt.indices, first.indices) for stmt, _ in stores)
    idle_inside = all(is_idle([inner], first.indices) for inner in around[at:])
    if not inside or not same or not idle_inside or not _is_plain(scan, loop.var):
        return None
    return Last(buffer, loop.var, tuple(first.indices))


def _is_plain(scan: tirx.PrimFunc, var: Var) -> bool:
    """Return whether the loop of a variable stands in the function, without blocks inside."""
    loops = [l for l in tir.nodes(scan.body, tirx.For) if l.loop_var.same_as(var)]
    return len(loops) == 1 and not tir.nodes(loops[0].body, SBlock)


def is_idle(loops: list[Loop], indices: list[Any]) -> bool:
    """Return whether a loop comes by a cell more than once."""
    used = tir.variables(indices)
    return any(loop.var not in used and tir.as_int(loop.extent) != 1 for loop in loops)


def _reads(scan: tirx.PrimFunc, buffer: Var) -> list[tuple[list[Any], list[Loop]]]:
    """The indices of every load of a buffer, with the loops around it."""
    return [
        (indices, loops)
        for stmt, loops in _statements(scan)
        for source, indices in stmt.reads
        if source.same_as(buffer)
    ]


def is_read_once(scan: tirx.PrimFunc, buffer: Var) -> bool:
    """Return whether no element of an input is read in two statements or in two iterations."""
    reads = _reads(scan, buffer)
    return all(
        tir.structurally_equal(indices, reads[0][0]) and not is_idle(loops, indices)
        for indices, loops in reads
    )


def first_reads(scan: tirx.PrimFunc, buffer: Var) -> tuple[Var, list[Any]] | None:
    """Find where the elements of an input that a step reads again and again are read first.

    Parameters
    ----------
    scan : tirx.PrimFunc
        A function of loops.
    buffer : Var
        One of its inputs.

    Returns
    -------
    tuple of Var and list, or None
        The innermost loop around all reads that names what it reads, and for each index what it
        is within one iteration of that loop; None for an index that runs over all of its extent.
    """
    reads = _reads(scan, buffer)
    if not reads:
        return None
    indices, around_first = reads[0]
    common: list[Loop] = []
    for at, loop in enumerate(around_first):
        around = all(len(o) > at and o[at].var.same_as(loop.var) for _, o in reads)
        if not around or is_idle([loop], indices):
            break
        common.append(loop)
    if not common or not _is_plain(scan, common[-1].var):
        return None
    outer = tir.VarMap((loop.var, True) for loop in common)
    read_at: list[Any] = []
    for dim, index in enumerate(indices):
        others = [other[dim] for other, _ in reads]
        if not tir.contains_var(others, outer.keys()):
            read_at.append(None)
            continue
        if any(var not in outer for var in tir.variables(index).keys()):
            return None
        if not all(tir.structurally_equal(index, other) for other in others):
            return None
        read_at.append(index)
    return common[-1].var, read_at
