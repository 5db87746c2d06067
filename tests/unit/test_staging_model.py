"""The cost model of tiles in shared memory, and when the default plan takes them."""

import pytest
from tvm.target import Target

from tests.support.cuda_harness import CUDA_TARGET
from tests.support.plans import in_schedule
from tvm_scan import ScanPlan, default_plan, extract, library
from tvm_scan.schedules.gpu.shared.counts import lines_of_step, shared_accesses
from tvm_scan.schedules.machine.machine import Machine

PLAN = ScanPlan.of(
    "cuda", "serial_tiles", 128, 8, "warp", vector_loads=True, block_load="transposed", stages=3
)
DIRECT = PLAN.with_(block_load="direct", stages=1)
FOUND = extract(library.linear_recurrence(64, 4096))


def test_lines_that_a_warp_touches():
    """Of float32 and 8 items: 8 lines are a warp's items; A and X in, H out."""
    per_warp = 32 * 8
    assert lines_of_step(DIRECT, FOUND) * per_warp == 3 * 2 * 8
    assert lines_of_step(DIRECT.with_(vector_loads=False), FOUND) * per_warp == 3 * 8 * 8
    assert lines_of_step(PLAN, FOUND) * per_warp == 3 * (8 + 8 + 8)
    # Loads of both passes, and the store of the second one.
    assert lines_of_step(in_schedule(DIRECT, "three_phase"), FOUND) * per_warp == 5 * 2 * 8
    # A thread's items are one vector: nothing is exchanged.
    four = PLAN.with_(items_per_thread=4, stages=1)
    assert lines_of_step(four, FOUND) == lines_of_step(four.with_(block_load="direct"), FOUND)


def test_bytes_under_way():
    """Two of three buffers, of two inputs with 8 items of 4 bytes and a padding of 4 in 32."""
    assert DIRECT._bytes_ahead(FOUND) == 0
    inputs = 2 * 2 * 8 * 4
    assert inputs < PLAN._bytes_ahead(FOUND) < 1.6 * inputs
    # An access of 128 bits on either side.
    assert shared_accesses(PLAN, FOUND) == 3 * (1 / 4 + 1 / 4)
    assert shared_accesses(DIRECT, FOUND) == 0


def test_several_buffers_take_the_wait_out_of_the_chain():
    machine = Machine.of(CUDA_TARGET)
    one, two = (PLAN.with_(stages=s).cost(FOUND, machine) for s in (1, 2))
    assert two.chain < one.chain
    assert two.waits == one.waits
    scan = extract(library.selective_scan(1, 2048, 2048, 16))
    walk = ScanPlan.of("cuda", "lanes", 64, 4, vector_loads=True, threads_per_lane=16)
    staged = [walk, *(walk.with_(block_load="transposed", stages=s) for s in (1, 2))]
    chains = [plan.cost(scan, machine).chain for plan in staged]
    assert chains[2] < min(chains[:2])


OLD = Target({"kind": "cuda", "arch": "sm_75"}, host={"kind": "llvm"})
DEFAULTS = {
    "aligned rows": (library.linear_recurrence(12288, 65536), "transposed", 1),
    "odd rows": (library.linear_recurrence(12288, 65535), "transposed", None),
    # What a thread reads cell by cell, by every line several times, costs more than bounds that
    # copies to shared memory ask for once more.
    "symbolic": (library.linear_recurrence(None, None), "transposed", None),
    "lanes are neighbours": (library.linear_recurrence(None, None, layout="ld"), "direct", 1),
    "selective": (library.selective_scan(8, 2048, 2048, 16), "transposed", 2),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    func, block_load, stages = DEFAULTS[name]
    plan = default_plan(CUDA_TARGET, extract(func))
    assert plan.block_load == block_load
    assert stages is None or plan.stages == stages
    assert default_plan(OLD, extract(func)).stages == 1


def test_lanes_that_are_neighbours_are_cut_though_their_number_is_not_known():
    """Neither a tree, of whose sectors an eighth is used, nor one chain per lane."""
    for rows, length in ((None, None), (4096, None), (None, 4096), (4096, 4096)):
        found = extract(library.linear_recurrence(rows, length, layout="ld"))
        plan = default_plan(CUDA_TARGET, found)
        assert plan.algorithm == "lanes" and plan.chunks >= 4, (rows, length)
    along = extract(library.linear_recurrence(None, None))
    assert default_plan(CUDA_TARGET, along).chunks == 0
