"""The polynomials of vector loops against float64, in units in the last place.

Theorem of the bounds: a result is rounded once by the last operation (0.5 ulp); the polynomial and
the range reduction add less than one ulp for ``exp`` and ``log``, and each of ``log1p``,
``sigmoid`` and ``tanh`` divides once more. Nothing is allowed more than 4 ulp.
"""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

import tvm_scan
from tests.support.compiled import compile_cached
from tvm_scan import ScanPlan, library, tir
from tvm_scan.schedules.common import polynomials
from tvm_scan.schedules.common.ir import Kernel, int_const, loop
from tvm_scan.schedules.common.lanes import clear
from tvm_scan.schedules.cpu import vector_math
from tvm_scan.schedules.machine.machine import Machine

WIDTH = 16
TINY = np.float64(np.finfo(np.float32).smallest_subnormal)


def kernel(make, count, ldexp):
    """Compile ``Y[i] = make(X[i])`` as one vector loop, as the builders write it."""
    x, y = (tirx.decl_buffer((count,), "float32", name) for name in "XY")
    block_var, pool = tirx.Var("v", "int32"), polynomials.Pool(WIDTH)

    def lane(u):
        let = polynomials.Values(pool, u, ldexp)
        value = make(tirx.BufferLoad(x, [block_var * WIDTH + u]), let)
        return tir.seq([*let.stores, tirx.BufferStore(y, value, [block_var * WIDTH + u])])

    code = loop("u", WIDTH, lane, tirx.ForKind.VECTORIZED)
    body = tir.seq([clear(pool.buffers), code])
    blocks = int_const(count // WIDTH, "int32")
    made = Kernel("k", [x], [y], body, pool.buffers)
    nest = loop("i", blocks, lambda i: made.block([(block_var, blocks, i)]))
    root = SBlockRealize([], True, SBlock([], [], [], "root", nest))
    func = tirx.PrimFunc([x, y], root)
    func = func.with_attrs({"global_symbol": "k", "s_tir": True, "tirx.noalias": True})
    return compile_cached(func, target=tvm.target.Target.from_device("cpu"))["k"]


def run(make, values, ldexp=False):
    values = np.asarray(values, "float32")
    padded = np.resize(values, -(-values.size // WIDTH) * WIDTH)
    out = tvm.runtime.tensor(np.zeros_like(padded))
    kernel(make, padded.size, ldexp)(tvm.runtime.tensor(padded), out)
    return out.numpy()[: values.size]


def ulps(got, want):
    """Distance in float32 units in the last place of the exact result."""
    unit = np.maximum(np.spacing(np.abs(want.astype("float32"))).astype("float64"), TINY)
    return np.abs(got.astype("float64") - want) / unit


def sigmoid64(x):
    return 1 / (1 + np.exp(-x))


RNG = np.random.default_rng(7)
COUNT = 1 << 18
CASES = [
    ("exp", np.exp, np.linspace(-103.9, 88.72, COUNT), 1.5),
    ("exp", np.exp, RNG.uniform(-1, 1, COUNT), 1.5),
    ("exp2", np.exp2, np.linspace(-149.9, 127.99, COUNT), 1.5),
    ("exp2", np.exp2, RNG.uniform(-1, 1, COUNT), 1.5),
    ("log", np.log, np.exp(RNG.uniform(-100, 88, COUNT)), 1.5),
    ("log", np.log, RNG.uniform(0.9, 1.1, COUNT), 1.5),
    ("log1p", np.log1p, RNG.uniform(-0.9, 3, COUNT), 3.0),
    ("log1p", np.log1p, RNG.uniform(-1e-3, 1e-3, COUNT), 3.0),
    ("log1p", np.log1p, np.exp(RNG.uniform(-80, 80, COUNT)), 3.0),
    ("log1p_unit", np.log1p, RNG.uniform(0, 1, COUNT), 3.0),
    ("log1p_unit", np.log1p, np.exp(RNG.uniform(-100, 0, COUNT)), 3.0),
    ("sigmoid", sigmoid64, RNG.uniform(-80, 80, COUNT), 4.0),
    ("tanh", np.tanh, RNG.uniform(-10, 10, COUNT), 4.0),
    ("tanh", np.tanh, RNG.uniform(-0.7, 0.7, COUNT), 4.0),
]


#: With the instruction that scales by powers of two, where this machine has it, and without.
LDEXP = [False, True] if Machine.of(tvm.target.Target.from_device("cpu")).ldexp else [False]


@pytest.mark.parametrize("ldexp", LDEXP)
@pytest.mark.parametrize(("name", "reference", "values", "bound"), CASES)
def test_error_in_ulps(name, reference, values, bound, ldexp):
    values = values.astype("float32")
    got = run(getattr(polynomials, name), values, ldexp)
    error = ulps(got, reference(values.astype("float64")))
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"{name}({values[worst]!r}) is {error[worst]:.2f} ulp off"


#: Beyond these float32 has no int32, which the conversion of ldexp meets.
WIDE = dict.fromkeys((2.0**31, 2200000000.0, 10000000000.0, 2.0**40, 3e38), np.inf)
WIDE |= {-v: 0.0 for v in WIDE} | {2147483520.0: np.inf, 1e6: np.inf, -1e6: 0.0}
SPECIAL = {
    "exp": {np.inf: np.inf, -np.inf: 0.0, 0.0: 1.0, 89.0: np.inf, -104.0: 0.0, **WIDE},
    "exp2": {np.inf: np.inf, -np.inf: 0.0, 0.0: 1.0, 128.0: np.inf, -151.0: 0.0, **WIDE}
    | {float(k): 2.0**k for k in (-149, -127, -126, -1, 1, 64, 127)},
    "log": {np.inf: np.inf, 0.0: -np.inf, 1.0: 0.0, -1.0: np.nan, -np.inf: np.nan},
    "log1p": {np.inf: np.inf, -1.0: -np.inf, 0.0: 0.0, -2.0: np.nan, 1e-40: 1e-40},
    "log1p_unit": {0.0: 0.0, 1e-40: 1e-40, 1.0: np.log1p(1.0)},
    "sigmoid": {np.inf: 1.0, -np.inf: 0.0, 0.0: 0.5},
    "tanh": {np.inf: 1.0, -np.inf: -1.0, 0.0: 0.0, 1e-40: 1e-40},
}


@pytest.mark.parametrize("ldexp", LDEXP)
@pytest.mark.parametrize("name", SPECIAL)
def test_infinities_zeros_and_nan(name, ldexp):
    pairs = {**SPECIAL[name], np.nan: np.nan}
    got = run(getattr(polynomials, name), list(pairs), ldexp)
    np.testing.assert_array_equal(got, np.array(list(pairs.values()), "float32"))


def test_the_tail_of_a_softplus_is_known_by_its_form():
    x = tirx.Var("x", "float32")
    zero, one = tirx.FloatImm("float32", 0.0), tirx.FloatImm("float32", 1.0)

    def divisions(value):
        """One for the unit interval, two for any argument."""
        out = tirx.decl_buffer((WIDTH,), "float32")
        code = vector_math.with_vector_math(
            tirx.BufferStore(out, value, [tirx.Var("v", "int32")]),
            polynomials.Pool(WIDTH),
            tirx.IntImm("int32", 0),
        )
        found = []
        tvm_ffi.structural_walk(code, [(tirx.Div, found.append)])
        return len(found)

    for least in (zero - tirx.abs(x), tirx.abs(x) * -one, -one * tirx.abs(x), tirx.Min(x, zero)):
        assert divisions(tirx.log1p(tirx.exp(least))) == 1
    for other in (x, tirx.abs(x), zero - x, tirx.abs(x) * one, one - tirx.abs(x)):
        assert divisions(tirx.log1p(tirx.exp(other))) == 2
    assert divisions(tirx.log1p(tirx.abs(x))) == 2


@pytest.mark.parametrize("form", ["blocks", "step"])
def test_fused_scan_with_polynomials_is_as_exact_as_with_the_library(form):
    batch, channels, length = 1, 33, 40
    func = library.selective_scan(batch, channels, length, 16, form=form)
    entry = library.LIBRARY["selective_scan"]
    inputs = entry.example_inputs(np.random.default_rng(3), batch, channels, length, 16)
    want = next(iter(entry.expected(inputs).values()))
    target = tvm.target.Target.from_device("cpu")
    plan = ScanPlan.of("cpu", "lanes", lane_block=16, vectorize=True)
    errors = []
    for library_math in (False, True):
        scheduled = tvm_scan.parallelize(func, target, plan.with_(library_math=library_math))
        out = tvm.runtime.tensor(np.zeros_like(want, "float32"))
        args = [tvm.runtime.tensor(np.ascontiguousarray(v)) for v in inputs.values()]
        compile_cached(scheduled, target=target)["selective_scan"](*args, out)
        errors.append(np.abs(out.numpy() - want).max())
    assert errors[0] <= 3 * errors[1] + 1e-6, errors


def test_library_math_keeps_the_calls():
    func = library.selective_scan(1, 32, 8, 4)
    plan = ScanPlan.of("cpu", "lanes", lane_block=16, vectorize=True, library_math=True)
    target = tvm.target.Target.from_device("cpu")
    assert "T.exp" in tvm_scan.parallelize(func, target, plan).script()
    assert (
        "T.exp" not in tvm_scan.parallelize(func, target, plan.with_(library_math=False)).script()
    )
