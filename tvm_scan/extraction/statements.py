"""A flattened loop nest: its statements, and visits of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction.extents import Extents

#: A buffer, and indices into it.
Cell = tuple[Var, list[Any]]


@dataclass(eq=False)
class Loop:
    """``for var in range(extent): body``."""

    var: Var
    extent: Any
    body: list[Any]
    origin: Any
    thread: str = ""

    @cached_property
    def reads(self) -> list[Cell]:
        """Cells that the extent loads."""
        return _cells(self.extent)


@dataclass(eq=False)
class Condition:
    """``if cond: then else: orelse``."""

    cond: Any
    then: list[Any]
    orelse: list[Any]
    origin: Any

    @cached_property
    def reads(self) -> list[Cell]:
        """Cells that the condition loads."""
        return _cells(self.cond)


@dataclass(eq=False)
class Store:
    """``buffer[indices] = value``."""

    buffer: Var
    indices: list[Any]
    value: Any
    origin: Any

    @cached_property
    def reads(self) -> list[Cell]:
        """Cells that the value loads, then those of the indices."""
        return _cells(self.value, *self.indices)


@dataclass(eq=False)
class Let:
    """``var = value``, immutable, in scope until the end of the surrounding list."""

    var: Var
    value: Any
    origin: Any

    @cached_property
    def reads(self) -> list[Cell]:
        """Cells that the value loads."""
        return _cells(self.value)


@dataclass(eq=False)
class Alloc:
    """A buffer that lives as long as the surrounding list runs."""

    buffer: Var


@dataclass(eq=False)
class Tree:
    """A flattened nest, the extents of its loops, and the variables of its reduction loops."""

    body: list[Any]
    extents: Extents
    reduced: tir.VarMap = field(default_factory=tir.VarMap)


def _cells(*exprs: Any) -> list[Cell]:
    return [(load.source, list(load.indices)) for e in exprs for load in tir.loads(e)]


def rebuild(stmts: list[Any]) -> Any:
    """TensorIR statement of a flattened list."""
    out: list[Any] = []
    for stmt in stmts:
        if isinstance(stmt, Loop):
            out.append(tir.loops_over([(stmt.var, stmt.extent)], rebuild(stmt.body)))
        elif isinstance(stmt, Condition):
            orelse = rebuild(stmt.orelse) if stmt.orelse else None
            out.append(tirx.IfThenElse(stmt.cond, rebuild(stmt.then), orelse))
        elif isinstance(stmt, Store):
            out.append(tirx.BufferStore(stmt.buffer, stmt.value, stmt.indices))
        elif isinstance(stmt, Let):
            out.append(tirx.Bind(stmt.var, stmt.value))
    return tir.seq(out)


def statements_in(stmts: list[Any]) -> list[Any]:
    """Every statement of a flattened list in program order, and before those inside of it."""
    out: list[Any] = []
    for stmt in stmts:
        out.append(stmt)
        if isinstance(stmt, Loop):
            out += statements_in(stmt.body)
        elif isinstance(stmt, Condition):
            out += statements_in(stmt.then) + statements_in(stmt.orelse)
    return out


def map_inside(stmt: Any, run: Callable[[list[Any]], list[Any]]) -> Any:
    """``stmt`` with ``run`` applied to each list of statements inside of it."""
    if isinstance(stmt, Loop):
        return replace(stmt, body=run(stmt.body))
    if isinstance(stmt, Condition):
        return replace(stmt, then=run(stmt.then), orelse=run(stmt.orelse))
    return stmt


def decided(stmts: list[Any], known: Callable[[Any], bool | int | None]) -> list[Any]:
    """``stmts`` with one side of each condition that is known to hold, or not to hold."""
    out: list[Any] = []
    for stmt in stmts:
        holds = known(stmt.cond) if isinstance(stmt, Condition) else None
        if holds is None:
            out.append(map_inside(stmt, lambda inner: decided(inner, known)))
        else:
            out += decided(stmt.then if holds else stmt.orelse, known)
    return out


def lets_in(stmts: list[Any]) -> list[Let]:
    """Every binding of a flattened list."""
    return [stmt for stmt in statements_in(stmts) if isinstance(stmt, Let)]


def loops_in(stmts: list[Any]) -> list[Loop]:
    """Every loop of a flattened list, an outer one before those inside of it."""
    return [stmt for stmt in statements_in(stmts) if isinstance(stmt, Loop)]


def map_expressions(
    stmts: list[Any], run: Callable[[Any], Any], *, values_only: bool = False
) -> list[Any]:
    """``stmts`` with ``run`` applied to every expression, at any depth.

    Parameters
    ----------
    stmts : list
        Flattened statements.
    run : callable
        From a value, a condition, an index or an extent to what replaces it.
    values_only : bool
        Whether indices and extents stay.
    """
    run_index = (lambda e: e) if values_only else run
    out: list[Any] = []
    for s in stmts:
        s = map_inside(s, lambda inner: map_expressions(inner, run, values_only=values_only))
        if isinstance(s, Store):
            s = Store(s.buffer, [run_index(i) for i in s.indices], run(s.value), s.origin)
        elif isinstance(s, Let):
            s = replace(s, value=run(s.value))
        elif isinstance(s, Condition):
            s = replace(s, cond=run(s.cond))
        elif isinstance(s, Loop):
            s = replace(s, extent=run_index(s.extent))
        out.append(s)
    return out


def keep_stores(stmts: list[Any], wanted: Callable[[Var], bool]) -> list[Any]:
    """``stmts`` with only the stores to wanted buffers, and what surrounds those."""
    out: list[Any] = []
    for stmt in stmts:
        stmt = map_inside(stmt, lambda inner: keep_stores(inner, wanted))
        if isinstance(stmt, Loop | Condition):
            keeps = bool(stores_in([stmt]))
        else:
            keeps = not isinstance(stmt, Store) or wanted(stmt.buffer)
        if keeps:
            out.append(stmt)
    return out


def without_allocs(stmts: list[Any]) -> list[Any]:
    """``stmts`` less their allocations."""
    return [stmt for stmt in stmts if not isinstance(stmt, Alloc)]


def allocated_in(stmts: list[Any]) -> list[Var]:
    """Every buffer that ``stmts`` allocate, at any depth."""
    return [stmt.buffer for stmt in statements_in(stmts) if isinstance(stmt, Alloc)]


def stores_in(stmts: list[Any]) -> list[Store]:
    """Every store of a flattened list, in program order."""
    return [stmt for stmt in statements_in(stmts) if isinstance(stmt, Store)]
