"""Kernels that no driver here runs: AMD's code objects, and Metal as text."""

import re

import pytest
from tvm.target import Target

from tests.devices.table import ALGEBRAS, BUILDERS, loop_of, recurrence_of
from tests.support.drivers import emit
from tests.support.drivers.amdgpu import resources_of, without_tools
from tests.support.tiers import longer, paired
from tvm_scan import ScanPlan, parallelize
from tvm_scan.errors import PlanError

ROCM = Target({"kind": "rocm", "mcpu": "gfx90a"}, host="llvm")
METAL = Target("metal", host="llvm")


def kernels(target, builder, algebra):
    """Kernels of a plan that fits, with the barriers of its statements; none where it does not."""
    text = BUILDERS[builder]
    plan = None if text is None else ScanPlan.parse(text)
    try:
        func = parallelize(loop_of(algebra), target, plan)
    except PlanError as error:
        said = str(error)
    else:
        with without_tools():
            made = list(emit(func, target).kernels.values())
        return made, func.script().count("tvm_storage_sync")
    assert re.search("shuffles|stages|single pass|expected dtypes|buffers", said), said
    return [], 0


PAIRS = paired(list(BUILDERS), ALGEBRAS)
PAIRS = longer(PAIRS[::3], PAIRS)


@pytest.mark.parametrize(("builder", "algebra"), PAIRS)
def test_code_objects_have_no_scratch_and_the_shared_memory_of_the_plan(builder, algebra):
    made, _ = kernels(ROCM, builder, algebra)
    for kernel in made:
        taken = resources_of(kernel.source)
        assert (taken.scratch, taken.spilled) == (0, 0), (kernel.name, taken)
        assert taken.vector_registers <= 512 and taken.scalar_registers <= 106, taken
        assert taken.shared <= 16384, taken
        # Nothing is called that ROCm's library of functions would have to bring.
        assert "s_swappc" not in kernel.source


@pytest.mark.parametrize(("builder", "algebra"), PAIRS)
def test_metal_text_has_the_right_structure(builder, algebra):
    made, barriers = kernels(METAL, builder, algebra)
    text = "\n".join(kernel.source for kernel in made)
    if made:
        found = text.count("threadgroup_barrier(mem_flags::mem_threadgroup)")
        assert found >= min(barriers, 1), (found, barriers)
    for kernel in made:
        assert len(re.findall(r"\[\[ buffer\((\d+)\) \]\]", kernel.source)) <= 31
        assert "using namespace metal;" in kernel.source
        assert len(re.findall(rf"kernel void {kernel.name}\(", kernel.source)) == 1
        words = set(re.findall(r"\b\w+\b", kernel.source))
        assert not words & {"double", "log1pf", "inff", "nan"}, words


def test_the_plan_says_what_a_block_takes():
    """Shared memory in the notes is what `smem_bytes` says."""
    for builder in longer(["serial_tiles, blelloch"], ["serial_tiles, blelloch", "tiles"]):
        plan = ScanPlan.parse(BUILDERS[builder])
        (kernel,), _ = kernels(ROCM, builder, "affine")
        said = plan.smem_bytes(recurrence_of("affine"))
        assert 0 <= said - resources_of(kernel.source).shared < 256
