"""Terms of the solver against compiled code: what is proven is said of the same arithmetic."""

import functools
import itertools
import math
import operator

import numpy as np
import pytest
import tvm
import z3
from tvm import tirx

from tests.support.compiled import compile_cached
from tvm_scan import tir
from tvm_scan.algebra.ranges import range_of_dtype
from tvm_scan.proof.atoms import Atoms
from tvm_scan.proof.bitvectors import BitVectors
from tvm_scan.proof.integers import ExactIntegers
from tvm_scan.proof.reals import Real
from tvm_scan.proof.residues import normal_remainders, remainder
from tvm_scan.proof.translate import Term, Translator
from tvm_scan.proof.untranslatable import UntranslatableError

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
BINARY = {
    "add": tirx.Add,
    "sub": tirx.Sub,
    "mul": tirx.Mul,
    "div": tirx.Div,
    "mod": tirx.Mod,
    "floordiv": tirx.FloorDiv,
    "floormod": tirx.FloorMod,
    "max": tirx.Max,
    "min": tirx.Min,
    "and": tirx.bitwise_and,
    "or": tirx.bitwise_or,
    "xor": tirx.bitwise_xor,
    "shl": tirx.op.shift_left,
    "shr": tirx.op.shift_right,
    "less": lambda a, b: tirx.Select(tirx.LT(a, b), a, b),
    "at least": lambda a, b: tirx.Select(tirx.GE(a, b), a, b),
    "equal": lambda a, b: tirx.Select(tirx.EQ(a, b), tirx.bitwise_not(a), b),
}


def samples(dtype):
    """Pairs of numbers: the ends, around zero, and some between."""
    low, high = range_of_dtype(dtype)
    few = {low, low + 1, high, high - 1, 0, 1, 2, 3, 7, 31, 100 % (high + 1)}
    few |= {-1, -2, -7} if low else set()
    return list(itertools.product(sorted(few), repeat=2))


def expressions(dtype):
    a, b = tirx.Var("a", dtype), tirx.Var("b", dtype)
    made = {name: make(a, b) for name, make in BINARY.items()}
    # Constants, of which exact integers know more; of the dtype itself, so that nothing is cast.
    three, mask = tirx.const(3, dtype), tirx.const(7, dtype)
    made |= {
        "third": tirx.FloorDiv(a, three),
        "rest of three": tirx.FloorMod(a, three),
        "cut rest": tirx.Mod(a, three),
        "low bits": tirx.bitwise_and(a, mask),
        "doubled": tirx.op.shift_left(a, tirx.const(1, dtype)),
        "halved": tirx.op.shift_right(a, tirx.const(1, dtype)),
    }
    if not dtype.startswith("u"):
        made["rest of minus three"] = tirx.FloorMod(a, tirx.const(-3, dtype))
    made |= {f"as {other}": tirx.Cast(other, a) for other in INTEGERS if other != dtype}
    return a, b, made


@functools.cache
def compiled(dtype):
    """What TVM's code computes for every expression and every pair."""
    pairs = samples(dtype)
    inputs = [tirx.decl_buffer([len(pairs)], dtype, name) for name in "AB"]
    a, b, made = expressions(dtype)
    i = tirx.Var("i", "int32")
    outputs, stores = [], []
    for n, e in enumerate(made.values()):
        outputs.append(tirx.decl_buffer([len(pairs)], tir.dtype_of(e), f"O{n}"))
        loads = [(v, tirx.BufferLoad(x, [i])) for v, x in zip((a, b), inputs, strict=True)]
        stores.append(tirx.BufferStore(outputs[-1], tir.substitute(e, tir.VarMap(loads)), [i]))
    loop = tirx.For(i, 0, len(pairs), tirx.ForKind.SERIAL, tirx.SeqStmt(stores))
    func = tirx.PrimFunc([*inputs, *outputs], loop).with_attr("global_symbol", "f")
    columns = [np.array(column, dtype) for column in zip(*pairs, strict=True)]
    # Divisions that have no result end the process: by zero, and of the least number by -1.
    low, _ = range_of_dtype(dtype)
    ends = (columns[1] == 0) | ((columns[0] == low) & (columns[1] == -1) if low else False)
    arrays = [columns[0], np.where(ends, 1, columns[1]).astype(dtype)]
    arrays += [np.zeros(len(pairs), tir.dtype_of(buffer)) for buffer in outputs]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    compile_cached(func, target="llvm")["f"](*tensors)
    results = [tensor.numpy().tolist() for tensor in tensors[2:]]
    return list(zip(*(x.tolist() for x in arrays[:2]), strict=True)), dict(
        zip(made, results, strict=True)
    )


ARITHMETICS = {
    "words": BitVectors,
    "integers": ExactIntegers,
    "wrapping integers": lambda: ExactIntegers(wrapping=True),
}


def constant(condition):
    """Whether a condition of constants holds."""
    return condition if isinstance(condition, bool) else z3.is_true(z3.simplify(condition))


