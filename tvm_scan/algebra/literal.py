"""Constants of a dtype, and what kind of number a dtype is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_scan import tir


def is_float(dtype: str) -> bool:
    """Return whether ``dtype`` is a floating-point type."""
    return dtype.startswith(("float", "bfloat"))


def is_integer(dtype: str) -> bool:
    """Return whether ``dtype`` is of integers; bool is not."""
    return dtype.startswith(("int", "uint"))


def is_signed(dtype: str) -> bool:
    """Return whether ``dtype`` has negative integers."""
    return dtype.startswith("int")


def is_bool(dtype: str) -> bool:
    """Return whether ``dtype`` is the truth values."""
    return dtype == "bool"


def _const(value: float, dtype: str) -> Any:
    return tirx.const(value, dtype)


def zero(dtype: str) -> Any:
    """The constant 0 (false)."""
    return _const(0, dtype)


def one(dtype: str) -> Any:
    """The constant 1 (true)."""
    return _const(1, dtype)


def smallest(dtype: str) -> Any:
    """Minus infinity, or the smallest integer."""
    return _inf(dtype, -1) if is_float(dtype) else tirx.min_value(dtype)


def largest(dtype: str) -> Any:
    """Infinity, or the largest integer."""
    return _inf(dtype, 1) if is_float(dtype) else tirx.max_value(dtype)


def _inf(dtype: str, sign: int) -> Any:
    return tirx.const(sign * float("inf"), dtype)


def all_ones(dtype: str) -> Any:
    """The integer with every bit set (true for bool)."""
    if dtype == "bool" or not dtype.startswith("uint"):
        return _const(1 if dtype == "bool" else -1, dtype)
    return tirx.max_value(dtype)


def zero_keeping_product(gate: Any, value: Any, dtype: str) -> Any:
    """``gate * value``, but zero where ``value`` is zero and ``gate`` has overflowed.

    A product of many finite gates may overflow to infinity although the sequential loop, whose
    state is zero, never leaves zero; ``inf * 0`` would then invent a NaN. NaN gates still
    propagate. The price: an input gate that is itself infinite, met by a state that is exactly
    zero, gives zero here and NaN in the loop.
    """
    if not is_float(dtype):
        return gate * value
    overflowed = tirx.Or(tirx.EQ(gate, _inf(dtype, 1)), tirx.EQ(gate, _inf(dtype, -1)))
    return tirx.Select(tirx.And(tirx.EQ(value, zero(dtype)), overflowed), value, gate * value)


def is_constant(expr: Any, value: int) -> bool:
    """Return whether ``expr`` is the number ``value``, written out."""
    return isinstance(expr, tirx.IntImm | tirx.FloatImm) and float(expr.value) == value


def times(left: Any, right: Any) -> Any:
    """``left * right``; constant integers wrap around as the machine's do (TVM refuses to)."""
    return _folded(left, right, lambda a, b: a * b)


def plus(left: Any, right: Any) -> Any:
    """``left + right``, constants as in ``times``."""
    return _folded(left, right, lambda a, b: a + b)


def minus(left: Any, right: Any) -> Any:
    """``left - right``, constants as in ``times``."""
    return _folded(left, right, lambda a, b: a - b)


def folded_bits(expr: Any) -> Any:
    """``expr`` with bitwise operators of constants worked out (TVM cannot, of unsigned ones)."""

    def fold(e: Any) -> Any:
        parts = (e.a,) if isinstance(e, tirx.BitwiseNot) else (e.a, e.b)
        if not all(isinstance(part, tirx.IntImm) for part in parts):
            return e
        return wrapped(_BITS[type(e)](*(int(part.value) for part in parts)), tir.dtype_of(e))

    return tvm_ffi.structural_map(expr, [(kind, fold) for kind in _BITS])


_BITS: dict[Any, Callable[..., int]] = {
    tirx.BitwiseNot: lambda a: ~a,
    tirx.BitwiseAnd: lambda a, b: a & b,
    tirx.BitwiseOr: lambda a, b: a | b,
    tirx.BitwiseXor: lambda a, b: a ^ b,
    tirx.LShift: lambda a, b: a << b,
    tirx.RShift: lambda a, b: a >> b,
}


def bits_of(dtype: str) -> int:
    """Bits of an integer; a bool has one."""
    return int("".join(filter(str.isdigit, dtype)) or 1)


def wrapped(value: int, dtype: str) -> Any:
    """The constant of an integer dtype that a number of any size wraps to."""
    bits = bits_of(dtype)
    value %= 1 << bits
    if not dtype.startswith(("uint", "bool")) and value >> (bits - 1):
        value -= 1 << bits
    return tirx.IntImm(dtype, value)


def _folded(left: Any, right: Any, run: Callable[[Any, Any], Any]) -> Any:
    if not (isinstance(left, tirx.IntImm) and isinstance(right, tirx.IntImm)):
        return run(left, right)
    return wrapped(run(int(left.value), int(right.value)), tir.dtype_of(left))
