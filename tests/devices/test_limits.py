"""What a device lacks: replaced, and right on its driver, or refused with a plan that works."""

import re

import numpy as np
import pytest
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from tests.devices.table import RUN, TARGETS
from tests.devices.test_table import driver_of
from tests.support.drivers import emit, run
from tvm_scan import ScanPlan, extract, library, parallel_scan, parallelize
from tvm_scan.errors import PlanError
from tvm_scan.relax import get_pipeline
from tvm_scan.schedules.machine.device import DEVICES
from tvm_scan.schedules.splice import ensure_blocks

OTHERS = [row.name for row in DEVICES.values() if row.is_gpu and row.is_served]
OTHERS.remove("cuda")
LENGTH = 100


@T.prim_func(s_tir=True)
def logarithms(X: T.Buffer((3, LENGTH), "float32"), H: T.Buffer((3, LENGTH), "float32")):
    for b, t in T.grid(3, LENGTH):
        H[b, t] = T.max(T.if_then_else(t > 0, H[b, t - 1], T.float32(-2)), T.log1p(X[b, t]))


@T.prim_func(s_tir=True)
def tangents(X: T.Buffer((3, LENGTH), "float32"), H: T.Buffer((3, LENGTH), "float32")):
    for b, t in T.grid(3, LENGTH):
        H[b, t] = T.if_then_else(t > 0, H[b, t - 1], T.float32(0)) + T.atanh(X[b, t])


@T.prim_func(s_tir=True)
def squares(X: T.Buffer((100000,), "float32"), H: T.Buffer((100000,), "float32")):
    for t in range(T.int64(100000)):
        H[t] = T.if_then_else(t > 0, H[t - 1], T.float32(0)) + X[t] * T.Cast("float32", t * t)


def test_a_product_of_times_that_32_bits_do_not_hold_is_refused_where_there_are_no_more():
    assert "blockIdx.x" in parallelize(squares, "opencl").script()
    with pytest.raises(PlanError, match=r"that fit 32 bits, as those of webgpu have, got t \* t;"):
        parallelize(squares, "webgpu")


@pytest.mark.parametrize("device", RUN)
def test_log1p_is_as_exact_as_its_argument(device):
    driver = driver_of(device)
    x = np.concatenate([-np.geomspace(1e-30, 0.8, 150), np.geomspace(1e-30, 1e30, 150)])
    x = np.sort(x.astype("float32")).reshape(3, LENGTH)
    kernels = emit(parallelize(logarithms, TARGETS[device]), TARGETS[device])
    got = run(kernels, driver, [x, np.zeros_like(x)])[1]
    np.testing.assert_allclose(got, np.log1p(x.astype("float64")), rtol=1e-5)


@pytest.mark.parametrize("device", RUN)
def test_infinities(device):
    """A maximum begins with minus infinity, and may be nothing else."""
    driver = driver_of(device)
    x = np.full((2, 33), -np.inf, "float32")
    x[1, 20] = np.inf
    plan = ScanPlan.parse("cuda/serial_tiles(threads_per_block=8, items_per_thread=2)")
    kernels = emit(parallelize(library.cummax(2, 33), TARGETS[device], plan), TARGETS[device])
    got = run(kernels, driver, [x, np.zeros_like(x)])[1]
    np.testing.assert_array_equal(got, np.maximum.accumulate(x, axis=1))


@pytest.mark.parametrize(
    "plan",
    [
        None,
        "cuda/lanes(threads_per_block=32)",
        "cuda/serial_tiles(threads_per_block=32, items_per_thread=3, block_tree=kogge_stone)",
    ],
)
def test_halves_where_the_adapter_has_them(plan):
    driver = driver_of("webgpu")
    if "shader-f16" not in driver.features:
        pytest.skip(f"{driver.name} has no shader-f16")
    sizes, options = (1, 3, 101, 4), {"has_D": False, "has_z": False}
    func = library.selective_scan(*sizes, "float16", **options)
    kernels = emit(parallelize(func, TARGETS["webgpu"], plan), TARGETS["webgpu"])
    assert all("enable f16;" in kernel.source for kernel in kernels.kernels.values())
    entry = library.LIBRARY["selective_scan"]
    inputs = entry.example_inputs(np.random.default_rng(0), *sizes, dtype="float16", **options)
    want = entry.expected(inputs, **options)["out"]
    got = run(kernels, driver, [*inputs.values(), np.zeros(want.shape, "float16")])[-1]
    # The states are float32: what is rounded to a half is an output, once.
    np.testing.assert_allclose(got.astype("float64"), want, rtol=2**-10, atol=1e-5)


