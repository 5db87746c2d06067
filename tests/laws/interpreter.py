"""Algebras over Python numbers: their own TIR expressions, interpreted.

Integers and fractions are exact, and floats follow IEEE with either target's max and min.
"""

import math
from fractions import Fraction

from tvm import tirx
from tvm.ir.expr import TensorLoad

from tvm_scan import tir


def wrapped(value, dtype):
    """The low bits of an integer, as an integer of the dtype."""
    bits = int("".join(filter(str.isdigit, dtype)))
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.startswith("int") and value >> (bits - 1) else value


#: Integers whose sums and products wrap in TVM's code; those of wider ones may not overflow.
NARROW = ("int8", "uint8", "int16", "uint16")


def stored(value, dtype):
    """A sum or product as its dtype has it: wrapped if narrow, infinite if too large."""
    if dtype in NARROW:
        return wrapped(value, dtype)
    if isinstance(value, Fraction) and abs(value) >= 2**1024:
        return math.inf if value > 0 else -math.inf
    return value


def llvm_max(a, b):
    return a if a > b else b


def llvm_min(a, b):
    return a if a < b else b


def cuda_max(a, b):
    return b if math.isnan(a) else a if math.isnan(b) else max(a, b)


def cuda_min(a, b):
    return b if math.isnan(a) else a if math.isnan(b) else min(a, b)


TARGETS = {"llvm": (llvm_max, llvm_min), "cuda": (cuda_max, cuda_min)}


def evaluate(expr, values, target="llvm"):
    """Value of a TIR expression over Python numbers."""

    def run(e):
        return evaluate(e, values, target)

    if not hasattr(e := expr, "ty"):
        return expr
    if isinstance(e, tirx.Var):
        return values[e.name]
    if isinstance(e, tirx.IntImm):
        return int(e.value)
    if isinstance(e, tirx.FloatImm):
        value = float(e.value)
        return value if math.isinf(value) or math.isnan(value) else Fraction(value)
    if isinstance(e, tirx.Max):
        return TARGETS[target][0](run(e.a), run(e.b))
    if isinstance(e, tirx.Min):
        return TARGETS[target][1](run(e.a), run(e.b))
    if isinstance(e, tirx.Select):
        return run(e.true_value) if run(e.condition) else run(e.false_value)
    if isinstance(e, tirx.Cast):
        dtype, value = tir.dtype_of(e), run(e.value)
        return wrapped(int(value), dtype) if dtype.startswith(("int", "uint")) else value
    if isinstance(e, tirx.Not):
        return not run(e.a)
    if isinstance(e, tirx.BitwiseNot):
        return wrapped(~run(e.a), tir.dtype_of(e))
    if isinstance(e, tirx.Div):
        return run(e.a) / run(e.b)
    if isinstance(e, TensorLoad):
        table = values[e.source.name]
        for index in e.indices:
            table = table[run(index)]
        return table
    if tir.call_name(e) == "prim.if_then_else":
        return run(e.args[1]) if run(e.args[0]) else run(e.args[2])
    simple = {
        tirx.Add: lambda a, b: a + b,
        tirx.Sub: lambda a, b: a - b,
        tirx.Mul: lambda a, b: a * b,
        tirx.FloorMod: lambda a, b: a % b,
        tirx.EQ: lambda a, b: a == b,
        tirx.LT: lambda a, b: a < b,
        tirx.LE: lambda a, b: a <= b,
        tirx.GT: lambda a, b: a > b,
        tirx.NE: lambda a, b: a != b,
        tirx.And: lambda a, b: a and b,
        tirx.Or: lambda a, b: a or b,
    }
    for kind, action in simple.items():
        if isinstance(e, kind):
            return stored(action(run(e.a), run(e.b)), tir.dtype_of(e))
    if isinstance(e, tirx.GE):
        return run(e.a) >= run(e.b)
    name = tir.call_name(e) or ""
    if name.endswith("bitwise_not"):
        return ~run(e.args[0])
    args = [run(a) for a in getattr(e, "args", [])] or [run(e.a), run(e.b)]
    for word, action in {
        "bitwise_and": lambda a, b: a & b,
        "bitwise_or": lambda a, b: a | b,
        "bitwise_xor": lambda a, b: a ^ b,
        "shift_left": lambda a, b: wrapped(a << b, tir.dtype_of(e)),
        "shift_right": lambda a, b: a >> b,
        "lshift": lambda a, b: wrapped(a << b, tir.dtype_of(e)),
        "rshift": lambda a, b: a >> b,
        "exp": math.exp,
        "log": math.log,
        "log1p": math.log1p,
        "abs": abs,
    }.items():
        if name.endswith(word) or type(e).__name__.lower() == word.replace("_", ""):
            return action(*args)
    if name.endswith("isnan"):
        return math.isnan(args[0])
    raise AssertionError(f"no rule for {type(e).__name__} {name}: {e}")


def same(a, b):
    both = isinstance(a, float) and isinstance(b, float)
    return a == b or (both and math.isnan(a) and math.isnan(b))
