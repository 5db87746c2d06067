"""Converters for torch's cumulative operators, and for operators that a user registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, tirx

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float
from tvm_scan.library.arguments import make_extent
from tvm_scan.library.lfilter import lfilter
from tvm_scan.relax.loops.build import Shape, call_loop, constant_extent
from tvm_scan.relax.loops.cumulative import extremum_loop, logsumexp_loop
from tvm_scan.relax.operators import emit_along_axis
from tvm_scan.relax.repairs.torch_convolutions import CONVOLUTIONS, convert_convolution
from tvm_scan.relax.repairs.torch_dtypes import REPAIRS

__all__ = ["CONVERTERS", "loop_converter"]

#: Takes the node and TVM's importer; gives an expression, or one for each result.
Converter = Callable[[Any, Any], Any]


def _cumulative(operator: Callable[..., relax.Expr]) -> Converter:
    def convert(node: Any, importer: Any) -> relax.Expr:
        x = importer.env[node.args[0]]
        # torch sums integers in int64 unless told otherwise; TVM's importer keeps their dtype.
        dtype = str(node.meta["val"].dtype).removeprefix("torch.")
        builder = importer.block_builder
        if not x.ty.shape.values:
            return builder.emit(relax.op.astype(x, dtype))
        return builder.emit(operator(x, int(node.args[1]), dtype))

    return convert


def _logcumsumexp(node: Any, importer: Any) -> relax.Expr:
    x = importer.env[node.args[0]]
    dtype = str(x.ty.dtype)

    def make(shape: Shape) -> tirx.PrimFunc:
        return logsumexp_loop(shape, dtype, dtype)

    return emit_along_axis(importer.block_builder, make, [x], int(node.args[1]), "logcumsumexp")[0]


def _extremum(name: str) -> Converter:
    def convert(node: Any, importer: Any) -> list[relax.Expr]:
        x, builder = importer.env[node.args[0]], importer.block_builder
        dtype = str(x.ty.dtype)
        compared = _COMPARED.get(dtype, dtype)
        if compared != dtype:
            x = builder.emit(relax.op.astype(x, compared))

        def make(shape: Shape) -> tirx.PrimFunc:
            return extremum_loop(name, shape, compared)

        values, indices = emit_along_axis(builder, make, [x], int(node.args[1]), name)
        if compared != dtype:
            values = builder.emit(relax.op.astype(values, dtype))
        return [values, indices]

    return convert


#: TVM has no smallest truth value, and cannot ask whether a bfloat16 is a number; both fit these.
_COMPARED = {"bool": "int8", "bfloat16": "float32"}


def _lfilter(node: Any, importer: Any) -> relax.Expr:
    """``tvm_scan::lfilter``, whose module need not be imported."""
    args = [importer.env[n] for n in node.args]
    extents = [
        make_extent("lfilter", name, tir.as_int(extent))
        for name, extent in zip(("n", "c", "length"), args[0].ty.shape.values, strict=True)
    ]
    taps = constant_extent(args[1], 1, "lfilter", "taps")
    loop = lfilter(*extents, taps=taps, dtype=str(args[0].ty.dtype))
    return call_loop(importer.block_builder, loop.without_attr("global_symbol"), args, "lfilter")[0]


def _select(node: Any, importer: Any) -> relax.Expr:
    # TVM 0.27 gathers with the index as it is, and so reads out of bounds where it is negative.
    x, axis, index = importer.env[node.args[0]], int(node.args[1]), int(node.args[2])
    axis %= len(x.ty.shape.values)
    extent = x.ty.shape.values[axis]
    index = index + extent if index < 0 else index
    part = importer.block_builder.emit(relax.op.strided_slice(x, [axis], [index], [index + 1]))
    return importer.block_builder.emit(relax.op.squeeze(part, [axis]))


def _select_scatter(node: Any, importer: Any) -> relax.Expr:
    base, source = (importer.env[n] for n in node.args[:2])
    builder = importer.block_builder
    axis = int(node.args[2]) % len(base.ty.shape.values)
    index, extent = node.args[3], base.ty.shape.values[axis]
    index = index + extent if index < 0 else index
    source = builder.emit(relax.op.expand_dims(source, axis))
    return builder.emit(relax.op.slice_scatter(base, source, index, index + 1, 1, axis=axis))


def _cat(node: Any, importer: Any) -> relax.Expr:
    """``cat`` without vectors of no elements, which torch leaves out: caches begin with one."""
    parts = [importer.env[part] for part in node.args[0]]
    kept = [p for p in parts if [tir.as_int(n) for n in p.ty.shape.values] != [0]] or parts[:1]
    axis = int(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0))
    if len(kept) == 1:
        return kept[0]
    return importer.block_builder.emit(relax.op.concat(kept, axis=axis))


def _arithmetic(
    name: str, operator: Callable[..., relax.Expr], of_bool: Callable[..., relax.Expr] | None = None
) -> Converter:
    """An operator of two operands; TVM 0.27 takes a Python float for an integer beside one.

    It has no code for sums and products of bool, which torch has, in its own ``isfinite`` too.
    """

    def convert(node: Any, importer: Any) -> relax.Expr:
        builder = importer.block_builder
        dtype = str(node.meta["val"].dtype).removeprefix("torch.")
        operands = [importer.env[a] if hasattr(a, "op") else a for a in node.args[:2]]
        tensors = [o for o in operands if isinstance(o, relax.Expr)]
        if of_bool is not None and dtype == "bool" and len(tensors) == 2:
            return builder.emit(of_bool(*tensors))
        widened = is_float(dtype) and any(not is_float(str(o.ty.dtype)) for o in tensors)
        if not widened or node.kwargs or len(node.args) > 2:
            return importer.create_convert_map()[name](node)

        def as_result(operand: Any) -> relax.Expr:
            if not isinstance(operand, relax.Expr):
                return relax.const(operand, dtype)
            if str(operand.ty.dtype) == dtype:
                return operand
            return builder.emit(relax.op.astype(operand, dtype))

        return builder.emit(operator(*(as_result(operand) for operand in operands)))

    return convert


def _matmul(builder: relax.BlockBuilder, left: Any, right: Any, dtype: str) -> relax.Expr:
    """A product in `dtype`, halves summed in float32; TVM 0.27 makes each one float32."""
    wide = tir.wide_dtype(dtype)
    return _as(builder, builder.emit(relax.op.matmul(left, right, out_dtype=wide)), dtype)


def _as(builder: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    return value if str(value.ty.dtype) == dtype else builder.emit(relax.op.astype(value, dtype))


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
        c = _as(builder, c, wide)
        if beta != 1:
            c = builder.emit(relax.op.multiply(c, relax.const(beta, wide)))
        result = builder.emit(relax.op.add(c, result))
    return _as(builder, result, dtype)


#: Converters by the name of the overload, for ``custom_convert_map`` of TVM's importer.
CONVERTERS: dict[str, Converter] = {
    **REPAIRS,
    "cumsum.default": _cumulative(relax.op.cumsum),
    "cumprod.default": _cumulative(relax.op.cumprod),
    "logcumsumexp.default": _logcumsumexp,
    "cummax.default": _extremum("cummax"),
    "cummin.default": _extremum("cummin"),
    "lfilter.default": _lfilter,
    "cat.default": _cat,
    "select.int": _select,
    "select_scatter.default": _select_scatter,
    "add.Tensor": _arithmetic("add.Tensor", relax.op.add, relax.op.logical_or),
    "sub.Tensor": _arithmetic("sub.Tensor", relax.op.subtract),
    "mul.Tensor": _arithmetic("mul.Tensor", relax.op.multiply, relax.op.logical_and),
    **dict.fromkeys((f"{name}.default" for name in ("bmm", "dot", "matmul", "mm", "mv")), _product),
    **dict.fromkeys(("addmm.default", "baddbmm.default"), _scaled_product),
    "div.Tensor": _arithmetic("div.Tensor", relax.op.divide),
    "maximum.default": _arithmetic("maximum.default", relax.op.maximum, relax.op.logical_or),
    "minimum.default": _arithmetic("minimum.default", relax.op.minimum, relax.op.logical_and),
    **dict.fromkeys(CONVOLUTIONS, convert_convolution),
}


def loop_converter(make: Callable[..., tirx.PrimFunc], name: str = "loop") -> Converter:
    """Make a converter for a custom operator from its sequential loop.

    Parameters
    ----------
    make : callable
        Given the types (``relax.TensorType``) of the operator's tensors and its other arguments
        by position and name, as the operator gets them, gives a function of TensorIR whose
        parameters are the tensors, then the results.
    name : str
        Name of the function in the module.

    Returns
    -------
    callable
        For ``custom_convert_map`` of ``from_exported``; the key is the overload's name, such as
        ``"linrec.default"`` of an operator ``mylib::linrec``.
    """

    def convert(node: Any, importer: Any) -> Any:
        def resolved(value: Any) -> Any:
            return importer.env[value] if hasattr(value, "op") else value

        def described(value: Any) -> Any:
            return value.ty if isinstance(value, relax.Expr) else value

        args = [resolved(value) for value in node.args]
        named = {key: resolved(value) for key, value in node.kwargs.items()}
        loop = make(
            *(described(value) for value in args),
            **{key: described(value) for key, value in named.items()},
        )
        tensors = [v for v in (*args, *named.values()) if isinstance(v, relax.Expr)]
        results = call_loop(importer.block_builder, loop, tensors, name)
        return results[0] if len(results) == 1 else results

    return convert
