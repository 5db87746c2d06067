"""Softplus and the logistic function of a step in few instructions.

A selective scan has one of each at every step of a channel. CUDA's ``log1pf``, ``expf`` and
division take any argument; here the form of the expression says more:

- ``log1p(exp(x))`` with ``x <= 0``, the tail of a softplus: the exponential is in [0, 1], where
  ``log1p(t) / t`` is a polynomial of degree 8, through Chebyshev's points, off by 2e-8;
- ``x if x > c else log1p(exp(x))`` with a constant ``c >= 17``, a softplus as PyTorch writes it, is
  ``max(x, 0) + log1p(exp(-|x|))``, whose second term is lost in the rounding of the first there;
- ``y / (1 + exp(-z))``: the reciprocal of the sum is one instruction (``rcp.approx.ftz.f32``,
  1 ulp); an exponential that overflows leaves zero.

Both exponentials are the bare power of two of a product that was rounded, times ``1 + lost``, where
``lost`` is what the product is off by (the method of Cody and Waite, after the fact instead of
before). It is no number where the argument is infinite, and has to be one. A multiply-add that
saturates, to [0, 1] and NaN to 0, does that for nothing where ``lost`` is never negative: so the
factor of the product is not the number next to log2(e), but beyond it by more than the product is
rounded by, away from zero for arguments that are not positive and towards it for others. Of an
exponential that is below one the logistic function then takes what is lost as 0, which is half an
ulp of its sum. With the two ulp of the instruction both functions are off by 6 ulp at most where
the argument is up to 16, and by 8 up to 80; results below 2^-120 may be zero. NaN stay NaN, and
infinities have their limits.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm
from tvm.script import tirx as T

from tvm_scan import tir
from tvm_scan.schedules.common.signs import never_positive

#: ``log1p(t) / t`` in [0, 1]; the first term set to 1, so that it is exact for small ``t``.
_LOG1P = (
    "1.0f",
    "-0.49999446f",
    "0.3331812f",
    "-0.248353988f",
    "0.190768808f",
    "-0.136022478f",
    "0.0775160864f",
    "-0.0290740654f",
    "0.0051261024f",
)


def _horner() -> str:
    value = _LOG1P[-1]
    for c in reversed(_LOG1P[:-1]):
        value = f"fmaf({value}, t, {c})"
    return value


#: log2(e) times 1 + 6.9e-8, and times 1 - 9.6e-8; a product is off by a share of 6.0e-8 at most.
_ABOVE, _BELOW = "1.44269514f", "1.4426949f"


def _exp(factor: str) -> str:
    """``e^x = y (1 + lost)``, where ``x`` has the sign for which ``factor`` is."""
    return f"""  float p = x * {factor};
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(p));
  float lost = __saturatef(fmaf(p, -0.693147182f, x));
"""


_TAIL, _LOGISTIC = "scan_softplus_tail", "scan_logistic"
_SOURCES = {
    _TAIL: f"""
__forceinline__ __device__ float {_TAIL}(float x) {{
{_exp(_ABOVE)}  float t = fmaf(y, lost, y);
  return {_horner()} * t;
}}
""",
    _LOGISTIC: f"""
__forceinline__ __device__ float {_LOGISTIC}(float z) {{
  float x = -z;
{_exp(_BELOW)}  float sum = fmaf(y, 1.0f + lost, 1.0f);
  float part;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(sum));
  return part;
}}
""",
}
#: Instructions that nvcc makes of them.
_COUNTS = {_TAIL: 13.0, _LOGISTIC: 6.0}
_F32 = "float32"
#: ``exp(-x)`` is less than half an ulp of any ``x`` from here on.
_LOST = 17.0


def in_few_instructions(stmt: Any) -> Any:
    """``stmt`` with those two functions in the place of what computes them in float32.

    Parameters
    ----------
    stmt : Stmt
        A part of a step, for a device with CUDA's instructions.
    """

    def on_call(call: Call) -> Any:
        if tir.dtype_of(call) != _F32:
            return call
        if tir.call_name(call) == "prim.if_then_else":
            condition, above, below = call.args
            return _softplus(condition, above, below, call)
        if tir.call_name(call) != "tirx.log1p":
            return call
        power = call.args[0]
        if tir.call_name(power) != "tirx.exp" or not never_positive(power.args[0]):
            return call
        return _called(_TAIL, power.args[0])

    def on_quotient(quotient: tirx.Div) -> Any:
        if tir.dtype_of(quotient) != _F32:
            return quotient
        argument = _of_logistic(quotient.b)
        return quotient if argument is None else quotient.a * _called(_LOGISTIC, argument)

    def on_select(node: tirx.Select) -> Any:
        return _softplus(node.condition, node.true_value, node.false_value, node)

    changes = [(Call, on_call), (tirx.Div, on_quotient), (tirx.Select, on_select)]
    return tvm_ffi.structural_map(stmt, changes)


def instructions_saved(stmt: Any, counted: float) -> float:
    """Instructions that calls take less than ``counted`` each, given the functions of this file."""
    calls = (c for c in tir.nodes(stmt, Call) if tir.call_name(c) == "tirx.cuda.func_call")
    names = (call.args[0].value for call in calls if isinstance(call.args[0], StringImm))
    return sum(counted - _COUNTS.get(name, counted) for name in names)


def _called(name: str, argument: Any) -> Any:
    return T.cuda.func_call(name, argument, source_code=_SOURCES[name], return_type=_F32)


def _softplus(condition: Any, above: Any, below: Any, otherwise: Any) -> Any:
    """``above if condition else below`` where that is a softplus; else ``otherwise``."""
    if not isinstance(condition, (tirx.GT, tirx.GE)) or not isinstance(condition.b, tirx.FloatImm):
        return otherwise
    if tir.call_name(below) != "tirx.log1p" or tir.call_name(below.args[0]) != "tirx.exp":
        return otherwise
    if condition.b.value < _LOST or tir.dtype_of(above) != _F32:
        return otherwise
    if not all(tir.structurally_equal(x, above) for x in (condition.a, below.args[0].args[0])):
        return otherwise
    zero, minus = tirx.FloatImm(_F32, 0.0), tirx.FloatImm(_F32, -1.0)
    return tirx.Max(above, zero) + _called(_TAIL, tirx.abs(above) * minus)


def _of_logistic(sum_: Any) -> Any:
    """``z`` of ``1 + exp(-z)``; None for other expressions."""
    if not isinstance(sum_, tirx.Add):
        return None
    for base, power in ((sum_.a, sum_.b), (sum_.b, sum_.a)):
        if _is(base, 1.0) and tir.call_name(power) == "tirx.exp":
            return _negated(power.args[0])
    return None


def _negated(x: Any) -> Any:
    """``z`` of ``-z``; None for other expressions."""
    if isinstance(x, tirx.Sub) and _is(x.a, 0.0):
        return x.b
    if isinstance(x, tirx.Mul):
        for sign, z in ((x.a, x.b), (x.b, x.a)):
            if _is(sign, -1.0):
                return z
    return None


def _is(x: Any, value: float) -> bool:
    return isinstance(x, tirx.FloatImm) and float(x.value) == value
