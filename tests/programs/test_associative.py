"""Declared operators: proven where they can be, believed where not, tried on samples first."""

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tests.support.tiers import paired
from tvm_scan import ScanError, ScanPlan, associative_scan, extract, library, parallelize
from tvm_scan.arguments import host_target

CPU = host_target()
CPU_PLANS = ("cpu/lanes(lane_block=2)", "cpu/three_phase(lane_block=2, chunks=6)")
CUDA_PLANS = (
    "cuda/serial_tiles(threads_per_block=8, items_per_thread=2)",
    "cuda/three_phase(threads_per_block=8, items_per_thread=3)",
)


def bicyclic(a, b):
    """Pops and pushes of a stack; far from commutative."""
    met = tirx.Min(a[1], b[0])
    return (a[0] + b[0] - met, a[1] + b[1] - met)


def bicyclic_twin(a, b):
    met = np.minimum(a[1], b[0])
    return (a[0] + b[0] - met, a[1] + b[1] - met)


def affine(a, b):
    return (a[0] * b[0], a[1] * b[0] + b[1])


def oracle(twin, xs, reverse=False, exclusive=False, initial=None):
    lanes, length = xs[0].shape
    out = [np.zeros_like(x) for x in xs]
    state = None if initial is None else tuple(np.full(lanes, v, xs[0].dtype) for v in initial)
    for t in range(length)[:: -1 if reverse else 1]:
        x = tuple(part[:, t] for part in xs)
        new = x if state is None else twin(state, x)
        for o, v in zip(out, state if exclusive else new, strict=True):
            o[:, t] = v
        state = new
    return out


def run_cpu(func, arrays, plan):
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    compile_cached(parallelize(func, CPU, ScanPlan.parse(plan)), target=CPU, plainly=True)[
        "associative_scan"
    ](*tensors)
    return [t.numpy() for t in tensors]


def operands(shape, seed=0):
    return list(np.random.default_rng(seed).integers(0, 9, (2, *shape)).astype("int32"))


OPTIONS = [
    {},
    {"reverse": True},
    {"initial": (2, 3)},
    {"initial": (0, 0), "exclusive": True},
    {"initial": (0, 5), "exclusive": True, "reverse": True},
]


@pytest.mark.parametrize(
    ("options", "kind"), paired(OPTIONS, [(-1, "int32"), (0, "int64"), (-1, "int64")]), ids=str
)
def test_bicyclic(options, kind):
    """Of int32 it is proven; of int64, whose bounded sums may overflow, its author is believed."""
    axis, dtype = kind
    xs = [x.astype(dtype) for x in operands((3, 101))]
    want = oracle(bicyclic_twin, xs, **options)
    func = associative_scan(bicyclic, [dtype] * 2, axis=axis, **options)
    believed = any("declared" in str(a.formulas()) for a in extract(func).algebras)
    assert believed == (dtype == "int64")
    given = xs if axis == -1 else [np.ascontiguousarray(x.T) for x in xs]
    for plan in CPU_PLANS:
        got = run_cpu(func, [*given, *(np.full_like(x, 77) for x in given)], plan)[2:]
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g if axis == -1 else g.T, w)


@pytest.mark.parametrize("plan", CUDA_PLANS)
def test_bicyclic_on_cuda(plan):
    xs = [x.astype("int64") for x in operands((3, 101))]
    func = associative_scan(bicyclic, ["int64", "int64"], 3, 101)
    scheduled = parallelize(func, CUDA_TARGET, ScanPlan.parse(plan))
    got = run_cuda(scheduled, [*xs, *(np.full_like(x, 77) for x in xs)])[2:]
    for g, w in zip(got, oracle(bicyclic_twin, xs), strict=True):
        np.testing.assert_array_equal(g, w)


def test_known_operators_are_proven_not_believed():
    func = associative_scan(affine, ["float32", "float32"], 2, 50)
    names = str([algebra.formulas() for algebra in extract(func).algebras])
    assert "declared" not in names


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short(length):
    xs = operands((2, length))
    func = associative_scan(bicyclic, ["int32", "int32"])
    got = run_cpu(func, [*xs, *(np.full_like(x, 77) for x in xs)], CPU_PLANS[1])[2:]
    for g, w in zip(got, oracle(bicyclic_twin, xs), strict=True):
        np.testing.assert_array_equal(g, w)


