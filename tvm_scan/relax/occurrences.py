"""Where a function of TensorIR reads and writes a buffer, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction import root_nests
from tvm_scan.extraction.flatten import flatten
from tvm_scan.extraction.statements import Condition, Loop, Store
from tvm_scan.recurrence import Refusal

__all__ = ["is_idle", "is_read_once", "stores_of"]


def _walk(stmts: list[Any], loops: list[Loop], found: list[tuple[Any, list[Loop]]]) -> None:
    """Every store and condition, with the loops around it."""
    for stmt in stmts:
        if isinstance(stmt, Loop):
            _walk(stmt.body, [*loops, stmt], found)
        elif isinstance(stmt, Condition):
            found.append((stmt, loops))
            _walk(stmt.then, loops, found)
            _walk(stmt.orelse, loops, found)
        else:
            found.append((stmt, loops))


def _statements(scan: tirx.PrimFunc) -> list[tuple[Any, list[Loop]]]:
    found: list[tuple[Any, list[Loop]]] = []
    for nest in root_nests(scan):
        tree = flatten(nest)
        if not isinstance(tree, Refusal):
            _walk(tree.body, [], found)
    return found


def stores_of(scan: tirx.PrimFunc, buffer: Var) -> list[tuple[Store, list[Loop]]]:
    """Every store to a buffer, with the loops around it."""
    return [
        (stmt, loops)
        for stmt, loops in _statements(scan)
        if isinstance(stmt, Store) and stmt.buffer.same_as(buffer)
    ]


def is_idle(loops: list[Loop], indices: Sequence[Any]) -> bool:
    """Whether a loop comes by one place more than once."""
    used = tir.VarMap((var, True) for index in indices for var in tir.variables(index).keys())
    return any(loop.var not in used and tir.as_int(loop.extent) != 1 for loop in loops)


def is_read_once(scan: tirx.PrimFunc, buffer: Var) -> bool:
    """Whether no element of an input is read in two places or in two iterations."""
    reads: list[Any] = []
    for stmt, loops in _statements(scan):
        parts = [stmt.cond] if isinstance(stmt, Condition) else [getattr(stmt, "value", None)]
        parts += list(getattr(stmt, "indices", []))
        for load in [load for part in parts if part is not None for load in tir.loads(part)]:
            if not load.source.same_as(buffer):
                continue
            if is_idle(loops, load.indices):
                return False
            reads.append(load)
    return all(
        tir.structurally_equal(index, first)
        for load in reads
        for index, first in zip(load.indices, reads[0].indices, strict=True)
    )
