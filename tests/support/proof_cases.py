"""Steps of every family at every width, as the extractor hands them to ``classify``."""

from tvm import tirx

from tvm_scan import tir
from tvm_scan.algebra import classify
from tvm_scan.algebra.base import Algebra, NotInFamily, System
from tvm_scan.algebra.ranges import range_of_dtype
from tvm_scan.proof.problem import Problem

__all__ = [
    "FLOATS",
    "GLANCE",
    "INTEGERS",
    "UNDECIDED",
    "UNDECIDED_FAMILIES",
    "UNDECIDED_PROGRAMS",
    "algebra_of",
    "problem",
    "steps_of",
]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")

#: What the solver does not answer within seconds, whatever the width: family and statement.
#: Products of four unknown reals lie below the choices of two clips.
UNDECIDED_FAMILIES = {"bounded affine": "composition"}
#: The same of one width: dtype, step of this file, and the statement. Shifts of 64 bits by unknown
#: places; those of 8, 16 and 32 bits are proven. All laws are also tested on samples, by
#: ``tests/laws/test_families.py``.
UNDECIDED = {
    ("int64", "shifted in"): "composition",
    ("int64", "shifted by an input"): "composition",
    ("uint64", "shifted in"): "composition",
    ("uint64", "shifted by an input"): "composition",
    ("uint64", "shifted out"): "composition",
}
#: The same of programs of the suite: lags of floats, whose places are words.
UNDECIDED_PROGRAMS = {"maximum_two_steps_back": "composition"}
#: Work for what is known to have no answer: that nothing is refuted is seen soon.
GLANCE = 1.5


def variables(dtype, names):
    return [tirx.Var(name, dtype) for name in names.split()]


def choose(condition, yes, no):
    return tirx.op.if_then_else(condition, yes, no)


def integer_steps(dtype):
    """Name -> carries and their steps."""
    h, g, a, b, c, x = variables(dtype, "h g a b c x")
    (flag,) = variables("bool", "flag")
    table = tirx.decl_buffer((5, 3), dtype, "table")

    def const(value):
        return tirx.const(value, dtype)

    return {
        "add": ((h,), (h + x,)),
        "subtract": ((h,), (h - x,)),
        "mul": ((h,), (h * x,)),
        "max": ((h,), (tirx.Max(h, x),)),
        "min": ((h,), (tirx.Min(x, h),)),
        "max by choice": ((h,), (tirx.Select(h > x, h, x),)),
        "and": ((h,), (tirx.bitwise_and(h, x),)),
        "or": ((h,), (tirx.bitwise_or(h, x),)),
        "xor": ((h,), (tirx.bitwise_xor(x, h),)),
        "affine": ((h,), (h * a + b,)),
        "affine, constant gate": ((h,), (h * const(33) + x,)),
        "affine by choice": ((h,), (choose(flag, h * a, h + b) + x,)),
        "doubled": ((h,), (tirx.op.shift_left(h, const(1)) + x,)),
        "bits": ((h,), (tirx.bitwise_or(tirx.bitwise_and(h, a), tirx.bitwise_xor(b, c)),)),
        "bits inverted": ((h,), (tirx.bitwise_xor(tirx.bitwise_not(h), x),)),
        "mask": ((h,), (tirx.bitwise_and(h * const(5) + x, const(31)),)),
        "residues": ((h,), (tirx.FloorMod(h * const(31) + x, const(101)),)),
        "residues, varying gate": ((h,), (tirx.FloorMod(h * a + x, const(101)),)),
        "at least": ((h,), (tirx.Max(h + x, const(5)),)),
        "at most": ((h,), (tirx.Min(h + x, a),)),
        "between": ((h,), (tirx.Min(tirx.Max(h + x, a), b),)),
        "reset": ((h,), (choose(flag, x, tirx.Max(h, a)),)),
        "reset of residues": ((h,), (choose(flag, x, tirx.FloorMod(h * a + x, const(101))),)),
        "second order": ((h, g), (h * a - g * b + x, h)),
        "complex": ((h, g), (h * a - g * b + x, h * b + g * a + c)),
        "three carries": ((h, g, c), (h * a + g + x, g * b + c, h + c * a)),
        "automaton": ((h,), (tirx.BufferLoad(table, [h, tirx.Var("k", "int32")]),)),
        "shifted in": ((h,), (tirx.bitwise_or(tirx.op.shift_left(h, const(1)), x),)),
        "shifted by an input": ((h,), (tirx.bitwise_xor(tirx.op.shift_left(h, a), x),)),
        "shifted out": ((h,), (tirx.bitwise_xor(tirx.op.shift_right(h, const(2)), x),)),
        "every other step": ((h, g), (tirx.Max(g, x), h)),
        "every third step": ((h, g, c), (tirx.Min(c, x), h, g)),
        "bits of every other step": (
            (h, g),
            (tirx.bitwise_xor(tirx.bitwise_and(g, a), x), h),
        ),
        **wider_steps(dtype, h, a, x),
    }


