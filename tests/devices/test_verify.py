"""`verify` on drivers that TVM has no runtime for, and what is said where there is none."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from tvm.target import Target

from tests.devices.test_table import driver_of
from tests.meta.test_nearest import commit
from tvm_scan import ScanPlan, extract, library, parallelize, verify
from tvm_scan.errors import ScanError
from tvm_scan.meta import RecordStore, plan_for
from tvm_scan.meta.space.decisions import enumerate_plans
from tvm_scan.schedules.gpu.lanes import Lanes
from tvm_scan.schedules.gpu.serial_tiles import SerialTiles
from tvm_scan.schedules.launch import host, launched, opencl, webgpu
from tvm_scan.schedules.machine.device import DEVICES, Device


@pytest.mark.parametrize("device", ["opencl", "webgpu"])
def test_a_scan_is_compared_with_its_loop(device):
    driver_of(device)
    compared = verify(library.linear_recurrence(2, None), device)
    assert {"random", "growing", "zeros"} <= {one.inputs for one in compared}
    assert all(one.holds for one in compared), compared


def test_a_wrong_kernel_is_told(monkeypatch):
    """As a driver that adds where it is to multiply."""
    driver_of("opencl")

    def wrong(func, target, emit=host.emit):
        program = emit(func, target)
        kernels = {
            name: replace(kernel, source=kernel.source.replace("] * ", "] + "))
            for name, kernel in program.kernels.items()
        }
        return replace(program, kernels=kernels)

    monkeypatch.setattr(host, "emit", wrong)
    compared = verify(library.linear_recurrence(2, 64), "opencl")
    assert not all(one.holds for one in compared)


def test_a_device_that_is_one_row_runs(monkeypatch):
    """Small blocks, three buffers, OpenCL's words: no other line of the project knows of it."""
    driver_of("opencl")
    row = Device("nvptx", shared_bytes=4 << 10, buffers=3, generator="opencl", driver="opencl")
    monkeypatch.setitem(DEVICES, row.name, row)
    target = Target({"kind": row.name, "max_num_threads": 64}, host="llvm")
    func = library.linear_recurrence(None, None)
    tree = SerialTiles(threads_per_block=64, items_per_thread=2)
    assert {type(plan) for plan in enumerate_plans(target, extract(func))} >= {Lanes, SerialTiles}
    entry = library.LIBRARY["linear_recurrence"]
    inputs = entry.example_inputs(np.random.default_rng(0), 3, 1000)
    (want,) = entry.expected(inputs).values()
    for plan in (None, Lanes(threads_per_block=32), tree):
        arrays = [*inputs.values(), np.zeros(want.shape, "float32")]
        got = launched(parallelize(func, target, plan), target)(arrays)[-1]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_arrays_that_do_not_agree_are_named():
    driver_of("opencl")
    target = Target("opencl", host="llvm")
    run = launched(parallelize(library.linear_recurrence(None, None), target), target)
    a, short = np.ones((2, 9), "float32"), np.ones((2, 8), "float32")
    with pytest.raises(
        ScanError, match=r"expected X of 9 cells along an axis, got .*\(2, 8\); give"
    ):
        run([a, short, a])


@pytest.mark.parametrize("kind", ["opencl", "webgpu", "vulkan", "metal", "rocm"])
def test_a_record_serves_its_target_alone(tmp_path, kind):
    target = Target(kind, host="llvm")
    plan = ScanPlan.parse("cuda/serial_tiles(threads_per_block=64, items_per_thread=2)")
    store = RecordStore(tmp_path / "records")
    commit(store, library.cumsum(4, 1000), plan, 1e-6, target)
    near = extract(library.cumsum(4, 1024))
    assert plan_for(near, target, store) == plan
    assert plan_for(near, Target("cuda", host="llvm"), store) is None


@pytest.mark.parametrize(("module", "package"), [(opencl, "pyopencl"), (webgpu, "wgpu")])
def test_a_missing_driver_says_which_package_brings_it(module, package, monkeypatch):
    module.why_unavailable.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ScanError, match=f"^expected {package}, found none: pip install {package}$"):
        verify(library.cumsum(2, 9), module.__name__.rpartition(".")[2])
    module.why_unavailable.cache_clear()


@pytest.mark.parametrize("device", ["metal", "rocm"])
def test_where_nothing_runs_a_driver_that_does_is_named(device):
    said = f"expected a device of {device}, found none, .*has one, or opencl or webgpu, w"
    with pytest.raises(ScanError, match=said):
        verify(library.cumsum(2, 9), device)


def test_the_solver_works_behind_a_driver():
    """The libraries of both have C++ symbols of the same names: z3 ended the process."""
    if webgpu.why_unavailable():
        pytest.skip(webgpu.why_unavailable())
    pytest.importorskip("z3")
    program = (
        "from tvm_scan.schedules.launch import webgpu\n"
        "assert webgpu.why_unavailable() is None\n"
        "from tvm_scan import extract, library, prove\n"
        "print(prove(extract(library.cumsum(3, 10, dtype='int32'))).verdict)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "PROVEN" in done.stdout, (done.returncode, done.stderr)