def test_a_recurrence_is_not_an_operator():
    with pytest.raises(
        ScanError, match=r"found a=.*, b=.*, c=.* with combine\(combine\(a, b\)"
    ) as e:
        associative_scan(lambda a, b: (a[0] * 0.5 + b[0],), ["float32"])
    assert "lift x to functions of h" in str(e.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: associative_scan(None, ["float32"]), "a function of two operands, got NoneType"),
        (lambda: associative_scan(library.cumsum(2, 9), ["float32"]), "a function of two operands"),
        (lambda: associative_scan(affine, "float32"), "the dtype of every part"),
        (lambda: associative_scan(affine, ["float32", 3]), "the dtype of every part"),
        (lambda: associative_scan(affine, ["float32", "word"]), "the dtype of every part"),
        (lambda: associative_scan(affine, []), "the dtype of every part"),
        (lambda: associative_scan(affine, ["float32"] * 2, exclusive=True), "an initial operand"),
        (lambda: associative_scan(affine, ["float32"] * 2, initial=(1,)), "expected 2 initial"),
        (lambda: associative_scan(lambda a, b: (a[0],), ["float32"] * 2), "expected combine to"),
        (lambda: associative_scan(affine, ["float32"] * 2, axis=2), "expected axis -1 or 0, got 2"),
    ],
)
def test_bad_declarations(make, message):
    with pytest.raises(ScanError, match=message):
        make()


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64", "uint8"])
def test_the_bicyclic_operator_of_cub(dtype):
    """As CUB's own tests have it: of unsigned integers, with the second pair first in the sum."""

    def cub(left, right):
        (m, n), (r, s) = left, right
        met = tirx.Min(n, r)
        return (m + r - met, s + n - met)

    func = associative_scan(cub, [dtype] * 2, lanes=3, length=50)
    xs = [x.astype(dtype) for x in operands((3, 50))]
    want = oracle(bicyclic_twin, xs)
    empty = [np.zeros_like(x) for x in xs]
    on_cpu = run_cpu(func, [*xs, *empty], CPU_PLANS[1])
    plan = ScanPlan.parse(CUDA_PLANS[0])
    on_cuda = run_cuda(parallelize(func, CUDA_TARGET, plan), [*xs, *empty], seeds=(0,))
    for got, cuda, expected in zip(on_cpu[2:], on_cuda[2:], want, strict=True):
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(cuda, expected)


def stack(dtype, carry, below, stored):
    """The bicyclic operator as a plain loop: pops and pushes, then what is left of each."""
    text = f"""
@T.prim_func(s_tir=True)
def main(R: T.Buffer((3, 50), "{dtype}"), S: T.Buffer((3, 50), "{dtype}"),
         P: T.Buffer((3, 50), "{dtype}"), Q: T.Buffer((3, 50), "{dtype}")):
    for b in range(3):
        p = T.sblock_alloc_buffer((1,), "{carry}")
        q = T.sblock_alloc_buffer((1,), "{carry}")
        p[0] = T.{carry}(0)
        q[0] = T.{carry}(0)
        for t in range(50):
            r: T.let[T.{carry}] = T.Cast("{carry}", R[b, t])
            s: T.let[T.{carry}] = T.Cast("{carry}", S[b, t])
            met: T.let[T.{carry}] = T.min(q[0], r)
            p[0] = p[0] + r - met
            q[0] = {below}
            P[b, t] = {stored.format("p[0]")}
            Q[b, t] = {stored.format("q[0]")}
"""
    return tvm.script.from_source(text, {"T": T})


AS_IT_STANDS = ("q[0] + s - met", "s + (q[0] - met)")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64"])
def test_the_bicyclic_operator_as_a_loop_of_integers(dtype):
    """Its sums wrap, or overflow before they are bounded; as its message says, it is taken."""
    for below in AS_IT_STANDS:
        found = extract(stack(dtype, dtype, below, "{}"))
        assert "carry an int32" in found.fix, found.message()
        func = stack(dtype, "int32", below, f"T.Cast('{dtype}', {{}})")
        assert [a.name for a in extract(func).algebras] == ["clamp", "reduce"]
    check_stack(func, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bicyclic_operator_as_a_loop_of_floats(dtype):
    """A difference of infinities is NaN, a maximum is not; as its message says, it is taken."""
    for below in AS_IT_STANDS:
        found = extract(stack(dtype, dtype, below, "{}"))
        assert "write h - T.min(h, x) as T.max(h - x, 0)" in found.fix, found.message()
    func = stack(dtype, dtype, f"T.max(q[0] - r, T.{dtype}(0)) + s", "{}")
    assert [a.name for a in extract(func).algebras] == ["clamp", "reduce"]
    check_stack(func, dtype)


def check_stack(func, dtype):
    xs = [x.astype(dtype) for x in operands((3, 50))]
    tensors = [tvm.runtime.tensor(x) for x in (*xs, *map(np.zeros_like, xs))]
    scheduled = parallelize(func, CPU, ScanPlan.parse(CPU_PLANS[1]))
    compile_cached(scheduled, target=CPU, plainly=True)["main"](*tensors)
    for got, want in zip(tensors[2:], oracle(bicyclic_twin, xs), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


def test_words_that_wrap_are_no_bicyclic_monoid():
    """Why it is refused: neither is the operator associative, nor are its steps closed."""
    z3 = pytest.importorskip("z3")
    for bits in (8, 16, 32, 64):
        a, b, c = (z3.BitVecs(f"{name}0 {name}1", bits) for name in "abc")

        def then(left, right):
            met = z3.If(z3.ULT(left[1], right[0]), left[1], right[0])
            return (left[0] + right[0] - met, left[1] + right[1] - met)

        one, other = then(then(a, b), c), then(a, then(b, c))
        assert z3.Solver().check(z3.Or(one[0] != other[0], one[1] != other[1])) == z3.sat
    words = range(16)
    steps = {tuple((max(q - r, 0) + s) % 16 for q in words) for r in words for s in words}
    pairs = {tuple(g[q] for q in f) for f in steps for g in steps}
    assert len(steps) == 256 and len(pairs) == 19_856
