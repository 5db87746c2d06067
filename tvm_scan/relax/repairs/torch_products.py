"""Products of matrices in the dtype of their operands, where TVM 0.27 makes each one float32."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvm_scan import tir
from tvm_scan.relax.repairs.torch_casts import Converter, as_dtype


def _matmul(builder: relax.BlockBuilder, left: Any, right: Any, dtype: str) -> relax.Expr:
    """A product in `dtype`, halves summed in float32."""
    wide = tir.wide_dtype(dtype)
    return as_dtype(builder, builder.emit(relax.op.matmul(left, right, out_dtype=wide)), dtype)


def _product(node: Any, importer: Any) -> relax.Expr:
    left, right = (importer.env[argument] for argument in node.args[:2])
    return _matmul(importer.block_builder, left, right, str(left.ty.dtype))


def _scaled_product(node: Any, importer: Any) -> relax.Expr:
    """``beta * c + alpha * (a @ b)``; a `beta` of 0 leaves `c` out, NaN and all."""
    builder = importer.block_builder
    c, left, right = (importer.env[argument] for argument in node.args[:3])
    alpha, beta = (node.kwargs.get(name, 1) for name in ("alpha", "beta"))
    dtype = str(left.ty.dtype)
    wide = tir.wide_dtype(dtype)
    result = _matmul(builder, left, right, wide)
    if alpha != 1:
        result = builder.emit(relax.op.multiply(result, relax.const(alpha, wide)))
    if beta != 0:
        c = as_dtype(builder, c, wide)
        if beta != 1:
            c = builder.emit(relax.op.multiply(c, relax.const(beta, wide)))
        result = builder.emit(relax.op.add(c, result))
    return as_dtype(builder, result, dtype)


PRODUCTS: dict[str, Converter] = {
    **dict.fromkeys((f"{name}.default" for name in ("bmm", "dot", "matmul", "mm", "mv")), _product),
    **dict.fromkeys(("addmm.default", "baddbmm.default"), _scaled_product),
}
