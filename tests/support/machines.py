"""Integer expressions as the code that TVM makes of them computes them, undefined results told."""

import operator

from tvm import tirx

from tvm_scan import tir

__all__ = ["Undefined", "on_machine", "wrap"]


class Undefined(Exception):
    """An overflow that LLVM or C leaves undefined."""


def wrap(value, dtype):
    """A number modulo ``2^n``, as TensorIR means an integer of n bits."""
    bits = int(dtype.lstrip("uint"))
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype[0] == "i" and value >> (bits - 1) else value


def _computed(dtype, device):
    """The dtype in which an operator is computed, and whether it may not overflow."""
    bits = int(dtype.lstrip("uint"))
    if device == "tir":
        return dtype, False
    if device == "cpu":
        return dtype, bits >= 32  # marked nsw or nuw
    if bits < 32:
        return "int32", True  # promoted
    return dtype, dtype[0] == "i"


_OPERATORS = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorMod: operator.mod,
    tirx.FloorDiv: operator.floordiv,
    tirx.Max: max,
    tirx.Min: min,
    tirx.BitwiseAnd: operator.and_,
    tirx.BitwiseOr: operator.or_,
    tirx.BitwiseXor: operator.xor,
    tirx.EQ: operator.eq,
    tirx.NE: operator.ne,
    tirx.LT: operator.lt,
    tirx.LE: operator.le,
    tirx.GT: operator.gt,
    tirx.GE: operator.ge,
}
_GROWING = (tirx.Add, tirx.Sub, tirx.Mul, tirx.LShift, tirx.BitwiseNot)


def on_machine(expr, values, device):
    """Value of an integer expression.

    Parameters
    ----------
    expr : Expr
        Over variables, with constants, casts, choices and operators.
    values : dict
        Name of a variable -> its value.
    device : {"cpu", "cuda", "tir"}
        Whose code generator it is for; "tir" for what is meant.

    Returns
    -------
    int or bool

    Raises
    ------
    Undefined
        If the machine's arithmetic overflows where that means nothing.
    """

    def run(e):
        return on_machine(e, values, device)

    if isinstance(e := expr, tirx.Var):
        return values[e.name]
    if isinstance(e, tirx.IntImm):
        return int(e.value)
    if isinstance(e, tirx.Cast):
        return wrap(run(e.value), tir.dtype_of(e))
    if isinstance(e, tirx.Select) or tir.call_name(e) == "prim.if_then_else":
        parts = e.args if tir.call_name(e) else (e.condition, e.true_value, e.false_value)
        return run(parts[1]) if run(parts[0]) else run(parts[2])
    if tir.call_name(e) == "tirx.reinterpret":
        return wrap(run(e.args[0]), tir.dtype_of(e))
    if isinstance(e, tirx.BitwiseNot):
        value = ~run(e.a)
    elif isinstance(e, tirx.LShift):
        value = run(e.a) << run(e.b)
        if device != "cuda" or tir.dtype_of(e) in ("int32", "int64"):
            value = wrap(value, tir.dtype_of(e))
    else:
        action = next(a for kind, a in _OPERATORS.items() if isinstance(e, kind))
        value = action(run(e.a), run(e.b))
    if not isinstance(e, _GROWING):
        return value
    dtype, defined = _computed(tir.dtype_of(e), device)
    if defined and wrap(value, dtype) != value and not isinstance(e, tirx.BitwiseNot):
        raise Undefined(f"{value} in {dtype}: {e}")
    return wrap(value, dtype)
