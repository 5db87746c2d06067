"""Loads and stores of a flattened nest, in program order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction.flatten import Condition, Let, Loop, Store

__all__ = ["Access", "accesses_of"]


@dataclass(eq=False)
class Access:
    """One load or store of a written buffer, and the loops around it inside the scope."""

    buffer: Var
    indices: list[Any]
    is_store: bool
    inner: list[Loop]
    origin: Any


def accesses_of(stmts: list[Any], inner: list[Loop] | None = None) -> list[Access]:
    """Every load and store in ``stmts``, in program order."""
    inner = inner or []
    out: list[Access] = []

    def read(expr: Any, origin: Any) -> None:
        for load in tir.loads(expr):
            out.append(Access(load.source, list(load.indices), False, inner, origin))

    for stmt in stmts:
        if isinstance(stmt, Store):
            read(stmt.value, stmt.origin)
            for index in stmt.indices:
                read(index, stmt.origin)
            out.append(Access(stmt.buffer, stmt.indices, True, inner, stmt.origin))
        elif isinstance(stmt, Let):
            read(stmt.value, stmt.origin)
        elif isinstance(stmt, Condition):
            read(stmt.cond, stmt.origin)
            out += accesses_of(stmt.then, inner) + accesses_of(stmt.orelse, inner)
        elif isinstance(stmt, Loop):
            read(stmt.extent, stmt.origin)
            out += accesses_of(stmt.body, [*inner, stmt])
    return out
