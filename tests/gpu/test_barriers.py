"""Barriers of every builder and tree, by formula; widths of loads and stores in machine code.

For T > 32 threads and L = log2 T, a scan over a block takes

| tree | scan | its aggregate alone | why |
|---|---|---|---|
| warp | 1 | 1 | between the warps' totals and their readers |
| Kogge-Stone | L + 1 | L + 1 | one for each distance, and one before the last look |
| Blelloch | 2 (L - 5) | L - 4 | one around every level that several warps take part in |

and none for one warp. A walk over tiles takes no more: two scans in a row leave what others read in
different memory, and what is staged has barriers between them.
"""

import re

import pytest
from tvm import tirx

from tests.golden.test_resources import barriers
from tests.support.cuda_harness import CUDA_TARGET, emit_cuda
from tests.support.cusim import nvcc
from tvm_scan import ScanPlan, extract, library, loops, parallelize
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.machine.machine import Machine


def scan(tree, levels):
    if levels <= 5:
        return 0
    return {"warp": 1, "kogge_stone": levels + 1, "blelloch": 2 * (levels - 5)}[tree]


def reduction(tree, levels):
    return max(0, levels - 4) if tree == "blelloch" else scan(tree, levels)


def counts(algorithm, tree, threads):
    plan = ScanPlan.of("cuda", algorithm, threads, 2, tree)
    func = parallelize(library.linear_recurrence(3, 10000), CUDA_TARGET, plan)
    return barriers(emit_cuda(func))


SIZES = [
    *(("warp", 32), ("warp", 512), ("kogge_stone", 16), ("kogge_stone", 64)),
    *(("kogge_stone", 128), ("blelloch", 8), ("blelloch", 64), ("blelloch", 1024)),
]