@pytest.mark.parametrize("name", ARITHMETICS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_those_of_compiled_code(dtype, name):
    arithmetic = ARITHMETICS[name]()
    pairs, results = compiled(dtype)
    a, b, made = expressions(dtype)
    compared, defined = set(), 0
    for n, (x, y) in enumerate(pairs):
        names = tir.VarMap(
            (var, Term(arithmetic.const(value, dtype))) for var, value in ((a, x), (b, y))
        )
        atoms = Atoms(arithmetic, tir.VarMap(), tir.VarMap(), tir.VarMap())
        run = Translator(atoms, names)
        for label, e in made.items():
            try:
                term = run(e)
            except UntranslatableError:
                continue
            checks = term.checks
            wraps = name == "words" or name == "wrapping integers"
            if not constant(checks.defined) or not (wraps or constant(checks.overflow)):
                continue
            number = z3.simplify(term.value)
            if not (z3.is_int_value(number) or z3.is_bv_value(number)):
                # Bits of integers are a function of which nothing is known, and it says so.
                assert arithmetic.guesses
                continue
            value = arithmetic.read(number, tir.dtype_of(e))
            if not constant(checks.overflow) or not constant(checks.unsigned):
                # Undefined for LLVM, which is free to give something else: ours is modulo 2^n.
                exact = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}[label](x, y)
                low, high = range_of_dtype(dtype)
                assert value == (exact - low) % (high - low + 1) + low
            else:
                assert value == results[label][n], (label, x, y)
            compared.add(label)
            defined += 1
    assert defined > 20 * len(pairs) * (0.5 if name == "integers" else 1) * 0.5
    if name == "words":
        assert compared == set(made)
    else:
        assert {"add", "mul", "max", "third", "rest of three", "low bits", "as int8"} - {
            f"as {dtype}"
        } <= compared


FLOATS = (0.0, 1.5, -2.0, math.inf, -math.inf, math.nan)


def as_float(x):
    flags = {constant(x.nan): math.nan, constant(x.up): math.inf, constant(x.down): -math.inf}
    if True in flags:
        return flags[True]
    value = z3.simplify(x.value)
    return value.numerator_as_long() / value.denominator_as_long()


@pytest.mark.parametrize("op", ["add", "sub", "mul", "lt", "eq"])
def test_reals_with_infinities_are_floats_that_do_not_round(op):
    run = {"lt": Real.less, "eq": Real.equals}.get(op, getattr(operator, op))
    for x, y in itertools.product(FLOATS, repeat=2):
        got = run(Real.const(x), Real.const(y))
        want = getattr(operator, op)(x, y)
        if isinstance(want, bool):
            assert constant(got) == want, (x, y)
        else:
            number = as_float(got)
            assert number == want or (math.isnan(number) and math.isnan(want)), (x, y)


def test_quotients_are_fractions():
    x, y = (Real(z3.Real(name)) for name in "xy")
    quotient = x * y.inverse() + y * x.inverse()
    whole = (x * x + y * y) * (x * y).inverse()
    assert z3.is_true(z3.simplify(quotient.equals(whole), som=True))
    third = Real.const(1.0) * Real.const(3.0).inverse()
    assert constant(Real.const(0.25).less(third)) and not constant(third.less(Real.const(0.25)))
    assert constant((-third).less(Real.const(0.25)))
    assert as_float(Real.const(4.0) * Real.const(math.inf).inverse()) == 0


@pytest.mark.parametrize("modulus", [1, 2, 7, 256])
def test_remainders_of_remainders(modulus):
    """The normal form is equal to what it is made of, on numbers of either sign."""
    u, v, w = z3.Ints("u v w")
    inner = ((u % (3 * modulus)) * 7 - v % modulus) * (w + 3 * modulus) + z3.If(
        u > v, u, -v
    ) % modulus
    plain = inner % modulus
    made = normal_remainders(remainder(inner, modulus))
    for values in itertools.product((-9, -1, 0, 2, 513), repeat=3):
        table = [(x, z3.IntVal(n)) for x, n in zip((u, v, w), values, strict=True)]
        left, right = (z3.simplify(z3.substitute(e, *table)) for e in (plain, made))
        assert left.as_long() == right.as_long()
    # The theorem that is used, for all numbers: with u = k q + r below a product, a multiple of m.
    q, r, p = z3.Ints("q r p")
    solver = z3.Solver()
    solver.add((modulus * p + r) % modulus != r % modulus)
    assert solver.check() == z3.unsat
    del q


def test_what_is_not_translated_is_not_guessed():
    atoms = Atoms(ExactIntegers(), tir.VarMap(), tir.VarMap(), tir.VarMap())
    a, b = (tirx.Var(n, "int32") for n in "ab")
    with pytest.raises(UntranslatableError, match="a division"):
        Translator(atoms, tir.VarMap())(tirx.FloorMod(a, b))
    with pytest.raises(UntranslatableError, match="a shift"):
        Translator(atoms, tir.VarMap())(tirx.op.shift_left(a, b))
