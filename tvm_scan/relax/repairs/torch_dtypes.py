"""Operators of torch that TVM 0.27 computes in a dtype that has no code, or is not torch's.

It computes functions of real numbers in the integers that they are given, has no code for some
functions of halves, and types some results otherwise than torch does. Each is TVM's own converter
on operands of another dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float
from tvm_scan.relax.repairs.torch_casts import Converter, as_dtype, by_tvm, dtype_of


def _retyped(wanted: Callable[[str, str], str]) -> Converter:
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
                    env[operand] = as_dtype(builder, value, dtype)
            converted = by_tvm(node, importer)
        finally:
            env.update(before)
        # Of the results of a normalisation TVM gives the first alone, in a tuple.
        parts = list(converted.fields) if isinstance(converted, relax.Tuple) else [converted]
        parts = [as_dtype(builder, part, dtype) for part, dtype in zip(parts, kinds, strict=False)]
        return parts[0] if is_one else relax.Tuple(parts)

    return convert


def _real(operand: str, result: str) -> str:
    """Torch computes functions of real numbers in the dtype of their result."""
    return operand if is_float(operand) else result


def _wide(operand: str, result: str) -> str:
    """Dtype as `_real` gives it, halves in float32: TVM has no code for some functions of them."""
    return tir.wide_dtype(_real(operand, result))


def _wide_alone(operand: str, _result: str) -> str:
    """Halves in float32, whatever the result is."""
    return "float32" if operand == "bool" else tir.wide_dtype(operand)


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

DTYPES: dict[str, Converter] = {
    **{f"{name}.default": _retyped(_real) for name in _REAL.split()},
    **{f"{name}.default": _retyped(_wide) for name in _WIDE.split()},
    **dict.fromkeys(_NORMS.split(), _retyped(_wide)),
    **dict.fromkeys(_QUESTIONS.split(), _retyped(_wide_alone)),
}
