"""Gradients of ``relax.cumsum`` and ``relax.cumprod``.

TVM's own gradient of a sum subtracts one cumulative sum from the total, which cancels, and takes
no notice of ``exclusive``; of a product it has none. These send the gradient back by a scan from
the end, and never divide: a factor of 0 has the gradient that it should.
"""

from __future__ import annotations

import functools
from typing import Any

from tvm import relax
from tvm.relax.op import cumprod, cumsum, flatten, flip, multiply, reshape
from tvm.relax.op.base import register_gradient

from tvm_scan import loops, tir
from tvm_scan.relax.operators import emit_along_axis
from tvm_scan.relax.repairs.torch_casts import as_dtype

#: TVM registers its own at 10; a higher level takes precedence.
_LEVEL = 11


@functools.cache  # TVM refuses a second registration at the same level
def register_gradients() -> None:
    """Give ``relax.cumsum`` and ``relax.cumprod`` gradients for ``relax.transform.Gradient``.

    ``import tvm_scan.relax`` calls it; a second call does nothing. The gradient of a sum replaces
    TVM's, which subtracts from the total and cancels; a product has none in TVM. Inputs have any
    shape and a floating-point dtype; gradients have those of the inputs. The gradient of a product
    divides by nothing, so that it is right at zeros.

    Raises
    ------
    TVMError
        At the first call, if something else is registered at level 11.
    """
    register_gradient("relax.cumsum", cumsum_gradient, level=_LEVEL)
    register_gradient("relax.cumprod", cumprod_gradient, level=_LEVEL)


def cumsum_gradient(
    _var: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    """``dx = flip(cumsum(flip(dy)))``, exclusive where the sum was.

    ``LegalizeScans`` makes one scan from the end of it.
    """
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis)
    backwards = builder.emit(flip(gradient, axis))
    summed = builder.emit(cumsum(backwards, axis, exclusive=bool(call.attrs.exclusive)))
    return [_like(builder, flip(summed, axis), call.args[0])]


def cumprod_gradient(
    _var: relax.Var, call: relax.Call, gradient: relax.Var, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    """``dx[t] = (x[0] ... x[t-1]) s[t]``, where ``s`` is a linear recurrence from the end."""
    dtype, exclusive = tir.dtype_of(gradient), bool(call.attrs.exclusive)
    x = as_dtype(builder, call.args[0], dtype)
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis)
    if call.attrs.axis is None:
        x = builder.emit(flatten(x))

    # The carry is x[t+1] s[t+1], and where exclusive also + g[t+1].
    make = functools.partial(
        loops.affine,
        dtype=dtype,
        emit="exclusive" if exclusive else "late",
        reverse=True,
        has_initial=False,
    )
    back = emit_along_axis(builder, make, [x, gradient], axis, "product_gradient")[0]
    before = builder.emit(cumprod(x, axis, exclusive=True))
    return [_like(builder, multiply(before, back), call.args[0])]


def _like(builder: relax.BlockBuilder, value: Any, x: relax.Expr) -> relax.Expr:
    """`value` in the shape and dtype of `x`."""
    value = builder.emit(value)
    if len(x.ty.shape) != len(value.ty.shape):
        value = builder.emit(reshape(value, x.ty.shape))
    return as_dtype(builder, value, tir.dtype_of(x))