@pytest.mark.parametrize(("tree", "threads"), SIZES)
def test_the_count_is_what_the_trees_need(tree, threads):
    levels = threads.bit_length() - 1
    whole, total = scan(tree, levels), reduction(tree, levels)
    assert counts("serial_tiles", tree, threads) == [whole]
    found = extract(library.linear_recurrence(3, 10000))
    tiles = -(-10000 // (2 * threads))
    plan = ScanPlan.of("cuda", "serial_tiles", threads, 2, tree)
    assert plan.cost(found, Machine.of(CUDA_TARGET)).waits == tiles * whole
    reduce, _, replay = counts("three_phase", tree, threads)
    assert (reduce, replay) == (total, whole)
    # For the ticket; the tree is used twice, the second time with the carry, which no barrier of
    # one warp brings.
    assert counts("single_pass", tree, threads) == [0, 1 + whole + total + (threads <= 32)]


def shared_arrays(source):
    return re.findall(r"__shared__ alignas\(64\) \w+ (\w+)_ptr", source)


@pytest.mark.parametrize("tree", ["warp", "kogge_stone", "blelloch"])
@pytest.mark.parametrize("algorithm", ["serial_tiles", "three_phase"])
def test_nothing_that_is_hidden_from_tvm_shares_its_memory(tree, algorithm):
    """TVM lends memory that nobody uses any more; it cannot know what the trees' barriers order."""
    plan = ScanPlan.of("cuda", algorithm, 64, 8, tree, block_load="transposed")
    source = emit_cuda(parallelize(library.linear_recurrence(3, 1 << 20), CUDA_TARGET, plan))
    own = {"warp": ["warps0a", "warps0b"], "kogge_stone": ["shared0a", "shared0b"]}
    own["blelloch"] = ["shared0a", "shared0b", "sum0a", "sum0b"]
    # The last kernel is the one that writes.
    assert sorted(shared_arrays(source.rsplit("__global__", 1)[1])) == sorted(
        ["A_tile", "X_tile", *own[tree]]  # H lies where A did
    )


@pytest.mark.parametrize("threads", [32, 64])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_those_of_tiles_in_shared_memory(threads, stages):
    """What has arrived, the tree's, and what was left for others: however many buffers."""
    plan = ScanPlan.of("cuda", "serial_tiles", threads, 8, "warp", block_load="transposed")
    plan, func = plan.with_(stages=stages), library.linear_recurrence(3, 10000)
    of_tile = 2 + int(threads > 32)
    assert barriers(emit_cuda(parallelize(func, CUDA_TARGET, plan))) == [of_tile]
    tiles = -(-10000 // (8 * threads))
    cost = plan.cost(extract(func), Machine.of(CUDA_TARGET))
    assert cost.waits == tiles * of_tile


def test_shared_lanes_wait_for_nobody():
    plan = ScanPlan.of("cuda", "lanes", 64, 4, vector_loads=True, threads_per_lane=4)
    func = parallelize(library.selective_scan(1, 16, 256, 16), CUDA_TARGET, plan)
    assert barriers(emit_cuda(func)) == [0]


@pytest.mark.parametrize(("stages", "of_tile"), [(1, 2), (2, 1)])
def test_those_of_staged_walks_are_counted_by_the_model(stages, of_tile):
    plan = WALK.with_(block_load="transposed", stages=stages)
    func = library.selective_scan(1, 64, 320, 16)
    assert barriers(emit_cuda(parallelize(func, CUDA_TARGET, plan))) == [of_tile]
    cost = plan.cost(extract(func), Machine.of(CUDA_TARGET))
    assert cost.waits == 320 / 32 * of_tile
    # Two blocks of 32 lanes. Of a tile of 32 steps each: three arrays of the lanes, and B and C of
    # 16 states, written by lines; of these read a line of each lane, and four states at once.
    streams, tables = 32 * (3 + 3), 16 * 2
    assert cost.shared == 2 * 10 * (streams + tables + 32 * 32 * 2 * 4 / 32)
    # Two blocks on a chip of 132 multiprocessors, each of which holds sixteen by their threads.
    assert cost.occupancy == 2 * 128 / (132 * 2048)
    # With 64 threads there is room for what two threads of a lane exchange: for every step and
    # warp, of dt and dt u a half of a line each that is left, and a line that is read, which all
    # threads get; of sums a line that is left and one that is read.
    plan = plan.with_(threads_per_block=64, threads_per_lane=2)
    exchanged = 32 * 2 * (2 * (1 / 2 + 1) + 2) if stages == 2 else 0
    cost = plan.cost(extract(func), Machine.of(CUDA_TARGET))
    assert cost.shared == 2 * 10 * (streams + tables + 32 * 32 * 2 * 4 / 32 + exchanged)


@pytest.mark.parametrize("size", [16, 128])
@pytest.mark.parametrize(("rule", "gate", "reading"), [("delta", "key", 1), ("general", "head", 1)])
def test_those_of_a_delta_rule_are_counted_by_the_model(rule, gate, reading, size):
    """By multiply-adds: none of TVM's around the cells of the state, however many there are."""
    extents = (tirx.IntImm("int64", n) for n in (1, 2, 72))
    options = {"keys": size, "values": size, "dtype": "float32", "group": 1}
    func = loops.delta_rule(*extents, rule=rule, gate=gate, **options)
    plan = ScanPlan.parse("cuda/delta_blocks(steps=8, threads_per_block=64)")
    assert barriers(emit_cuda(parallelize(func, CUDA_TARGET, plan)))[-1] == 5 + reading
    cost = plan.cost(analyse(func).deltas[0], Machine.of(CUDA_TARGET))
    assert cost.waits == 72 / 8 * (5 + reading * 8)


TILES = ScanPlan.of("cuda", "serial_tiles", 64, 8, "warp", vector_loads=True)
WALK = ScanPlan.of("cuda", "lanes", 128, 4, vector_loads=True, threads_per_lane=4)


@pytest.mark.skipif(nvcc.nvdisasm_path() is None, reason="nvdisasm is missing: no SASS to read")
@pytest.mark.skipif(not nvcc.nvcc_available(), reason="nvcc is missing: no SASS to read")
@pytest.mark.parametrize("arch", ["sm_90"])
def test_widths_in_machine_code(arch):
    """128 bits wherever alignment allows, and nothing narrower but what is made for one lane."""

    def accesses(func, plan):
        source = emit_cuda(parallelize(func, CUDA_TARGET, plan))
        return re.findall(r"\b(LDG|STG)\.E(?:\.\w+)*?(\.128)?(?:\.\w+)*\s", nvcc.sass(source, arch))

    affine = accesses(library.linear_recurrence(3, 4096), TILES)
    # Two inputs and one output of eight items: two vectors each.
    assert sorted(affine) == [("LDG", ".128")] * 4 + [("STG", ".128")] * 2
    scan = accesses(library.selective_scan(8, 2048, 2048, 16), WALK)
    # delta, u, z, and B and C of four states; those of A, D and the bias are single.
    assert scan.count(("LDG", ".128")) >= 3 + 2 * 4
    assert scan.count(("STG", ".128")) == 1 and ("STG", "") not in scan
    odd = accesses(library.linear_recurrence(3, 4097), TILES)
    assert all(width == "" for _, width in odd), "a row of 4097 has no aligned vectors"
