"""Sums of partial sums as one sum, as they are where threads share the terms.

Theorem (partial sums). Let a step set ``P = 0``, add every ``e(y)`` to P, and add P to B, and let
it use P nowhere else. Let nothing that e reads be stored between. Then it adds every ``e(y)`` to B,
in another order of rounding. Where P has a cell for each iteration of a loop ``x`` and another loop
over the same range adds them, the second loop may compute the cell that it adds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.algebra.literal import is_constant
from tvm_scan.extraction.accesses import accesses_of, rename, uses
from tvm_scan.extraction.statements import Alloc, Loop, Store, stores_in, without_allocs
from tvm_scan.extraction.step_loops import addend, loop_of


def with_whole_sums(stmts: list[Any], external: tir.VarMap) -> list[Any]:
    """Statements of a step without partial sums that only a sum reads.

    Parameters
    ----------
    stmts : list
        Flattened statements: all of a step.
    external : VarMap
        Buffers that are seen outside the nest.
    """
    for buffer in tir.VarMap((s.buffer, True) for s in stores_in(stmts)).keys():
        accesses = [a for a in accesses_of(stmts) if a.buffer.same_as(buffer)]
        # It is set, read and stored by its own sum, and read by the other one.
        if buffer not in external and [a.is_store for a in accesses] == [True, False, True, False]:
            whole = _without(buffer, _together(buffer, stmts))
            stmts = stmts if any(uses(buffer, s) for s in whole) else whole
    return stmts


def _together(buffer: Var, stmts: list[Any]) -> list[Any]:
    """The loop that makes partial sums inside of the one that adds them."""
    real = without_allocs(stmts)
    loops = [s for s in real if isinstance(s, Loop) and uses(buffer, s)]
    if len(loops) == 1:
        only = loops[0]
        body = _together(buffer, only.body)
        return [replace(s, body=body) if s is only else s for s in stmts]
    if len(loops) != 2:
        return stmts
    first, last = loops
    store = next((s for s in stores_in(first.body) if s.buffer.same_as(buffer)), None)
    if store is None:
        return stmts
    dims = [d for d, i in enumerate(store.indices) if loop_of(i, [first]) is not None]
    loads = [a for a in accesses_of(last.body) if a.buffer.same_as(buffer)]
    between = real[real.index(first) + 1 : real.index(last)]
    if (
        not dims
        or len(loads) != 1
        or loop_of(loads[0].indices[dims[0]], [last]) is None
        or not tir.structurally_equal(first.extent, last.extent)
        or any(not s.buffer.same_as(buffer) for s in stores_in(first.body))
        or _stores_what_is_read(between, first.body, buffer)
        or _stores_what_is_read(last.body, first.body, buffer)
    ):
        return stmts
    renamed = rename(without_allocs(first.body), tir.VarMap([(first.var, last.var)]))
    whole = replace(last, body=[*renamed, *last.body])
    allocs = [s for s in first.body if isinstance(s, Alloc)]
    return [*allocs, *(whole if s is last else s for s in stmts if s is not first)]


def _without(buffer: Var, stmts: list[Any]) -> list[Any]:
    """Statements without a partial sum, where all four uses of it stand in one list."""
    using = [s for s in stmts if not isinstance(s, Alloc) and uses(buffer, s)]
    if len(using) == 1 and isinstance(using[0], Loop):
        only = using[0]
        return [replace(s, body=_without(buffer, s.body)) if s is only else s for s in stmts]
    if len(using) != 3:
        return stmts
    first, loop, last = using
    if not isinstance(first, Store) or not isinstance(last, Store) or not isinstance(loop, Loop):
        return stmts
    inner = without_allocs(loop.body)
    total = addend(last)
    if len(inner) != 1 or not isinstance(term := inner[0], Store) or addend(term) is None:
        return stmts
    if not is_constant(first.value, 0) or not isinstance(total, TensorLoad):
        return stmts
    if not all(b.same_as(buffer) for b in (first.buffer, term.buffer, total.source)):
        return stmts
    if not all(tir.structurally_equal(first.indices, x.indices) for x in (term, total)):
        return stmts
    between = stmts[stmts.index(loop) + 1 : stmts.index(last)]
    if _stores_what_is_read([*between, last], [loop], buffer):
        return stmts
    value = tirx.BufferLoad(last.buffer, last.indices) + addend(term)
    into = Store(last.buffer, last.indices, value, last.origin)
    whole = replace(loop, body=[into])
    return [whole if s is last else s for s in stmts if s is not first and s is not loop]


def _stores_what_is_read(stmts: list[Any], reading: list[Any], less: Var) -> bool:
    """Return whether ``stmts`` store to a buffer that ``reading`` reads, but for one."""
    read = tir.VarMap((a.buffer, True) for a in accesses_of(reading) if not a.is_store)
    return any(s.buffer in read and not s.buffer.same_as(less) for s in stores_in(stmts))
