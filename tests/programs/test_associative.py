"""Declared operators: proven where they can be, believed where not, tried on samples first."""

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tests.support.tiers import paired
from tvm_scan import ScanError, ScanPlan, associative_scan, extract, parallelize
from tvm_scan.schedules.choose.default import host_target

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
    tvm.compile(parallelize(func, CPU, ScanPlan.parse(plan)), target=CPU)["associative_scan"](
        *tensors
    )
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
