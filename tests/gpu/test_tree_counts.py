"""The instructions, exchanges and barriers that the cost model counts for trees over tiles.

They are compared with the machine code that nvcc makes of the kernels, whose loops ``bench.sass``
finds.
"""

import pytest

from bench.machine_code import counted
from bench.machine_code_cases import parts_of
from bench.machine_code_peers import compiled
from tests.support.cuda_harness import CUDA_TARGET, emit_cuda
from tests.support.cusim import nvcc
from tvm_scan import ScanPlan, extract, library, parallelize
from tvm_scan.schedules.gpu.block.counts import tile_counts
from tvm_scan.schedules.gpu.block.tree_counts import thread_counts
from tvm_scan.schedules.machine.gpu_chip import H200

pytestmark = [
    pytest.mark.skipif(nvcc.nvdisasm_path() is None, reason="nvdisasm is missing: no SASS to read"),
]

ROWS, LENGTH = 64, 1 << 16
TILES = ScanPlan.parse(
    "cuda/serial_tiles(threads_per_block=128, items_per_thread=8, block_tree=warp, "
    "vector_loads=True)"
)
PHASES = ScanPlan.parse(
    "cuda/three_phase(threads_per_block=256, items_per_thread=16, block_tree=warp, "
    "vector_loads=True)"
)
SUM, MAXIMUM = library.cumsum(ROWS, LENGTH), library.cummax(ROWS, LENGTH)
AFFINE = library.linear_recurrence(ROWS, LENGTH)
CASES = {
    "affine": (AFFINE, TILES),
    "affine, one warp": (AFFINE, TILES.with_(threads_per_block=32)),
    "affine, 16 warps": (AFFINE, TILES.with_(threads_per_block=512)),
    "affine, kogge_stone": (AFFINE, TILES.with_(block_tree="kogge_stone")),
    "affine, blelloch": (AFFINE, TILES.with_(block_tree="blelloch")),
    "affine, through shared memory": (AFFINE, TILES.with_(block_load="transposed")),
    "affine, copied ahead": (AFFINE, TILES.with_(block_load="transposed", stages=2)),
    "affine, phases": (AFFINE, PHASES),
    "affine, sizes not known": (
        library.linear_recurrence(None, None),
        TILES.with_(vector_loads=False, items_per_thread=4),
    ),
    "sum": (SUM, TILES),
    "sum, phases": (SUM, PHASES),
    "maximum": (MAXIMUM, TILES),
    "selective": (library.selective_scan(1, ROWS, LENGTH, 4), TILES),
}


@pytest.mark.parametrize("name", CASES)
def test_counts_of_a_tree(name, tmp_path):
    """Within a quarter, of one thread for one tile; barriers are as many."""
    func, plan = CASES[name]
    found, items = extract(func), plan.items_per_thread
    source = tmp_path / "kernels.cu"
    source.write_text(emit_cuda(parallelize(func, CUDA_TARGET, plan)))
    code = compiled(source, tmp_path, [])
    row = counted(code, parts_of(plan, found), plan.threads_per_block, stored=4)
    kernels = 2 if plan.algorithm == "three_phase" else 1
    count = thread_counts(plan, found)
    instructions = count.replayed(items) + (count.reduced(items) if kernels == 2 else 0.0)
    assert instructions == pytest.approx(items * row["instructions"], rel=0.25)
    barriers = tile_counts(plan, found, ROWS, LENGTH).barriers
    assert kernels * barriers == pytest.approx(items * row["barriers"])
    if plan.block_load == "direct":
        exchanged = count.scan.exchanged + (count.reduce.exchanged if kernels == 2 else 0.0)
        made = items * (row["pipes"].get("shuffle", 0.0) + row["pipes"].get("shared", 0.0))
        assert exchanged == pytest.approx(made, rel=0.25)


def test_the_kernel_in_the_middle_is_waited_for():
    """The carries of a long row are one block's work, which takes longer the smaller the tiles."""
    found = extract(library.cumsum(1, 1 << 28))
    small, large = (
        PHASES.with_(items_per_thread=n).work(found, 1.0, 2.0**28, H200) for n in (4, 16)
    )
    assert small.between == pytest.approx(4 * large.between)
