"""Parts of tensors, which TVM 0.27 reads out of bounds, does not import, or joins otherwise."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvm_scan import tir
from tvm_scan.relax.repairs.torch_casts import Converter

__all__ = ["PARTS"]


def _select(node: Any, importer: Any) -> relax.Expr:
    """TVM gathers with the index as it is, and so reads out of bounds where it is negative."""
    x, axis, index = importer.env[node.args[0]], int(node.args[1]), int(node.args[2])
    axis %= len(x.ty.shape.values)
    extent = x.ty.shape.values[axis]
    index = index + extent if index < 0 else index
    part = importer.block_builder.emit(relax.op.strided_slice(x, [axis], [index], [index + 1]))
    return importer.block_builder.emit(relax.op.squeeze(part, [axis]))


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
    axis = int(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0))
    if len(not_empty) == 1:
        return not_empty[0]
    return importer.block_builder.emit(relax.op.concat(not_empty, axis=axis))


PARTS: dict[str, Converter] = {
    "cat.default": _cat,
    "select.int": _select,
    "select_scatter.default": _select_scatter,
}
