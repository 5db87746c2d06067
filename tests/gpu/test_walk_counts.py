"""The instructions that the cost model counts for a walk, beside those that nvcc makes of it."""

import itertools
import re

import pytest

from bench.gpu_loops import rwkv6
from tests.support.cuda_harness import CUDA_TARGET, emit_cuda
from tests.support.cusim import nvcc
from tvm_scan import ScanPlan, extract, library, parallelize
from tvm_scan.schedules.gpu.shared.walk_layout import walk_steps
from tvm_scan.schedules.gpu.walk.counts import walk_counts

pytestmark = [
    pytest.mark.skipif(nvcc.nvdisasm_path() is None, reason="nvdisasm is missing: no SASS to read"),
]

WALK = ScanPlan.parse(
    "cuda/lanes(threads_per_block=128, items_per_thread=4, vector_loads=True, threads_per_lane=4)"
)
STAGED = WALK.with_(block_load="transposed", stages=2)
ALONE = ScanPlan.of("cuda", "lanes", threads_per_block=128)

# Steps that one pass of the outermost, the next, and the innermost loop makes for a lane.
CASES = {
    "selective": (library.selective_scan(8, 2048, 2048, 16), WALK, (16, 4)),
    "selective, staged": (library.selective_scan(8, 2048, 2048, 16), STAGED, (32, 16, 4)),
    "selective, halves": (library.selective_scan(8, 2048, 2048, 16, "bfloat16"), STAGED, (32, 16)),
    "selective, bare": (
        library.selective_scan(8, 2048, 2048, 16, has_z=False, has_D=False, softplus=False),
        WALK,
        (16, 4),
    ),
    "rwkv6": (rwkv6(32, 1024, 64), WALK.with_(threads_per_lane=8), (32, 16)),
    "affine, lanes last": (library.linear_recurrence(12288, 1024, layout="ld"), ALONE, (16,)),
    "rwkv6, alone": (rwkv6(32, 1024, 64), ALONE, (1,)),
}


def kernels(text):
    """Of every kernel in a disassembly: its name, its instructions, and its loops as ranges."""
    for part in re.split(r"\n\s*\.text\.", text)[1:]:
        lines = part.splitlines()
        labels, found, loops = {}, [], []
        for line in lines:
            if label := re.match(r"\s*(\.L_x_\d+):", line):
                labels[label[1]] = len(found)
            elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?);", line):
                found.append(instruction[1])
        for place, instruction in enumerate(found):
            target = re.search(r"\bBRA\b.*?(\.L_x_\d+)", instruction)
            if target and labels.get(target[1], place) < place:
                loops.append((labels[target[1]], place + 1))
        yield lines[0], found, sorted(loops, key=lambda loop: loop[0] - loop[1])


def per_step(loops, steps):
    """Instructions of a thread per step of its lane: what each loop has beside the next one.

    Loops that nvcc has unrolled are part of the one around them.
    """
    nest = [loops[0]]
    for loop in loops[1:]:
        if nest[-1][0] <= loop[0] and loop[1] <= nest[-1][1]:
            nest.append(loop)
    assert len(nest) <= len(steps), f"expected {len(steps)} loops, one in another, got {nest}"
    sizes = [end - first for first, end in nest] + [0]
    own = [size - inner for size, inner in itertools.pairwise(sizes)]
    return sum(size / count for size, count in zip(own, steps[: len(own)], strict=True))


def compiled(func, plan):
    source = emit_cuda(parallelize(func, CUDA_TARGET, plan))
    return list(kernels(nvcc.sass(source)))


@pytest.mark.parametrize("name", CASES)
def test_counts_of_a_walk(name):
    func, plan, steps = CASES[name]
    assert plan.block_load == "direct" or steps[0] == walk_steps(plan)
    ((_, _, loops),) = compiled(func, plan)
    counted, made = walk_counts(plan, extract(func)).thread, per_step(loops, steps)
    assert counted == pytest.approx(made, rel=0.25), "per step, of one thread"


def test_counts_of_a_reduction():
    func = library.selective_scan(1, 2048, 65536, 16)
    found = compiled(func, WALK.with_(chunks=16))
    ((_, _, loops),) = [
        kernel for kernel in found if kernel[0].startswith("selective_scan_kernel:")
    ]
    counted = walk_counts(WALK, extract(func), reduces=True).thread
    assert counted == pytest.approx(per_step(loops, (16, 4)), rel=0.25)
