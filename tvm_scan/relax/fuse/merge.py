"""A scan and what stands before or behind it as one function of TensorIR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.relax.fuse.occurrences import first_reads, is_read_once, last_stores
from tvm_scan.relax.fuse.parameters import rebuilt
from tvm_scan.relax.fuse.pointwise import Pointwise
from tvm_scan.schedules.splice import ensure_blocks


def with_producer(
    scan: tirx.PrimFunc, at: int, outputs: int, producer: Pointwise, shared: Sequence[int | None]
) -> tirx.PrimFunc | None:
    """Compute an input where it is read.

    Legal because the input is a function of its index: the element that a step reads is the
    element that the producer would have stored there. What several statements of a step read,
    and is dear to compute or made of several arrays, a step computes once, in front of all.

    Parameters
    ----------
    scan : tirx.PrimFunc
        Inputs first, then ``outputs`` outputs.
    at : int
        Which parameter the producer writes.
    outputs : int
        How many parameters are outputs.
    producer : Pointwise
        What computes it.
    shared : sequence of int or None
        For each input of the producer, the parameter of the scan that holds the same array.

    Returns
    -------
    tirx.PrimFunc or None
        Without that input, and with those of the producer that it lacked behind its own; None if
        the two do not fit, or something costly would be computed more than once for an element.
    """
    scan = ensure_blocks(scan)
    old = scan.params[at]
    sizes = _unified(producer.output, old)
    again = not is_read_once(scan, old)
    first = first_reads(scan, old) if again and _is_worth_keeping(producer) else None
    if sizes is None or (again and producer.is_costly and first is None):
        return None
    names = _renamed(producer, scan, sizes, shared)
    value = replace(producer, output=old, value=tir.substitute(producer.value, names))

    def on_load(load: TensorLoad) -> Any:
        return value.at(list(load.indices)) if load.source.same_as(old) else load

    def on_for(loop: tirx.For) -> Any:
        if first is None or not loop.loop_var.same_as(first[0]):
            return loop
        return tir.loop_with(loop, tir.seq([tir.store_cells(old, first[1], value.at), loop.body]))

    added = [names[b] for b, k in zip(producer.inputs, shared, strict=True) if k is None]
    inputs = [p for p in scan.params[: len(scan.params) - outputs] if not p.same_as(old)]
    params = [*inputs, *added, *scan.params[len(scan.params) - outputs :]]
    if first is None:
        return rebuilt(scan, params, tir.map_loads(scan.body, on_load), [])
    return rebuilt(scan, params, tvm_ffi.structural_map(scan.body, (tirx.For, on_for)), [old])


def _is_worth_keeping(producer: Pointwise) -> bool:
    """Return whether computing an element again costs more than reading it again."""
    return producer.is_costly or len(tir.loads(producer.value)) > 1


def with_consumer(
    scan: tirx.PrimFunc, at: int, outputs: int, consumer: Pointwise, shared: Sequence[int | None]
) -> tirx.PrimFunc | None:
    """Store what is made of an output beside the output, which becomes local.

    Legal because the consumer's element depends on one element of the output and on nothing else
    that the scan writes: each element of the output, once its step is done with it, is followed
    by the consumer's, so that the last one is made of the last value.

    Parameters
    ----------
    scan : tirx.PrimFunc
        Inputs first, then ``outputs`` outputs.
    at : int
        Which parameter the consumer reads.
    outputs : int
        How many parameters are outputs.
    consumer : Pointwise
        What reads it.
    shared : sequence of int or None
        For each input of the consumer, the parameter of the scan that holds the same array; one of
        them is `at`.

    Returns
    -------
    tirx.PrimFunc or None
        With the consumer's output in the place of the scan's, and the consumer's other inputs
        behind the scan's own; None if the two do not fit.
    """
    scan = ensure_blocks(scan)
    old, source = scan.params[at], consumer.inputs[shared.index(at)]
    last = last_stores(scan, old)
    sizes = _unified(source, old)
    if last is None or sizes is None:
        return None
    reads_at = [load for load in tir.loads(consumer.value) if load.source.same_as(source)]
    where = _inverted(reads_at, consumer)
    if where is None:
        return None
    names = _renamed(consumer, scan, sizes, shared)
    value = replace(consumer, value=tir.substitute(consumer.value, names))
    shape = [tir.simplify(tir.substitute(e, sizes)) for e in tir.shape_of(consumer.output)]
    result = tirx.decl_buffer(
        shape, tir.dtype_of(consumer.output), name=_free_name(consumer.output, scan)
    )

    def store(indices: Sequence[Any]) -> Any:
        zeros = [tir.zero_like(extent) for extent in shape]
        indices_of_result = [zeros[i] if at is None else indices[at] for i, at in enumerate(where)]
        return tirx.BufferStore(result, value.at(indices_of_result), indices_of_result)

    added = [names[b] for b, k in zip(consumer.inputs, shared, strict=True) if k is None]
    first = len(scan.params) - outputs
    ends = [result if p.same_as(old) else p for p in scan.params[first:]]
    body = last.followed_by(scan.body, store)
    return rebuilt(scan, [*scan.params[:first], *added, *ends], body, [old])


def _unified(theirs: Var, ours: Var) -> tir.VarMap | None:
    """Map one buffer's symbolic extents to the other's; None where the shapes may differ."""
    left, right = tir.shape_of(theirs), tir.shape_of(ours)
    if len(left) != len(right) or tir.dtype_of(theirs) != tir.dtype_of(ours):
        return None
    sizes = tir.VarMap()
    for mine, other in zip(left, right, strict=True):
        if isinstance(mine, Var) and mine not in sizes:
            sizes[mine] = other
    same = (
        tir.same_extent(tir.simplify(tir.substitute(mine, sizes)), tir.simplify(other))
        for mine, other in zip(left, right, strict=True)
    )
    return sizes if all(same) else None


def _renamed(
    part: Pointwise, scan: tirx.PrimFunc, sizes: tir.VarMap, shared: Sequence[int | None]
) -> tir.VarMap:
    """Map a part's extents and buffers to those of the merged function."""
    names = sizes.copy()
    for buffer, k in zip(part.inputs, shared, strict=True):
        if k is not None:
            names[buffer] = scan.params[k]
            continue
        shape = [tir.substitute(extent, sizes) for extent in tir.shape_of(buffer)]
        names[buffer] = tirx.decl_buffer(
            shape,
            tir.dtype_of(buffer),
            name=_free_name(buffer, scan, [v for _, v in names.items()]),
        )
    return names


def _free_name(buffer: Var, scan: tirx.PrimFunc, others: Sequence[Any] = ()) -> str:
    """A name for people; extraction looks some inputs up by theirs."""
    taken = {str(var.name) for var in (*scan.params, *others) if isinstance(var, Var)}
    name = str(buffer.name)
    while name in taken:
        name += "_"
    return name


def _inverted(reads: Sequence[TensorLoad], consumer: Pointwise) -> list[int | None] | None:
    """Dimension of the read array for each index of the consumer's output; None for extent 1.

    None if its elements are not those of the read array, one for one.
    """
    if not reads or not all(tir.structurally_equal(reads[0], load) for load in reads):
        return None
    indices = list(reads[0].indices)
    shape = tir.shape_of(reads[0].source)
    where: list[int | None] = []
    for var in consumer.axes:
        matches = [i for i, index in enumerate(indices) if var is not None and var.same_as(index)]
        if len(matches) != (0 if var is None else 1):
            return None
        where.append(matches[0] if matches else None)
    rest = [tir.as_int(shape[i]) for i in range(len(indices)) if i not in where]
    return where if all(extent == 1 for extent in rest) else None
