"""Operators that TVM 0.27's importer takes, and then cannot lower or computes otherwise than torch.

To be looked through, and thinned, with every later version of TVM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float

__all__ = ["REPAIRS", "dtype_of"]

#: Takes the node and TVM's importer; gives an expression, or one for each result.
Converter = Callable[[Any, Any], Any]


def dtype_of(value: Any) -> str:
    """TVM's name of the dtype of a tensor of torch."""
    return str(value.dtype).removeprefix("torch.")


def _as(builder: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    return value if str(value.ty.dtype) == dtype else builder.emit(relax.op.astype(value, dtype))


def _retyped(name: str, wanted: Callable[[str, str], str]) -> Converter:
    """TVM's own converter on operands of another dtype, its results in those of torch.

    `wanted` is given the dtypes of an operand and of the first result.
    """

    def convert(node: Any, importer: Any) -> Any:
        env, builder = importer.env, importer.block_builder
        results = node.meta["val"]
        is_one = not isinstance(results, list | tuple)
        kinds = [dtype_of(r) for r in ([results] if is_one else results)]
        before = {n: env[n] for n in node.all_input_nodes}
        try:
            for operand, value in before.items():
                if isinstance(getattr(value, "ty", None), relax.TensorType):
                    dtype = wanted(str(value.ty.dtype), kinds[0])
                    env[operand] = _as(builder, value, dtype)
            made = importer.create_convert_map()[name](node)
        finally:
            env.update(before)
        # Of the results of a normalisation TVM gives the first alone, in a tuple.
        parts = list(made.fields) if isinstance(made, relax.Tuple) else [made]
        parts = [_as(builder, part, dtype) for part, dtype in zip(parts, kinds, strict=False)]
        return parts[0] if is_one else relax.Tuple(parts)

    return convert


def _real(operand: str, result: str) -> str:
    """Torch computes functions of real numbers in the dtype of their result."""
    return operand if is_float(operand) else result


def _wide(operand: str, result: str) -> str:
    """As `_real`, halves in float32: TVM has no code for some functions of them."""
    return tir.wide_dtype(_real(operand, result))


def _wide_alone(operand: str, _result: str) -> str:
    """Halves in float32, whatever the result is."""
    return "float32" if operand == "bool" else tir.wide_dtype(operand)


def _clamp(name: str, low: int | None, high: int | None) -> Converter:
    """`clamp`, whose lower and upper bounds are the arguments of these numbers."""

    def convert(node: Any, importer: Any) -> relax.Expr:
        x, builder = importer.env[node.args[0]], importer.block_builder
        dtype = dtype_of(node.meta["val"])
        bounds = [_argument(node, low, "min"), _argument(node, high, "max")]
        tensors = [x, *(importer.env[b] for b in bounds if hasattr(b, "op"))]
        if name != "clamp.Tensor" and all(is_float(str(t.ty.dtype)) for t in tensors):
            return _as(builder, importer.create_convert_map()[name](node), dtype)
        # TVM writes a missing bound as an infinity, which no integer is.
        result = _as(builder, x, dtype)
        for bound, operator in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=True):
            if bound is None:
                continue
            if hasattr(bound, "op"):
                limit = _as(builder, importer.env[bound], dtype)
            else:  # torch wraps a negative number beside unsigned ones
                limit = relax.const(np.asarray(bound).astype(dtype), dtype)
            result = builder.emit(operator(result, limit))
        return result

    return convert


def _argument(node: Any, position: int | None, name: str) -> Any:
    if position is None:
        return None
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def _any(node: Any, importer: Any) -> relax.Expr:
    """TVM takes the largest number, in the dtype of the numbers."""
    x, builder = importer.env[node.args[0]], importer.block_builder
    dtype = str(x.ty.dtype)
    if dtype != "bool":
        x = _is_not(builder, relax.op.equal(x, relax.const(0, dtype)))
    axes, keep = _argument(node, 1, "dim"), bool(_argument(node, 2, "keepdim"))
    axes = [axes] if isinstance(axes, int) else None if axes is None else list(axes)
    found = builder.emit(relax.op.max(_as(builder, x, "int8"), axes, keep))
    return _as(builder, found, "bool")


def _is_not(builder: relax.BlockBuilder, truth: relax.Expr) -> relax.Expr:
    return builder.emit(relax.op.logical_not(builder.emit(truth)))


