"""Every family is found in its loop, and every plan computes what the loop computes."""

import numpy as np
import pytest
import tvm

from tests.programs.family_programs import PROGRAMS
from tests.programs.test_extraction import CPU, CPU_PLANS, CUDA_PLANS, sequential
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tests.support.tiers import one_of, paired
from tvm_scan import Recurrence, ScanPlan, extract, parallelize, tir
from tvm_scan.algebra import FAMILIES


def arguments(name):
    func, _, (low, high), _ = PROGRAMS[name]
    rng = np.random.default_rng(len(name))
    return [
        rng.integers(low, high, [int(e) for e in tir.shape_of(p)]).astype(tir.dtype_of(p))
        for p in func.params
    ]


def check(name, got, want):
    # Four roundings a step for 37 steps, of values that the tests keep below 100.
    tolerance = {"rtol": 200 * 2.0**-24, "atol": 1e-5} if PROGRAMS[name][3] else {}
    for array, expected in zip(got, want, strict=True):
        if tolerance:
            np.testing.assert_allclose(array, expected, **tolerance)
        else:
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_found_and_named(name):
    found = extract(PROGRAMS[name][0])
    assert isinstance(found, Recurrence), found.message()
    assert [group.algebra.name for group in found.groups] == PROGRAMS[name][1]
    positions = sorted(i for group in found.groups for i in group.carries)
    assert positions == list(range(len(found.carries)))


def test_every_family_has_a_program():
    shown = {name for _, names, _, _ in PROGRAMS.values() for name in names}
    shown.add("declared associative")  # test_associative.py
    assert shown == {family.name for family in FAMILIES}


@pytest.mark.parametrize("name", PROGRAMS)
def test_cpu_plans_equal_the_loop(name):
    """Chunks whose elements are combined, and one of the plans of lanes."""
    func, args = PROGRAMS[name][0], arguments(name)
    want, number = sequential(func, args), list(PROGRAMS).index(name)
    for plan in (*one_of(CPU_PLANS[:3], number), *one_of(CPU_PLANS[3:], number)):
        tensors = [tvm.runtime.tensor(a) for a in args]
        compile_cached(parallelize(func, CPU, plan), target=CPU, plainly=True)(*tensors)
        check(name, [tensor.numpy() for tensor in tensors], want)


@pytest.mark.parametrize(("name", "plan"), paired(list(PROGRAMS), CUDA_PLANS), ids=str)
def test_cuda_plans_equal_the_loop(name, plan):
    func, args = PROGRAMS[name][0], arguments(name)
    check(name, run_cuda(parallelize(func, CUDA_TARGET, plan), args), sequential(func, args))


WITH_NAN = (
    "bounded_sum",
    "reset_sum",
    "reset_max",
    "running_argmax",
    "peak_hold",
    "independent_network",
    "gates_of_any_sign",
    "maximum_two_steps_back",
    "kept_while_above",
)


def with_nan(name):
    arrays = arguments(name)
    rng = np.random.default_rng(1)
    for array in arrays:
        if array.dtype.kind == "f":
            array[rng.random(array.shape) < 0.1] = np.nan
    return arrays


@pytest.mark.parametrize("name", WITH_NAN)
def test_nan_as_in_the_loop_on_cpu(name):
    func, args = PROGRAMS[name][0], with_nan(name)
    want = sequential(func, args)
    for plan in one_of(CPU_PLANS[3:], WITH_NAN.index(name)):
        tensors = [tvm.runtime.tensor(a) for a in args]
        compile_cached(parallelize(func, CPU, plan), target=CPU, plainly=True)(*tensors)
        for tensor, expected in zip(tensors, want, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), expected)


@pytest.mark.parametrize("name", WITH_NAN)
def test_nan_as_in_the_loop_on_cuda(name):
    func, args = PROGRAMS[name][0], with_nan(name)
    loop = ScanPlan.of("cuda", "sequential", threads_per_block=32)
    want = run_cuda(parallelize(func, CUDA_TARGET, loop), args)
    for plan in one_of(CUDA_PLANS[1:], WITH_NAN.index(name)):
        for got, expected in zip(
            run_cuda(parallelize(func, CUDA_TARGET, plan), args), want, strict=True
        ):
            np.testing.assert_array_equal(got, expected)
