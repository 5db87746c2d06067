"""Reads and writes of a buffer by a function of TensorIR, and how often they happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.s_tir import SBlock

from tvm_scan import tir
from tvm_scan.extraction import root_nests
from tvm_scan.extraction.flatten import flatten
from tvm_scan.extraction.statements import Condition, Loop, Store
from tvm_scan.recurrence import Refusal


def _collect(stmts: list[Any], loops: list[Loop], stores: list[tuple[Any, list[Loop]]]) -> None:
    """Every store and condition, with the loops around it."""
    for stmt in stmts:
        if isinstance(stmt, Loop):
            _collect(stmt.body, [*loops, stmt], stores)
        elif isinstance(stmt, Condition):
            stores.append((stmt, loops))
            _collect(stmt.then, loops, stores)
            _collect(stmt.orelse, loops, stores)
        else:
            stores.append((stmt, loops))


def _statements(scan: tirx.PrimFunc) -> list[tuple[Any, list[Loop]]]:
    stores: list[tuple[Any, list[Loop]]] = []
    for nest in root_nests(scan):
        tree = flatten(scan, nest)
        if not isinstance(tree, Refusal):
            _collect(tree.body, [], stores)
    return stores


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
    same = all(
        tir.structurally_equal(index, other)
        for stmt, _ in stores
        for index, other in zip(stmt.indices, first.indices, strict=True)
    )
    idle_inside = all(is_idle([inner], first.indices) for inner in around[at:])
    if not inside or not same or not idle_inside or not _is_plain(scan, loop.var):
        return None
    return Last(buffer, loop.var, tuple(first.indices))


def _is_plain(scan: tirx.PrimFunc, var: Var) -> bool:
    """Return whether the loop of a variable stands in the function, without blocks inside."""
    loops = [l for l in tir.nodes(scan.body, tirx.For) if l.loop_var.same_as(var)]
    return len(loops) == 1 and not tir.nodes(loops[0].body, SBlock)


def is_idle(loops: list[Loop], indices: Sequence[Any]) -> bool:
    """Return whether a loop comes by a cell more than once."""
    used = tir.VarMap((var, True) for index in indices for var in tir.variables(index).keys())
    return any(loop.var not in used and tir.as_int(loop.extent) != 1 for loop in loops)


def _reads(scan: tirx.PrimFunc, buffer: Var) -> list[tuple[Any, list[Loop]]]:
    """Every load of a buffer, with the loops around it."""
    reads = []
    for stmt, loops in _statements(scan):
        parts = [stmt.cond] if isinstance(stmt, Condition) else [getattr(stmt, "value", None)]
        parts += list(getattr(stmt, "indices", []))
        values = [part for part in parts if part is not None]
        all_loads = [load for part in values for load in tir.loads(part)]
        reads += [(load, loops) for load in all_loads if load.source.same_as(buffer)]
    return reads


def is_read_once(scan: tirx.PrimFunc, buffer: Var) -> bool:
    """Return whether no element of an input is read in two statements or in two iterations."""
    reads = _reads(scan, buffer)
    return not any(is_idle(loops, load.indices) for load, loops in reads) and all(
        tir.structurally_equal(index, first)
        for load, _ in reads
        for index, first in zip(load.indices, reads[0][0].indices, strict=True)
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
    indices = list(reads[0][0].indices)
    common: list[Loop] = []
    for at, loop in enumerate(reads[0][1]):
        around = all(len(o) > at and o[at].var.same_as(loop.var) for _, o in reads)
        if not around or is_idle([loop], indices):
            break
        common.append(loop)
    if not common or not _is_plain(scan, common[-1].var):
        return None
    outer = [loop.var for loop in common]
    read_at: list[Any] = []
    for dim, index in enumerate(indices):
        others = [load.indices[dim] for load, _ in reads]
        if not any(tir.contains_var(other, outer) for other in others):
            read_at.append(None)
            continue
        known = tir.VarMap((var, True) for var in outer)
        if any(var not in known for var in tir.variables(index).keys()):
            return None
        if not all(tir.structurally_equal(index, other) for other in others):
            return None
        read_at.append(index)
    return outer[-1], read_at
