"""Costs of plans in closed form, and the features that the cost model sees."""

import math

import numpy as np
import pytest
import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tests.support.contexts import light_context
from tests.support.cuda_harness import CUDA_TARGET
from tvm_scan import ScanPlan, extract, library
from tvm_scan.library import LIBRARY
from tvm_scan.meta.search.candidates import candidate_of, first_plans
from tvm_scan.meta.search.features import CandidateRows, decisions_of, row_of
from tvm_scan.meta.search.operations import arithmetic_of
from tvm_scan.meta.space.decisions import enumerate_plans
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.registry import SCHEDULES
from tvm_scan.schedules.splice import ensure_blocks

CPU = Target({"kind": "llvm", "num-cores": 4})
SUM = extract(library.cumsum(8, 4096))


def cost_of(plan, target, found):
    return plan.cost(found, Machine.of(target))


def test_a_loop_moves_its_arrays_once_and_lanes_share_the_work():
    loop = cost_of(ScanPlan.of("cpu", "sequential"), CPU, SUM)
    lanes = cost_of(ScanPlan.of("cpu", "lanes"), CPU, SUM)
    assert loop.bytes == lanes.bytes == 2 * 4 * 8 * 4096
    assert (loop.tasks, loop.waits) == (1, 0)
    assert (lanes.tasks, lanes.waits) == (8, 1)
    assert lanes.seconds < loop.seconds


def test_chunks_pass_twice_and_share_one_lane():
    found = extract(library.cumsum(1, 1 << 20))
    loop = cost_of(ScanPlan.of("cpu", "sequential"), CPU, found)
    chunks = cost_of(ScanPlan.of("cpu", "three_phase", chunks=16), CPU, found)
    assert (chunks.tasks, chunks.waits) == (16, 3)
    assert chunks.work > 1.5 * loop.work and chunks.seconds < loop.seconds
    assert chunks.bytes > loop.bytes


def test_barriers_are_those_of_the_kernel():
    """Those above the levels that a warp has by itself; test_barriers counts them in kernels."""

    def at(threads):
        plan = ScanPlan.of("cuda", "serial_tiles", threads_per_block=threads, items_per_thread=4)
        return cost_of(plan, CUDA_TARGET, SUM).waits

    assert at(32) == 0
    assert at(256) == 4 * 2 * (math.log2(256) - 5)
    assert at(1024) == 2 * (math.log2(1024) - 5)


@pytest.mark.parametrize("target", [CPU, CUDA_TARGET], ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_costs_are_positive_and_tell_plans_apart(name, target):
    sizes = (1, 8, 512, 4) if name == "selective_scan" else (8, 512)
    found = extract(LIBRARY[name].factory(*sizes))
    plans = enumerate_plans(target, found)
    rows = [cost_of(plan, target, found).features() for plan in plans]
    assert all(math.isfinite(v) and v >= 0 for row in rows for v in row)
    assert len({len(row) for row in rows}) == 1
    # Of plans without exchange, CUDA's block size and the use of the C library have no costs.
    assert len({tuple(row) for row in rows}) > len(plans) // 2


@pytest.mark.parametrize(("target", "most"), [(CPU, 9), (CUDA_TARGET, 10)], ids=["cpu", "cuda"])
def test_first_plans_hold_the_default_the_loop_and_every_algorithm(target, most):
    mod = tvm.IRModule({"main": ensure_blocks(library.cumsum(8, 4096))})
    first = [plans[0] for plans in first_plans(mod, target)]
    space = enumerate_plans(target, SUM)
    assert first[0] == space[0]
    assert first[1].algorithm == "sequential"
    assert {p.algorithm for p in first} == {p.algorithm for p in space}
    assert len(first) == len(set(first)) <= most


@pytest.mark.parametrize("target", [CPU, CUDA_TARGET], ids=["cpu", "cuda"])
def test_rows_of_candidates_are_costs_and_decisions_beside_their_stores(target):
    mod = tvm.IRModule({"main": ensure_blocks(library.cumsum(8, 4096))})
    found = extract(mod["main"])
    context = light_context(mod, target)
    made = [candidate_of(mod, (plan,), target) for plan in enumerate_plans(target, found)[:6]]
    measures = [candidate.measure for candidate in made]
    rows = CandidateRows().of(context, measures)
    stock = ms.feature_extractor.PerStoreFeature().extract_from(context, measures)
    for candidate, row, stores in zip(made, rows, stock, strict=True):
        ours = row_of(candidate.plans[0], target, found)
        width = stores.numpy().shape[1]
        assert len(row) == len(ours) + 2 * width
        np.testing.assert_array_equal(row[: len(ours)], ours)
        np.testing.assert_array_equal(row[-width:], stores.numpy().max(0, initial=0.0))
    assert np.isfinite(rows).all()
    assert len({row.tobytes() for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("schedule", "decision"),
    [(schedule, decision) for schedule in SCHEDULES for decision in schedule.decisions()],
    ids=lambda part: part if isinstance(part, str) else f"{part.device}-{part.algorithm}",
)
def test_every_decision_is_seen_by_the_cost_model(schedule, decision):
    base = schedule()
    values = {bool: (True,), int: (2, 3, 64)}.get(schedule.decisions()[decision])
    values = values or schedule.words[decision][1:]
    rows = {tuple(decisions_of(base.with_(**{decision: value}))) for value in values}
    assert len(rows | {tuple(decisions_of(base))}) == len(values) + 1


def test_schedules_are_told_apart():
    assert len({tuple(decisions_of(schedule())) for schedule in SCHEDULES}) == len(SCHEDULES)


def test_arithmetic_is_counted_in_the_step():
    sizes = (2, 1000)
    found = extract(library.linear_recurrence(*sizes))
    loop = arithmetic_of(ScanPlan.of("cpu", "sequential"), CPU, found)
    assert (loop.step_flops, loop.step_exps, loop.flops) == (2, 0, 2 * 2 * 1000)
    assert loop.combine_flops == 3, "(a2 a1, a2 b1 + b2)"
    moved = cost_of(ScanPlan.of("cpu", "sequential"), CPU, found).bytes
    assert loop.intensity == loop.flops / moved
    chunks = arithmetic_of(ScanPlan.of("cpu", "three_phase", chunks=10), CPU, found)
    assert chunks.flops > 2 * loop.flops
    # For each of 16 cells an exponential; softplus and silu have two more and a logarithm.
    scan = extract(library.selective_scan(1, 4, 100, 16))
    loop = arithmetic_of(ScanPlan.of("cpu", "sequential"), CPU, scan)
    assert 16 <= loop.step_exps <= 16 + 4
    assert loop.exps == loop.step_exps * 400
    assert loop.step_flops >= 16 * 6
    assert arithmetic_of(ScanPlan.of("cpu", "lanes"), CPU, extract(library.cumsum(1, 9))).flops == 9