def wider_steps(dtype, h, a, x):
    """Steps that compute in a wider integer than the carry."""
    low, high = range_of_dtype(dtype)
    if high >= 1 << 32:
        return {}
    wide = "int32" if high < 1 << 16 else "int64"
    h, a, x = (tirx.Cast(wide, v) for v in (h, a, x))
    ends = (tirx.const(low, wide), tirx.const(high, wide))
    steps = {
        "saturating": tirx.Min(tirx.Max(h + x, ends[0]), ends[1]),
        "affine in a wider integer": h * a + x,
        "bounded in a wider integer": tirx.Min(tirx.Max(h + x, tirx.const(0, wide)), a),
    }
    return {name: ((_var(h),), (tirx.Cast(dtype, step),)) for name, step in steps.items()}


def _var(cast):
    return cast.value


def bool_steps():
    h, p, q = variables("bool", "h p q")
    return {
        "and": ((h,), (tirx.And(h, p),)),
        "or": ((h,), (tirx.Or(p, h),)),
        "parity": ((h,), (tirx.NE(h, p),)),
        "flip-flop": ((h,), (tirx.Or(tirx.And(h, tirx.Not(p)), q),)),
        "switch": ((h,), (tirx.Select(h, p, tirx.Not(q)),)),
        "reset": ((h,), (choose(p, q, tirx.Not(h)),)),
    }


def float_steps(dtype):
    h, g, a, b, c, x, y = variables(dtype, "h g a b c x y")
    (flag,) = variables("bool", "flag")
    both = tirx.Max(h + a, x)

    def const(value):
        return tirx.const(value, dtype)

    return {
        "add": ((h,), (h + x,)),
        "mul": ((h,), (h * x,)),
        "max": ((h,), (tirx.Max(h, x),)),
        "min, carry second": ((h,), (tirx.Min(x, h),)),
        "max by choice": ((h,), (tirx.Select(x > h, x, h),)),
        "max where NaN wins": ((h,), (tirx.Select(tirx.Or(tirx.isnan(x), x > h), x, h),)),
        "affine": ((h,), (h * a + b,)),
        "affine, spread out": ((h,), ((h - x) * a + h / y - b,)),
        "interpolation": ((h,), (h + a * (x - h),)),
        "exponential gate": ((h,), (tirx.exp(a * b) * h + x * b,)),
        "at least": ((h,), (tirx.Max(h + a, x),)),
        "between": ((h,), (tirx.Min(tirx.Max(h + a, b), c),)),
        "clamped by choice": ((h,), (choose(flag, tirx.Max(h + a, x), tirx.Min(h, b)),)),
        "fraction": ((h,), (a + x / (h + b),)),
        "fraction of sums": ((h,), ((a * h + x) / (b * h + c),)),
        "logarithm of exponentials": ((h,), (tirx.log(tirx.exp(h + a) + tirx.exp(x)),)),
        "stabilised": ((h,), (both + tirx.log(tirx.exp(h + a - both) + tirx.exp(x - both)),)),
        "by distance": ((h,), (both + tirx.log1p(tirx.exp(-tirx.abs(h + a - x))),)),
        "complex": ((h, g), (a * h - b * g + x, b * h + a * g + y)),
        "second order": ((h, g), (a * h - b * g + x, h)),
        "four carries": (
            (h, g, y, c),
            (a * h + b * g + x, h - b * y, a * c + g, h * const(0.5) + y),
        ),
        "decaying peak": ((h,), (tirx.Max(h * const(0.9), x),)),
        "gate between bounds": ((h,), (tirx.Min(tirx.Max(a * h + x, b), c),)),
        "every other step": ((h, g), (tirx.Max(g + a, x), h)),
        "reset": ((h,), (choose(flag, x, a * h + b),)),
        "reset of a maximum": ((h,), (choose(flag, x, tirx.Max(h, a)),)),
        "reset of a fraction": ((h,), (choose(flag, x, a + x / (h + b)),)),
    }


def steps_of(dtype):
    """Every step over a dtype."""
    if dtype == "bool":
        return bool_steps()
    return float_steps(dtype) if dtype in FLOATS else integer_steps(dtype)


def algebra_of(dtype, name):
    """The system and the family of a step, or why it is in none."""
    olds, steps = steps_of(dtype)[name]
    system = System(steps, olds, (dtype,) * len(olds))
    return system, classify(system)


def problem(system, algebra=None, **more):
    """What is to be proven of a step and an algebra; the one that is found if none is given.

    Every input differs from step to step.
    """
    algebra = algebra or classify(system)
    assert isinstance(algebra, Algebra), isinstance(algebra, NotInFamily) and algebra.reason
    inputs = [v for step in system.steps for v in tir.variables(step).keys()]
    moving = tir.VarMap((v, True) for v in inputs if not any(v.same_as(o) for o in system.olds))
    defaults = {"first": None, "extents": tir.VarMap(), "moving": moving, "length": None}
    return Problem(algebra, system.steps, system.olds, system.dtypes, **{**defaults, **more})
