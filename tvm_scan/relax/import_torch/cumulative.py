"""torch's running extrema and sums of exponentials: the loops of tvm_scan.torch, in Relax."""

from __future__ import annotations

from functools import partial

from tvm import relax

from tvm_scan import loops, tir
from tvm_scan.relax.operators import emit_along_axis
from tvm_scan.relax.repairs.torch_casts import as_dtype

#: TVM has no smallest truth value; it fits this.
_COMPARED = {"bool": "int8"}


def emit_extremum(
    builder: relax.BlockBuilder,
    x: relax.Expr,
    axis: int,
    *,
    smallest: bool,
    has_values: bool = True,
    **options: bool,
) -> list[relax.Expr]:
    """Emit the running maximum or minimum, where it was taken, or either alone.

    `options` are further ones of `loops.extremum`.
    """
    dtype = tir.dtype_of(x)
    compared = _COMPARED.get(dtype, dtype)
    x = as_dtype(builder, x, compared)
    options |= {"smallest": smallest, "has_values": has_values}
    make = partial(loops.extremum, dtype=compared, **options)
    results = emit_along_axis(builder, make, [x], axis, "cummin" if smallest else "cummax")
    if has_values:
        results[0] = as_dtype(builder, results[0], dtype)
    return results


def emit_log_sum_exp(
    builder: relax.BlockBuilder, x: relax.Expr, axis: int, *, reverse: bool = False
) -> relax.Expr:
    """Emit ``log(exp(x[0]) + ... + exp(x[t]))``, from the running maximum."""
    options = {"smallest": False, "reverse": reverse, "has_indices": False}
    (top,) = emit_extremum(builder, x, axis, **options)
    make = partial(loops.logcumsumexp, dtype=str(x.ty.dtype), reverse=reverse)
    return emit_along_axis(builder, make, [x, top], axis, "logcumsumexp")[0]
