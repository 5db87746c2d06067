"""Every builder that a device can have, for every algebra, on a driver of the device.

As `tests/gpu/test_table.py`: exact inputs, symbolic sizes, all edge lengths by one kernel. The full
tier takes all triples, the others every builder and every algebra of each device.
"""

import re

import numpy as np
import pytest
import tvm

from tests.devices.table import (
    ALGEBRAS,
    BUILDERS,
    DRIVERS,
    listed,
    problem,
    program,
    refusal,
    scheduled,
)
from tests.gpu.test_table import lengths_of
from tests.support import cusim
from tests.support.cuda_harness import compile_cuda
from tests.support.drivers import run
from tests.support.tiers import SEED, longer
from tvm_scan import ScanPlan

#: What PoCL has no code for, though OpenCL does where a device says so.
LACKED = {(device, "affine of halves"): "cl_khr_fp16" for device in ("opencl", "metal")}
#: Of these builders of a device one in so many is tried in the default tier.
FEW = {"metal": 5, "vulkan": 6}  # their text is that of others
TRIPLES = [
    (device, builder, algebra)
    for device in DRIVERS
    for builder in BUILDERS
    for algebra in ALGEBRAS
    if listed(device, builder, algebra) is None
]


def test_every_hole_is_listed_with_its_reason():
    for device in DRIVERS:
        for builder in BUILDERS:
            for algebra in ALGEBRAS:
                found, reason = refusal(device, builder, algebra), listed(device, builder, algebra)
                where = (device, builder, algebra)
                if reason is None:
                    assert found is None, where
                else:
                    assert found is not None and re.search(reason, found), (*where, found)


def some():
    """One algebra for every builder of a device, and one builder for every algebra."""
    chosen = []
    for device in DRIVERS:
        left = {algebra for d, _, algebra in TRIPLES if d == device}
        for builder in list(BUILDERS)[:: FEW.get(device, 1)]:
            can = [a for d, b, a in TRIPLES if (d, b) == (device, builder)]
            if can:
                first = next((a for a in can if a in left), can[(SEED + len(chosen)) % len(can)])
                left.discard(first)
                chosen.append((device, builder, first))
        if device not in FEW:
            chosen += [next(t for t in TRIPLES if t[::2] == (device, one)) for one in sorted(left)]
    # Kernels of Vulkan are those of WebGPU, word for word.
    return longer(chosen, [t for t in TRIPLES if t[0] != "vulkan" or t in chosen])


@pytest.mark.parametrize(("device", "builder", "algebra"), some())
def test_edge_lengths(device, builder, algebra):
    driver = driver_of(device)
    lacked = LACKED.get((device, algebra))
    if lacked and lacked not in driver.extensions:
        pytest.skip(f"{driver.name} has no {lacked}")
    kernels = program(device, builder, algebra)
    for length in lengths(builder):
        inputs, want, tolerance = problem(algebra, length)
        outputs = [np.full_like(array, 77) for array in want]
        got = run(kernels, driver, [*inputs, *outputs])[len(inputs) :]
        for array, expected in zip(got, want, strict=True):
            np.testing.assert_allclose(
                array, expected, rtol=tolerance, atol=tolerance, err_msg=f"length {length}"
            )


def races():
    """Of the devices with statements of their own: the words of a language are not run there."""
    return longer(some()[::5], [t for t in TRIPLES if t[0] in ("opencl", "webgpu")])


@pytest.mark.parametrize(("device", "builder", "algebra"), races())
def test_no_race_and_no_barrier_that_some_threads_miss(device, builder, algebra):
    """The same statements as CUDA, on the simulated device under its detector."""
    func = scheduled(device, builder, algebra)
    executable = compile_cuda(func.without_attr("target") if "target" in func.attrs else func)
    for length in lengths(builder)[-2:]:
        inputs, want, tolerance = problem(algebra, length)
        args = [*inputs, *(np.full_like(array, 77) for array in want)]
        with cusim.settings(seed=0, race=True):
            tensors = [tvm.runtime.tensor(array, tvm.cuda(0)) for array in args]
            executable["main"](*tensors)
        for tensor, expected in zip(tensors[len(inputs) :], want, strict=True):
            np.testing.assert_allclose(
                tensor.numpy(), expected, rtol=tolerance, atol=tolerance, err_msg=f"{length}"
            )


def lengths(builder):
    plan = BUILDERS[builder]
    return [0, 1, 9, 31, 1025] if plan is None else lengths_of(ScanPlan.parse(plan))


def driver_of(device):
    """The driver of a device, or a skipped test that says what is missing."""
    missing = DRIVERS[device].why_unavailable()
    if missing:
        pytest.skip(missing)
    return DRIVERS[device].driver()
