"""A scan and what stands before or behind it as one function of TensorIR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.s_tir.analysis import get_sblock_access_region

from tvm_scan import tir
from tvm_scan.relax.occurrences import is_idle, is_read_once, stores_of
from tvm_scan.relax.pointwise import Pointwise
from tvm_scan.schedules.splice import ensure_blocks

__all__ = ["with_consumer", "with_producer"]


def with_producer(
    scan: tirx.PrimFunc, at: int, outputs: int, producer: Pointwise, shared: Sequence[int | None]
) -> tirx.PrimFunc | None:
    """Compute an input where it is read.

    Legal because the input is a function of its place: the element that a step reads is the
    element that the producer would have stored there.

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
    if sizes is None or (producer.is_costly and not is_read_once(scan, old)):
        return None
    names = _renamed(producer, scan, sizes, {i: scan.params[k] for i, k in _known(shared)})
    value = Pointwise(producer.inputs, old, producer.place, tir.substitute(producer.value, names))

    def on_load(load: TensorLoad) -> Any:
        return value.at(list(load.indices)) if load.source.same_as(old) else load

    added = [names[b] for b, k in zip(producer.inputs, shared, strict=True) if k is None]
    inputs = [p for p in scan.params[: len(scan.params) - outputs] if not p.same_as(old)]
    params = [*inputs, *added, *scan.params[len(scan.params) - outputs :]]
    body = tvm_ffi.structural_map(scan.body, (TensorLoad, on_load))
    return _rebuilt(scan, params, body, [])


def with_consumer(
    scan: tirx.PrimFunc,
    at: int,
    outputs: int,
    consumer: Pointwise,
    reads: int,
    shared: Sequence[int | None],
) -> tirx.PrimFunc | None:
    """Store what is made of an output beside the output, which becomes local.

    Legal because the consumer's element depends on the output's element at the same place and on
    nothing that the scan writes: each store of the output is followed by the consumer's there, so
    that the last one is made of the last value.

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
    reads : int
        Which of the consumer's inputs it is.
    shared : sequence of int or None
        For each input of the consumer, the parameter of the scan that holds the same array.

    Returns
    -------
    tirx.PrimFunc or None
        With the consumer's output in the place of the scan's, and the consumer's other inputs
        behind the scan's own; None if the two do not fit.
    """
    scan = ensure_blocks(scan)
    old, source = scan.params[at], consumer.inputs[reads]
    stores = stores_of(scan, old)
    if len(stores) != 1 or is_idle(stores[0][1], stores[0][0].indices):
        return None
    sizes = _unified(source, old)
    if sizes is None or not _same_shape(consumer.output, old, sizes):
        return None
    for load in tir.loads(consumer.value):
        if load.source.same_as(source) and not _is_place(load, consumer.place):
            return None
    given = {i: scan.params[k] for i, k in _known(shared)} | {reads: old}
    names = _renamed(consumer, scan, sizes, given)
    value = Pointwise(
        consumer.inputs, consumer.output, consumer.place, tir.substitute(consumer.value, names)
    )
    result = tirx.decl_buffer(
        tir.shape_of(old), tir.dtype_of(consumer.output), name=_free_name(consumer.output, scan)
    )

    def on_store(store: tirx.BufferStore) -> Any:
        if not store.buffer.same_as(old):
            return store
        indices = list(store.indices)
        return tir.seq([store, tirx.BufferStore(result, value.at(indices), indices)])

    added = [
        names[b]
        for i, (b, k) in enumerate(zip(consumer.inputs, shared, strict=True))
        if k is None and i != reads
    ]
    first = len(scan.params) - outputs
    ends = [result if p.same_as(old) else p for p in scan.params[first:]]
    body = tvm_ffi.structural_map(scan.body, (tirx.BufferStore, on_store))
    return _rebuilt(scan, [*scan.params[:first], *added, *ends], body, [old])


def _known(shared: Sequence[int | None]) -> list[tuple[int, int]]:
    return [(i, k) for i, k in enumerate(shared) if k is not None]


def _unified(theirs: Var, ours: Var) -> tir.VarMap | None:
    """What their symbolic extents are in terms of ours; None where the shapes may differ."""
    left, right = tir.shape_of(theirs), tir.shape_of(ours)
    if len(left) != len(right) or tir.dtype_of(theirs) != tir.dtype_of(ours):
        return None
    sizes = tir.VarMap()
    for one, other in zip(left, right, strict=True):
        if isinstance(one, Var) and one not in sizes:
            sizes[one] = other
    same = (
        tir.structurally_equal(tir.simplify(tir.substitute(one, sizes)), tir.simplify(other))
        for one, other in zip(left, right, strict=True)
    )
    return sizes if all(same) else None


def _same_shape(theirs: Var, ours: Var, sizes: tir.VarMap) -> bool:
    left, right = tir.shape_of(theirs), tir.shape_of(ours)
    return len(left) == len(right) and all(
        tir.structurally_equal(tir.simplify(tir.substitute(one, sizes)), tir.simplify(other))
        for one, other in zip(left, right, strict=True)
    )


def _renamed(
    part: Pointwise, scan: tirx.PrimFunc, sizes: tir.VarMap, given: dict[int, Var]
) -> tir.VarMap:
    """Their extents and buffers as those of the merged function."""
    names = sizes.copy()
    for i, buffer in enumerate(part.inputs):
        if i in given:
            names[buffer] = given[i]
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


def _is_place(load: TensorLoad, place: Sequence[Var | None]) -> bool:
    return len(load.indices) == len(place) and all(
        tir.as_int(index) == 0 if var is None else isinstance(index, Var) and index.same_as(var)
        for index, var in zip(load.indices, place, strict=True)
    )


def _rebuilt(
    scan: tirx.PrimFunc, params: Sequence[Var], body: Any, local: Sequence[Var]
) -> tirx.PrimFunc:
    """The function on other parameters, what its blocks access worked out again."""
    realize = body
    assert isinstance(realize, SBlockRealize)
    root = realize.block
    seen = tir.VarMap((buffer, buffer) for buffer in (*params, *local, *root.alloc_buffers))
    buffers = {buffer: buffer for buffer in seen.keys()}

    def on_block(block: SBlock) -> SBlock:
        reads, writes, _ = get_sblock_access_region(block, buffers)
        return SBlock(
            block.iter_vars,
            reads,
            writes,
            block.name_hint,
            block.body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )

    inner = tvm_ffi.structural_map(root.body, (SBlock, on_block))
    allocs = [*root.alloc_buffers, *local]
    whole = SBlock([], [], [], root.name_hint, inner, None, allocs)
    attrs = dict(scan.attrs or {})
    return tirx.PrimFunc(list(params), SBlockRealize([], True, whole)).with_attrs(attrs)
