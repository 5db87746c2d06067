"""Nests of one step in the form in which a recurrence is easiest to see."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad
from tvm.tirx import BufferStore

from tvm_scan import tir


def without_unit_loops(nest: Any) -> Any:
    """Loops of one iteration are no lanes; their variable is 0."""

    def on_for(loop: tirx.For) -> Any:
        if tir.as_int(loop.extent) != 1:
            return loop
        return tir.substitute(loop.body, {loop.loop_var: tir.zero_like(loop.loop_var)})

    return tvm_ffi.structural_map(nest, (tirx.For, on_for))


def without_copies(
    nests: list[Any], outputs: list[Var], allocs: list[Var]
) -> tuple[list[Any], list[Var]]:
    """Nests that write an output directly where it only was a copy of an intermediate.

    What a reduction computes is its output then, and not a buffer that outlives the lane.
    """
    for output in outputs:
        copies = [nest for nest in nests if output in tir.buffers_stored(nest)]
        source = _copied(copies[0], output) if len(copies) == 1 else None
        if source is None or not any(source[0].same_as(buffer) for buffer in allocs):
            continue
        buffer, order = source
        nests = [nest for nest in nests if not nest.same_as(copies[0])]
        nests = [_renamed(nest, buffer, output, order) for nest in nests]
        allocs = [other for other in allocs if not other.same_as(buffer)]
    return nests, allocs


def _copied(nest: Any, output: Var) -> tuple[Var, list[int | None]] | None:
    """The source that `nest` copies into `output`, and where each index of the output is in it."""
    store, _ = point_store(nest)
    if store is None or not isinstance(load := store.value, TensorLoad):
        return None
    order: list[int | None] = []
    for stored, extent in zip(store.indices, tir.shape_of(output), strict=True):
        is_unit = tir.as_int(extent) == 1
        at = [] if is_unit else [i for i, x in enumerate(load.indices) if stored.same_as(x)]
        if len(at) != (0 if is_unit else 1):
            return None
        order.append(at[0] if at else None)
    for i, extent in enumerate(tir.shape_of(load.source)):
        if i not in order and not (tir.as_int(load.indices[i]) == 0 and tir.as_int(extent) == 1):
            return None
    return load.source, order


def _renamed(nest: Any, buffer: Var, output: Var, order: list[int | None]) -> Any:
    zero = tirx.IntImm("int64", 0)

    def moved(other: Var, indices: list[Any]) -> tuple[Var, list[Any]] | None:
        if not other.same_as(buffer):
            return None
        return output, [zero if at is None else indices[at] for at in order]

    return tir.map_accesses(nest, moved)


def point_store(nest: Any) -> tuple[BufferStore | None, list[Var]]:
    """Return the store that is all of a nest, at the variables of its loops, or None; and these."""
    loops = []
    while isinstance(nest, tirx.For):
        loops.append(nest.loop_var)
        nest = nest.body
    is_store = isinstance(nest, BufferStore) and is_point(nest.indices, loops)
    return nest if is_store else None, loops


def is_point(indices: Any, loops: list[Var]) -> bool:
    """Return whether the indices are the loop variables, each once and in order, and zeros."""
    plain = [i for i in indices if tir.as_int(i) != 0]
    return len(plain) == len(loops) and all(
        isinstance(i, Var) and i.same_as(v) for i, v in zip(plain, loops, strict=True)
    )
