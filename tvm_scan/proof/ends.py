"""The largest float of a dtype, beyond which there is infinity alone."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float
from tvm_scan.proof.logic import Bool
from tvm_scan.proof.reals import Real

_LARGE = Real.const(1.0)


def is_end(e: Any, sign: int) -> bool:
    """Return whether it is the largest float of its dtype, or minus that one."""
    dtype = tir.dtype_of(e)
    if not is_float(dtype):
        return False
    e = tir.simplify(e)
    top = float(tirx.max_value(dtype).value)
    return isinstance(e, tirx.FloatImm) and float(e.value) == sign * top


def ends_of(e: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """The sides of a comparison; of one with the largest float, whether ``a`` is infinite.

    Numbers are those that floats hold, of which none lies between the largest one and infinity:
    ``x > largest`` is ``x == infinity``, and ``x <= largest`` is its opposite but for NaN.
    """
    if isinstance(e, tirx.GT | tirx.LE) and is_end(e.b, 1):
        return _beyond(a.up, a.nan, 1), _LARGE
    if isinstance(e, tirx.LT | tirx.GE) and is_end(e.b, -1):
        return _beyond(a.down, a.nan, -1), -_LARGE
    return a, b


def _beyond(infinite: Bool, nan: Bool, sign: int) -> Real:
    """A number beyond ``_LARGE``, or its opposite, where it is infinite; else zero."""
    value = Real.pick(infinite, Real.const(2.0 * sign), Real.const(0.0))
    return Real(value.top, nan=nan)
