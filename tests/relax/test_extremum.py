"""``torch.cummax`` and ``cummin``: scans of the value, then of the index, as torch has them."""

import numpy as np
import pytest
import tvm
from tvm.target import Target

from tests.programs.test_extraction import CPU_PLANS, CUDA_PLANS
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tvm_scan import loops, parallelize
from tvm_scan.extraction import extract
from tvm_scan.library.arguments import make_extent
from tvm_scan.recurrence import Recurrence

torch = pytest.importorskip("torch")

CPU = Target.from_device("cpu")
SHAPE = (3, 61, 2)


def values(dtype, seed=0):
    """Few different numbers, so that there are ties; for floats also NaN and infinities."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, SHAPE).astype(dtype)
    if np.dtype(dtype).kind == "f":
        x[rng.random(SHAPE) < 0.05] = -np.inf
        x[0, :9] = -np.inf  # a first step as bad as can be
        x[1][rng.random(SHAPE[1:]) < 0.04] = np.nan
        x[2, 40] = np.inf
    else:
        x[0, :9] = np.iinfo(dtype).min
        x[1, :9] = np.iinfo(dtype).max
    return x


def check(name, got, x):
    for array, want in zip(got, getattr(torch, name)(torch.from_numpy(x), 1), strict=True):
        np.testing.assert_array_equal(array, want.numpy())


def loop(name, dtype):
    outer, length, inner = (make_extent(name, "extent", n) for n in SHAPE)
    return loops.extremum(outer, inner, length, dtype=dtype, smallest=name == "cummin")


def arguments(x):
    return x, np.zeros_like(x), np.zeros(x.shape, "int64")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_every_cpu_plan_is_torchs(name, dtype):
    func, x = loop(name, dtype), values(dtype)
    assert isinstance(extract(func), Recurrence)
    for plan in [None, *CPU_PLANS] if dtype == "float32" else [None, CPU_PLANS[3]]:
        args = [tvm.runtime.tensor(a) for a in arguments(x)]
        compile_cached(parallelize(func, CPU, plan), target=CPU)(*args)
        check(name, [a.numpy() for a in args[1:]], x)


@pytest.mark.parametrize("plan", CUDA_PLANS, ids=str)
def test_every_cuda_plan_is_torchs(plan):
    for name, dtype in (("cummax", "float32"), ("cummin", "int64")):
        func, x = loop(name, dtype), values(dtype)
        check(name, run_cuda(parallelize(func, CUDA_TARGET, plan), arguments(x))[1:], x)