def _comparison(name: str) -> Converter:
    """A comparison as torch has it.

    TVM cuts the fraction off a number beside integers, has no code for bool, and finds NaN
    unequal to nothing.
    """
    operator = _COMPARISONS[name.partition(".")[0]]

    def convert(node: Any, importer: Any) -> relax.Expr:
        import torch

        values = [a.meta["val"] if hasattr(a, "op") else a for a in node.args[:2]]
        if not all(isinstance(v, torch.Tensor | bool | int | float) for v in values):
            return importer.create_convert_map()[name](node)
        dtype = str(torch.result_type(*values)).removeprefix("torch.")
        is_not = name.startswith("ne")
        if node.args[0] is node.args[1] and operator is relax.op.equal and is_float(dtype):
            # TVM takes what is compared with itself for equal, which is how NaN is found.
            truth = relax.op.isnan(importer.env[node.args[0]])
            return (relax.BlockBuilder.emit if is_not else _is_not)(importer.block_builder, truth)
        operands = _alike(node.args[:2], importer, "int8" if dtype == "bool" else dtype)
        truth = operator(*operands)
        return (_is_not if is_not else relax.BlockBuilder.emit)(importer.block_builder, truth)

    return convert


_COMPARISONS: dict[str, Callable[..., relax.Expr]] = {
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
    names = ("alpha", "scale", "input_scale")
    given = [_argument(node, i, name) for i, name in enumerate(names, 1)]
    alpha, scale, inner = (1 if value is None else value for value in given)
    if scale == 1 and inner == 1:
        return importer.create_convert_map()["elu.default"](node)
    dtype = str(x.ty.dtype)
    wide = tir.wide_dtype(dtype)
    x = _as(builder, x, wide)

    def times(value: relax.Expr, factor: float) -> relax.Expr:
        return builder.emit(relax.op.multiply(value, relax.const(factor, wide)))

    below = builder.emit(relax.op.subtract(relax.op.exp(times(x, inner)), relax.const(1, wide)))
    is_above = builder.emit(relax.op.greater(x, relax.const(0, wide)))
    result = relax.op.where(is_above, times(x, scale), times(below, alpha * scale))
    return _as(builder, builder.emit(result), dtype)


def _division(node: Any, importer: Any) -> relax.Expr:
    """TVM writes a number beside a tensor as int32 or float32, whatever the tensor is."""
    builder, dtype = importer.block_builder, dtype_of(node.meta["val"])
    mode = "floor" if "floor" in node.target.__name__ else node.kwargs.get("rounding_mode")
    if mode != "floor":
        return importer.create_convert_map()[node.target.__name__](node)
    left, right = _alike(node.args[:2], importer, dtype)
    return builder.emit(relax.op.floor_divide(left, right))


def _where(node: Any, importer: Any) -> relax.Expr:
    """TVM takes two tensors of one dtype only."""
    values = _alike(node.args[1:3], importer, dtype_of(node.meta["val"]))
    return importer.block_builder.emit(relax.op.where(importer.env[node.args[0]], *values))


def _alike(operands: Any, importer: Any, dtype: str) -> list[relax.Expr]:
    """Tensors and numbers as tensors of one dtype."""
    return [
        _as(importer.block_builder, importer.env[operand], dtype)
        if hasattr(operand, "op")
        else relax.const(operand, dtype)
        for operand in operands
    ]


#: Functions of real numbers, which torch also takes of integers.
_REAL = "atanh cos erf exp expm1 log log10 log1p log2 reciprocal rsqrt sigmoid sin sqrt tan tanh"
#: Those for which TVM has no code in halves.
_WIDE = "acos acosh asin asinh atan cosh sinh"
#: Overloads that TVM lowers to another dtype in halves, or not in bfloat16.
_NORMS = (
    "batch_norm.default _native_batch_norm_legit_no_training.default pow.Tensor_Scalar "
    "pow.Tensor_Tensor"
)
#: The same, whose results are of another kind than what they are asked of.
_QUESTIONS = "argmax.default argmin.default isinf.default isnan.default max.dim"

REPAIRS: dict[str, Converter] = {
    **{f"{name}.default": _retyped(f"{name}.default", _real) for name in _REAL.split()},
    **{f"{name}.default": _retyped(f"{name}.default", _wide) for name in _WIDE.split()},
    **{name: _retyped(name, _wide) for name in _NORMS.split()},
    **{name: _retyped(name, _wide_alone) for name in _QUESTIONS.split()},
    "clamp.default": _clamp("clamp.default", 1, 2),
    "clamp.Tensor": _clamp("clamp.Tensor", 1, 2),
    "clamp_min.default": _clamp("clamp_min.default", 1, None),
    "clamp_max.default": _clamp("clamp_max.default", None, 1),
    **dict.fromkeys(("any.default", "any.dim", "any.dims"), _any),
    "elu.default": _elu,
    **dict.fromkeys(("floor_divide.default", "div.Tensor_mode"), _division),
    "where.self": _where,
    **{
        name: _comparison(name)
        for name in (f"{c}.{kind}" for c in _COMPARISONS for kind in ("Scalar", "Tensor"))
    },
}
