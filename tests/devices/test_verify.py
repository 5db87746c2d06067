"""`verify` on drivers that TVM has no runtime for, and what is said where there is none."""

from dataclasses import replace

import pytest

from tests.devices.test_table import driver_of
from tvm_scan import library, verify
from tvm_scan.errors import ScanError
from tvm_scan.schedules.launch import host, opencl, webgpu


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


@pytest.mark.parametrize(("module", "package"), [(opencl, "pyopencl"), (webgpu, "wgpu")])
def test_a_missing_driver_says_which_package_brings_it(module, package, monkeypatch):
    module.why_unavailable.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ScanError, match=f"^expected {package}, found none: pip install {package}$"):
        verify(library.cumsum(2, 9), module.__name__.rpartition(".")[2])
    module.why_unavailable.cache_clear()


@pytest.mark.parametrize("device", ["metal", "rocm"])
def test_where_nothing_runs_a_driver_that_does_is_named(device):
    said = f"expected a device of {device}, found none, .*has one, or opencl, vulkan or webgpu, w"
    with pytest.raises(ScanError, match=said):
        verify(library.cumsum(2, 9), device)
