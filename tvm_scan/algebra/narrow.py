"""Steps that compute in a wider integer than the carry, written in the carry's own dtype."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.choices import as_choice
from tvm_scan.algebra.literal import bits_of, is_integer, wrapped

#: Where sums and products of a dtype wrap in TVM's code; wider ones may not overflow there.
_WRAPPING = 16


def in_own_dtype(step: Any, olds: tuple[Var, ...], dtype: str) -> Any:
    """``step`` without the way through a wider integer, where that is provably the same.

    Theorem. To keep the low ``n`` bits is a ring homomorphism: of sums, differences, products,
    shifts to the left and bitwise operators they depend on the operands' low ``n`` bits alone.
    So ``cast(n bits, e)`` of an ``e`` made of these equals the same operators on operands that
    are cast first. Quotients, comparisons, max and min see the high bits, and stay.

    That needs arithmetic that wraps at ``n`` bits, which TVM's is up to 16.

    Parameters
    ----------
    step : Expr
        The carry after the step.
    olds : tuple of Var
        The carries before it.
    dtype : str
        Dtype of the carry.

    Returns
    -------
    Expr
        A step of the same value; ``step`` itself where nothing is proven.
    """
    if not isinstance(step, tirx.Cast) or not is_integer(dtype):
        return step
    if bits_of(dtype) > _WRAPPING or not is_integer(tir.dtype_of(step.value)):
        return step
    narrowed = _low(step.value, olds, dtype)
    return step if narrowed is None else narrowed


_RING = (tirx.Add, tirx.Sub, tirx.Mul)
_BITWISE = {
    tirx.BitwiseAnd: tirx.bitwise_and,
    tirx.BitwiseOr: tirx.bitwise_or,
    tirx.BitwiseXor: tirx.bitwise_xor,
}


def _low(e: Any, olds: tuple[Var, ...], dtype: str) -> Any:
    """The low bits of ``e`` as an expression of ``dtype``; None where that is not proven."""
    if isinstance(e, tirx.IntImm):
        return wrapped(int(e.value), dtype)
    if not tir.contains_var(e, olds):
        return e if tir.dtype_of(e) == dtype else tirx.Cast(dtype, e)
    if isinstance(e, Var):
        return e if tir.dtype_of(e) == dtype else None
    if isinstance(e, tirx.Cast):
        # A wider integer has the low bits of what was cast; a narrower one has lost some.
        inner = tir.dtype_of(e.value)
        keeps_low_bits = is_integer(inner) and bits_of(tir.dtype_of(e)) >= bits_of(dtype)
        return (
            _low(e.value, olds, dtype)
            if keeps_low_bits and bits_of(inner) >= bits_of(dtype)
            else None
        )
    choice = as_choice(e)
    if choice is not None:
        parts = [_low(x, olds, dtype) for x in choice[1:]]
        return (
            None if any(part is None for part in parts) else tirx.op.if_then_else(choice[0], *parts)
        )
    if isinstance(e, tirx.LShift):
        by = tir.as_int(e.b)
        value = _low(e.a, olds, dtype)
        if value is None or by is None or not 0 <= by < bits_of(dtype):
            return None
        return tirx.op.shift_left(value, tirx.const(by, dtype))
    if isinstance(e, tirx.BitwiseNot):
        value = _low(e.a, olds, dtype)
        return None if value is None else tirx.bitwise_not(value)
    if type(e) not in (*_RING, *_BITWISE):
        return None
    left, right = _low(e.a, olds, dtype), _low(e.b, olds, dtype)
    if left is None or right is None:
        return None
    return _BITWISE.get(type(e), type(e))(left, right)
