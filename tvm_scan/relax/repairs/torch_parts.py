"""Parts of tensors, which TVM 0.27 reads out of bounds, does not import, or joins otherwise."""

from __future__ import annotations

import sys
from typing import Any

from tvm import relax

from tvm_scan import tir
from tvm_scan.relax.repairs.torch_casts import Converter, arguments_by_name


def _select(node: Any, importer: Any) -> relax.Expr:
    """TVM gathers with the index as it is, and so reads out of bounds where it is negative."""
    x, axis, index = importer.env[node.args[0]], int(node.args[1]), int(node.args[2])
    axis %= len(x.ty.shape.values)
    extent = x.ty.shape.values[axis]
    index = index + extent if index < 0 else index
    part = importer.block_builder.emit(relax.op.strided_slice(x, [axis], [index], [index + 1]))
    return importer.block_builder.emit(relax.op.squeeze(part, [axis]))


def _slice(node: Any, importer: Any) -> relax.Expr:
    """TVM takes ``min(1, n)`` for the extent of a part of 1 of n, and cannot lower others.

    torch has proven the extents of parts of symbolic axes, or was told: where the one that it has
    is the distance of the ends, the part lies inside.
    """
    if "val" not in node.meta or "val" not in node.args[0].meta:
        return importer._slice(node)  # of a loop that was rolled up: its extents are numbers
    x, extents = importer.env[node.args[0]], node.meta["val"].shape
    _, axis, start, end, step = arguments_by_name(node).values()
    axis %= len(extents)
    extent, before = extents[axis], node.args[0].meta["val"].shape[axis]
    if step == 1 and _is_same(extent, before):
        return x
    length = x.ty.shape.values[axis]

    def ends(bound: Any, default: Any) -> list[tuple[Any, Any]]:
        """A bound in torch's numbers and in TVM's, from the front and from the end."""
        if bound is None or (isinstance(bound, int) and bound >= sys.maxsize):
            return [default]
        theirs, ours = bound, bound
        if not isinstance(bound, int):
            theirs, ours = bound.meta["val"], importer.env[bound]
        return [(theirs, ours), (before + theirs, length + ours)]

    # An int says by its sign where it is counted from; a symbol does not.
    pairs = [
        (first, last)
        for first in ends(start, (0, 0))
        for last in ends(end, (before, length))
        if not any(isinstance(n, int) and n < 0 for n, _ in (first, last))
    ]
    fits = [(b[1], e[1]) for b, e in pairs if step == 1 and _is_same(extent, e[0] - b[0])]
    if fits:
        begin, stop = fits[0]
    else:
        begin, stop = (importer.env.get(n, n) for n in (start or 0, end))
        stop = sys.maxsize if stop is None else stop
    cut = [axis], [begin], [stop], [step]
    return importer.block_builder.emit(relax.op.strided_slice(x, *cut, assume_inbound=bool(fits)))


def _is_same(extent: Any, other: Any) -> bool:
    """Return whether torch has one expression for both; to compare symbols binds a program."""
    expressions = [getattr(getattr(n, "node", None), "expr", n) for n in (extent, other)]
    return bool(expressions[0] == expressions[1])


def _select_scatter(node: Any, importer: Any) -> relax.Expr:
    """TVM has no converter."""
    base, source = (importer.env[n] for n in node.args[:2])
    builder = importer.block_builder
    axis = int(node.args[2]) % len(base.ty.shape.values)
    index, extent = node.args[3], base.ty.shape.values[axis]
    index = index + extent if index < 0 else index
    source = builder.emit(relax.op.expand_dims(source, axis))
    return builder.emit(relax.op.slice_scatter(base, source, index, index + 1, 1, axis=axis))


def _cat(node: Any, importer: Any) -> relax.Expr:
    """TVM joins vectors of no elements too, which torch leaves out: caches begin with one."""
    parts = [importer.env[part] for part in node.args[0]]
    not_empty = [p for p in parts if [tir.as_int(n) for n in p.ty.shape.values] != [0]] or parts[:1]
    if len(not_empty) == 1:
        return not_empty[0]
    axis = int(arguments_by_name(node)["dim"])
    return importer.block_builder.emit(relax.op.concat(not_empty, axis=axis))


PARTS: dict[str, Converter] = {
    "cat.default": _cat,
    "select.int": _select,
    "select_scatter.default": _select_scatter,
    "slice.Tensor": _slice,
}
