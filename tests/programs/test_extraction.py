"""Every form of loop is found, named right, and computes what its sequential loop computes."""

import numpy as np
import pytest
import tvm
from tvm.target import Target

from tests.programs.accepted_programs import PROGRAMS
from tests.programs.suite.running import PLAIN
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tests.support.tiers import SEED, longer, paired
from tvm_scan import Recurrence, Refusal, ScanPlan, extract, parallelize, tir
from tvm_scan.extraction import extract_nest, root_nests
from tvm_scan.library import LIBRARY

CPU = Target.from_device("cpu")
CPU_PLANS = [
    ScanPlan.of("cpu", "lanes"),
    ScanPlan.of("cpu", "lanes", lane_block=2),
    ScanPlan.of("cpu", "lanes", lane_block=4, vectorize=True),
    ScanPlan.of("cpu", "three_phase", chunks=4),
    ScanPlan.of("cpu", "three_phase", chunks=8, lane_block=4),
]
CUDA_PLANS = [
    ScanPlan.of("cuda", "lanes", threads_per_block=32),
    ScanPlan.of("cuda", "serial_tiles", threads_per_block=8, items_per_thread=2),
    ScanPlan.of("cuda", "three_phase", threads_per_block=8, items_per_thread=3),
]
SYMBOLIC = (5, 37)


def arguments(func, seed=0):
    """Small integers for every parameter; gates are -1, 0 or 1, so that nothing grows."""
    rng = np.random.default_rng(seed)
    out = []
    for param in func.params:
        if not hasattr(param, "shape"):
            continue
        shape = [tir.as_int(e) for e in tir.shape_of(param)]
        shape = [SYMBOLIC[i] if e is None else e for i, e in enumerate(shape)]
        low, high = (-1, 2) if param.name == "A" else (-4, 5)
        out.append(rng.integers(low, high, shape).astype(tir.dtype_of(param)))
    return out


def sequential(func, args):
    """The loop as it stands; a nest that is bound to threads is unbound first."""
    tensors = [tvm.runtime.tensor(a) for a in args]
    compile_cached(unbound(func), target=PLAIN)(*tensors)
    return [t.numpy() for t in tensors]


def unbound(func):
    import tvm_ffi
    from tvm import tirx

    def on_for(loop):
        if loop.kind != tirx.ForKind.THREAD_BINDING:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, on_for)))


def family(algebra):
    return f"{algebra.name} {algebra.op}" if algebra.name == "reduce" else algebra.name


@pytest.mark.parametrize("name", PROGRAMS)
def test_found_and_named(name):
    func, families, lanes, time = PROGRAMS[name]
    found = extract(func)
    assert isinstance(found, Recurrence), found.message()
    assert [family(a) for a in found.algebras] == families
    assert [a.var.name for a in found.lanes] == list(lanes)
    assert found.time.var.name == time


@pytest.mark.parametrize(("name", "plan"), paired(list(PROGRAMS), CPU_PLANS), ids=str)
def test_cpu_plans_equal_the_loop(name, plan):
    func = PROGRAMS[name][0]
    args = arguments(func)
    want = sequential(func, args)
    tensors = [tvm.runtime.tensor(a) for a in args]
    compile_cached(parallelize(func, CPU, plan), target=CPU, plainly=True)(*tensors)
    for tensor, expected in zip(tensors, want, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), expected)


#: Every form runs on the CPU above; what a plan for a GPU makes of a recurrence is tests/gpu's.
ON_CUDA = longer(list(PROGRAMS)[SEED % 3 :: 3], list(PROGRAMS))


@pytest.mark.parametrize(("name", "plan"), paired(ON_CUDA, CUDA_PLANS), ids=str)
def test_cuda_plans_equal_the_loop(name, plan):
    func = PROGRAMS[name][0]
    args = arguments(func)
    want = sequential(func, args)
    got = run_cuda(parallelize(func, CUDA_TARGET, plan), args)
    for array, expected in zip(got, want, strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("shape", "plan"),
    [
        ((1, 4096), "cpu/lanes(time_vector=64, time_runs=True)"),
        ((1, 4096), "cpu/three_phase(chunks=2, time_vector=64, time_runs=True)"),
        ((3, 600), "cuda/serial_tiles(threads_per_block=64, items_per_thread=4)"),
    ],
)
def test_what_is_scheduled_is_answered_too(shape, plan):
    """A nest may begin with the buffers of its block; the analysis has an answer for each."""
    target = CPU if plan.startswith("cpu") else CUDA_TARGET
    func = parallelize(LIBRARY["linear_recurrence"].factory(*shape), target, ScanPlan.parse(plan))
    for nest in root_nests(func):
        assert isinstance(extract_nest(func, nest), Recurrence | Refusal)