@pytest.mark.parametrize("device", RUN)
def test_more_blocks_than_a_dimension_of_webgpu_has(device):
    """TVM's code takes the blocks beyond 65,535 from another dimension of the grid."""
    driver, rows = driver_of(device), 65535 + 66
    plan = ScanPlan.parse("cuda/lanes(threads_per_block=1)")
    kernels = emit(parallelize(library.cumsum(rows, 3), TARGETS[device], plan), TARGETS[device])
    x = np.arange(3 * rows, dtype="float32").reshape(rows, 3) % 97
    got = run(kernels, driver, [x, np.full_like(x, 7)])[1]
    np.testing.assert_array_equal(got, np.cumsum(x, axis=1))


@pytest.mark.parametrize("device", OTHERS)
def test_a_function_that_a_device_lacks_is_named(device):
    if device in ("webgpu", "vulkan"):
        return
    with pytest.raises(PlanError, match=rf"functions that TVM has for {device}, got atanh; write"):
        parallelize(tangents, device)


@pytest.mark.parametrize(
    ("device", "func", "plan", "said"),
    [
        ("webgpu", library.cumsum(2, 9, "float64"), None, "webgpu has, got float64 for Y"),
        (
            "opencl",
            library.cumsum(2, 9),
            "cuda/serial_tiles(threads_per_block=512, items_per_thread=4)",
            "2 to 256 threads per block, got threads_per_block=512; use fewer.*; on opencl cuda/",
        ),
        (
            "vulkan",
            library.linear_recurrence(2, 9999),
            "cuda/serial_tiles(threads_per_block=256, items_per_thread=16, block_load=transposed)",
            "at most 16384 bytes of shared memory, got .*; use fewer.*; on vulkan cuda/",
        ),
        (
            "webgpu",
            library.linear_recurrence(2, 9),
            "cuda/single_pass(threads_per_block=64, items_per_thread=4, block_tree=kogge_stone)",
            "got webgpu, where they do not; use algorithm three_phase.*; on webgpu cuda/",
        ),
        (
            "metal",
            library.linear_recurrence(2, 99),
            "cuda/serial_tiles(threads_per_block=64, items_per_thread=4, block_tree=warp)",
            "got metal with .*, in warps of 16; use another block_tree.*; on metal cuda/",
        ),
        (
            "webgpu",
            library.cumsum(1, (1 << 31) - 5),
            None,
            r"at most 2130706432 steps, .*, got 2147483643 steps; cut time into several loops",
        ),
    ],
)
def test_a_plan_that_does_not_fit_names_the_device_and_one_that_does(device, func, plan, said):
    with pytest.raises(PlanError, match=said) as caught:
        parallelize(func, device, plan)
    if plan is not None:
        works = re.search(rf"; on {device} (cuda/.*\)) works", str(caught.value))
        assert "blockIdx.x" in parallelize(func, device, works[1]).script()


def test_the_primitive_knows_the_device():
    sch = Schedule(ensure_blocks(library.linear_recurrence(2, 99)))
    plan = "cuda/serial_tiles(threads_per_block=64, items_per_thread=2)"
    parallel_scan(sch, sch.get_sblock("scan"), plan, target="opencl")
    text = sch.mod.script()
    assert "tvm_storage_sync" in text and "warp_sync" not in text


@pytest.mark.parametrize("device", OTHERS)
def test_a_name_is_a_target(device):
    assert extract(library.cumsum(2, 9)) is not None
    assert "blockIdx.x" in parallelize(library.cumsum(2, 9), device).script()
    assert get_pipeline(device) is not None
