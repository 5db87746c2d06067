"""Elementwise operators of torch that TVM 0.27 computes otherwise than torch, or cannot lower.

Each says below what TVM makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float
from tvm_scan.relax.repairs.torch_casts import (
    Converter,
    alike,
    arguments_by_name,
    as_dtype,
    by_tvm,
    dtype_of,
)

_Operator = Callable[..., relax.Expr]


def _arithmetic(operator: _Operator, of_bool: _Operator | None = None) -> Converter:
    """An operator of two operands, whose result is a float or a truth value.

    TVM takes a Python float for an integer beside one, and has no code for sums and products of
    bool, which torch has, in its own ``isfinite`` too.
    """

    def convert(node: Any, importer: Any) -> relax.Expr:
        builder = importer.block_builder
        dtype = dtype_of(node.meta["val"])
        operands = [importer.env[a] if hasattr(a, "op") else a for a in node.args[:2]]
        tensors = [o for o in operands if isinstance(o, relax.Expr)]
        if of_bool is not None and dtype == "bool" and len(tensors) == 2:
            return builder.emit(of_bool(*tensors))
        widened = is_float(dtype) and any(not is_float(str(o.ty.dtype)) for o in tensors)
        if not widened or node.kwargs or len(node.args) > 2:
            return by_tvm(node, importer)
        return builder.emit(operator(*alike(node.args[:2], importer, dtype)))

    return convert


def _clamp(node: Any, importer: Any) -> relax.Expr:
    """TVM writes a missing bound as an infinity, which no integer is."""
    x, builder = importer.env[node.args[0]], importer.block_builder
    dtype, arguments = dtype_of(node.meta["val"]), arguments_by_name(node)
    bounds = [arguments.get("min"), arguments.get("max")]
    tensors = [x, *(importer.env[b] for b in bounds if hasattr(b, "op"))]
    is_tensor = node.target.__name__ == "clamp.Tensor"
    if not is_tensor and all(is_float(str(t.ty.dtype)) for t in tensors):
        return as_dtype(builder, by_tvm(node, importer), dtype)
    result = as_dtype(builder, x, dtype)
    for bound, operator in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=True):
        if bound is None:
            continue
        if hasattr(bound, "op"):
            limit = as_dtype(builder, importer.env[bound], dtype)
        else:  # torch wraps a negative number beside unsigned ones
            limit = relax.const(np.asarray(bound).astype(dtype), dtype)
        result = builder.emit(operator(result, limit))
    return result


def _any(node: Any, importer: Any) -> relax.Expr:
    """TVM takes the largest number, in the dtype of the numbers."""
    x, builder = importer.env[node.args[0]], importer.block_builder
    dtype, arguments = str(x.ty.dtype), arguments_by_name(node)
    if dtype != "bool":
        x = _is_not(builder, relax.op.equal(x, relax.const(0, dtype)))
    axes, keep = arguments.get("dim"), bool(arguments.get("keepdim"))
    axes = [axes] if isinstance(axes, int) else None if axes is None else list(axes)
    largest = builder.emit(relax.op.max(as_dtype(builder, x, "int8"), axes, keep))
    return as_dtype(builder, largest, "bool")


def _is_not(builder: relax.BlockBuilder, truth: relax.Expr) -> relax.Expr:
    return builder.emit(relax.op.logical_not(builder.emit(truth)))


def _comparison(operator: _Operator, *, is_not: bool) -> Converter:
    """A comparison as torch has it, negated where `is_not`.

    TVM cuts the fraction off a number beside integers, has no code for bool, and finds NaN
    unequal to nothing.
    """

    def convert(node: Any, importer: Any) -> relax.Expr:
        import torch

        values = [a.meta["val"] if hasattr(a, "op") else a for a in node.args[:2]]
        if not all(isinstance(v, torch.Tensor | bool | int | float) for v in values):
            return by_tvm(node, importer)
        dtype = str(torch.result_type(*values)).removeprefix("torch.")
        if node.args[0] is node.args[1] and operator is relax.op.equal and is_float(dtype):
            # TVM takes what is compared with itself for equal, which is how NaN is found.
            truth = relax.op.isnan(importer.env[node.args[0]])
            return (relax.BlockBuilder.emit if is_not else _is_not)(importer.block_builder, truth)
        truth = operator(*alike(node.args[:2], importer, "int8" if dtype == "bool" else dtype))
        return (_is_not if is_not else relax.BlockBuilder.emit)(importer.block_builder, truth)

    return convert


_COMPARISONS: dict[str, _Operator] = {
    "eq": relax.op.equal,
    "ne": relax.op.equal,
    "ge": relax.op.greater_equal,
    "gt": relax.op.greater,
    "le": relax.op.less_equal,
    "lt": relax.op.less,
}


def _elu(node: Any, importer: Any) -> relax.Expr:
    """TVM leaves out the scales, with which ``selu`` is an ``elu``."""
    x, builder = importer.env[node.args[0]], importer.block_builder
    _, alpha, scale, inner = arguments_by_name(node).values()
    if scale == 1 and inner == 1:
        return by_tvm(node, importer)
    dtype = str(x.ty.dtype)
    wide = tir.wide_dtype(dtype)
    x = as_dtype(builder, x, wide)

    def times(value: relax.Expr, factor: float) -> relax.Expr:
        return builder.emit(relax.op.multiply(value, relax.const(factor, wide)))

    below = builder.emit(relax.op.subtract(relax.op.exp(times(x, inner)), relax.const(1, wide)))
    is_above = builder.emit(relax.op.greater(x, relax.const(0, wide)))
    result = relax.op.where(is_above, times(x, scale), times(below, alpha * scale))
    return as_dtype(builder, builder.emit(result), dtype)


def _division(node: Any, importer: Any) -> relax.Expr:
    """TVM writes a number beside a tensor as int32 or float32, whatever the tensor is."""
    builder, dtype = importer.block_builder, dtype_of(node.meta["val"])
    mode = "floor" if "floor" in node.target.__name__ else node.kwargs.get("rounding_mode")
    if mode != "floor":
        return by_tvm(node, importer)
    left, right = alike(node.args[:2], importer, dtype)
    return builder.emit(relax.op.floor_divide(left, right))


def _where(node: Any, importer: Any) -> relax.Expr:
    """TVM takes two tensors of one dtype only."""
    values = alike(node.args[1:3], importer, dtype_of(node.meta["val"]))
    return importer.block_builder.emit(relax.op.where(importer.env[node.args[0]], *values))


ELEMENTWISE: dict[str, Converter] = {
    "add.Tensor": _arithmetic(relax.op.add, relax.op.logical_or),
    "sub.Tensor": _arithmetic(relax.op.subtract),
    "mul.Tensor": _arithmetic(relax.op.multiply, relax.op.logical_and),
    "div.Tensor": _arithmetic(relax.op.divide),
    "maximum.default": _arithmetic(relax.op.maximum, relax.op.logical_or),
    "minimum.default": _arithmetic(relax.op.minimum, relax.op.logical_and),
    **dict.fromkeys(("clamp.default", "clamp.Tensor"), _clamp),
    **dict.fromkeys(("clamp_min.default", "clamp_max.default"), _clamp),
    **dict.fromkeys(("any.default", "any.dim", "any.dims"), _any),
    "elu.default": _elu,
    **dict.fromkeys(("floor_divide.default", "div.Tensor_mode"), _division),
    "where.self": _where,
    **{
        f"{name}.{kind}": _comparison(operator, is_not=name == "ne")
        for name, operator in _COMPARISONS.items()
        for kind in ("Scalar", "Tensor")
    },
}
