"""A step of a matrix state without a loop over time, as the loop of a single step.

A kernel that decodes one token has no loop over time, and may read one buffer for the state before
the step and write another for the state after it.

Theorem (one buffer). Let a nest store to S in one statement and not read it, and let it read S0,
which it does not write, in front of that statement only. Then it is the copy ``S = S0`` of the
cells that it stores, and the nest with S in place of S0, if no iteration reads a cell of S that
another one stores before it, which holds where the step is found to be one on whole arrays
(``array_step``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.extraction.accesses import Access, accesses_of
from tvm_scan.extraction.nest import is_lane
from tvm_scan.extraction.statements import Alloc, Loop, Store, map_expressions, without_allocs
from tvm_scan.extraction.step_loops import loop_of


def as_one_step(stmts: list[Any], external: tir.VarMap) -> list[Any]:
    """A flattened nest with a loop of one step inside of its outermost lanes.

    Parameters
    ----------
    stmts : list
        A flattened nest.
    external : VarMap
        Buffers that are seen outside the nest.

    Returns
    -------
    list
        With a copy of the state before the step where that is read from a buffer of its own.
    """
    inside = without_allocs(stmts)
    only = inside[0] if len(inside) == 1 else None
    if isinstance(only, Loop) and is_lane(only, only.body, external):
        allocs = [s for s in stmts if isinstance(s, Alloc)]
        return [*allocs, replace(only, body=as_one_step(only.body, external))]
    before, body = _in_one_buffer(stmts, external)
    one = tirx.IntImm("int64", 1)
    return [*before, Loop(Var("step", one.ty), one, body, None)]


def _in_one_buffer(stmts: list[Any], external: tir.VarMap) -> tuple[list[Any], list[Any]]:
    """The copy of the theorem, and the statements over one buffer; as they are where none is."""
    accesses = accesses_of(stmts)
    written = tir.VarMap((a.buffer, True) for a in accesses if a.is_store)
    for number, store in enumerate(accesses):
        mine = [a for a in accesses if a.buffer.same_as(store.buffer)]
        if not store.is_store or len(mine) != 1 or store.buffer not in external:
            continue
        for load in accesses:
            others = [a for a in accesses if a.buffer.same_as(load.buffer)]
            if load.buffer in written or load.buffer not in external:
                continue
            if any(a is other for a in accesses[number:] for other in others):
                continue
            if all(_is_same_cell(other, store) for other in others):
                return _copy(load.buffer, store), _over(stmts, load.buffer, store.buffer)
    return [], stmts


def _is_same_cell(load: Access, store: Access) -> bool:
    """Return whether two accesses have the same index, up to the loops inside of the step."""
    if tir.dtype_of(load.buffer) != tir.dtype_of(store.buffer):
        return False
    if len(load.indices) != len(store.indices) or not store.inner:
        return False
    for mine, other in zip(load.indices, store.indices, strict=True):
        loop, other_loop = loop_of(mine, load.inner), loop_of(other, store.inner)
        if loop is None or other_loop is None:
            if loop is not other_loop or not tir.structurally_equal(mine, other):
                return False
        elif not tir.structurally_equal(loop.extent, other_loop.extent):
            return False
    return True


def _copy(source: Var, store: Access) -> list[Any]:
    """``S = S0`` for the cells that the step stores."""
    fresh = [Loop(Var(l.var.name, l.var.ty), l.extent, [], l.origin) for l in store.inner]
    table = tir.VarMap((l.var, new.var) for l, new in zip(store.inner, fresh, strict=True))
    indices = [tir.substitute(i, table) for i in store.indices]
    body: list[Any] = [Store(store.buffer, indices, tirx.BufferLoad(source, indices), store.origin)]
    for loop in reversed(fresh):
        body = [replace(loop, body=body)]
    return body


def _over(stmts: list[Any], source: Var, state: Var) -> list[Any]:
    def on_load(load: TensorLoad) -> Any:
        return tirx.BufferLoad(state, load.indices) if load.source.same_as(source) else load

    return map_expressions(stmts, lambda expr: tir.map_loads(expr, on_load), values_only=True)
