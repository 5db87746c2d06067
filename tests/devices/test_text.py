"""Kernels that no driver here runs: AMD's code objects, and Metal as text."""

import pytest

from tests.devices.table import (
    ALGEBRAS,
    BUILDERS,
    faults,
    listed,
    loop_of,
    plan_of,
    program,
    recurrence_of,
)
from tests.support.drivers import amdgpu, emit, metal
from tests.support.tiers import longer, paired
from tvm_scan import ScanPlan, default_plan, parallelize
from tvm_scan.arguments import as_target

PAIRS = paired(list(BUILDERS), ALGEBRAS)
PAIRS = longer(PAIRS[::3], PAIRS)


def which(device):
    return [pair for pair in PAIRS if listed(device, *pair) is None]


@pytest.mark.parametrize(("builder", "algebra"), which("rocm"))
def test_code_objects_have_no_scratch_and_the_shared_memory_of_the_plan(builder, algebra):
    assert not faults("rocm", builder, algebra)


@pytest.mark.parametrize(("builder", "algebra"), which("metal"))
def test_metal_text_has_the_right_structure(builder, algebra):
    assert not faults("metal", builder, algebra)


def test_the_plan_says_what_a_block_takes():
    """Shared memory in the notes, and in Metal's text, is what `smem_bytes` says."""
    for builder in longer(["serial_tiles, blelloch"], ["serial_tiles, blelloch", "tiles"]):
        said = plan_of("rocm", builder, "affine").smem_bytes(recurrence_of("affine"))
        (code,) = program("rocm", builder, "affine").kernels.values()
        (text,) = program("metal", builder, "affine").kernels.values()
        assert 0 <= said - amdgpu.resources_of(code.source).shared < 256
        assert 0 <= said - metal.shared_bytes(text) < 256


@pytest.mark.parametrize(
    ("options", "shuffle", "each"),
    [
        ({"kind": "rocm", "mcpu": "gfx90a"}, "ds_bpermute_b32", 2),
        ({"kind": "rocm", "mcpu": "gfx1100", "thread_warp_size": 32}, "ds_bpermute_b32", 2),
        ({"kind": "metal", "thread_warp_size": 32}, "simd_shuffle_up", 2),
    ],
)
def test_trees_shuffle_where_a_warp_has_32_threads_or_more(options, shuffle, each):
    target = as_target(options, "a test")
    plan = ScanPlan.parse(
        "cuda/serial_tiles(threads_per_block=64, items_per_thread=3, block_tree=warp)"
    )
    kernels = emit(parallelize(loop_of("affine"), target, plan), target).kernels.values()
    (text,) = (kernel.source for kernel in kernels)
    assert text.count(shuffle) >= 5 * each
    assert "serial_tiles" in str(default_plan(target, recurrence_of("affine")))
