"""How the cost of CPU plans counts chains: latencies, how many are under way, and shared sets."""

from dataclasses import replace
from statistics import geometric_mean

import pytest
from tvm import tirx
from tvm.target import Target

from bench.regret_cases import Case
from tests.support.cpu_work import CHIP, machine_of, work_of
from tvm_scan import ScanPlan, extract
from tvm_scan.schedules.choose.default import decide
from tvm_scan.schedules.cpu.cost.count import chain_of
from tvm_scan.schedules.cpu.cost.parts import latency_of, vector_cycles
from tvm_scan.schedules.cpu.cost.short_rows import takes_rows_in_vectors
from tvm_scan.schedules.cpu.cost.step import step_of
from tvm_scan.schedules.cpu.lanes import Lanes
from tvm_scan.schedules.machine import cpu_constants
from tvm_scan.schedules.machine import machine as machines
from tvm_scan.schedules.machine.cpu_constants import with_features
from tvm_scan.schedules.machine.cpu_cost import CpuWork, cpu_cost
from tvm_scan.schedules.machine.machine import Machine

CORES = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "num-cores": 2})
AVX2 = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"})


def cost_on(cores, work, counting=0.0):
    """Cost of work on so many cores, whose pool counts the processors so many seconds."""
    machine = replace(Machine.of(AVX2), chip=CHIP, cores=cores, counting=counting)
    return cpu_cost(work, machine)


def cycles(family, sizes, plan, **constants):
    """What one core does of a plan."""
    work = work_of(family, sizes, plan, replace(CHIP, **constants))
    return work.cycles + work.alone


@pytest.mark.parametrize(
    "of",
    [
        tirx.Max,
        tirx.Min,
        lambda a, b: tirx.Select(a > b, a, b),
        lambda a, b: tirx.Select(a < b, b, a),
    ],
)
def test_an_extremum_of_floats_has_a_latency_of_its_own(of):
    before, read = (tirx.Var(name, "float32") for name in "hx")
    chain = chain_of(of(before, read), [before])
    assert (chain.extremes, chain.simple) == (1, 0)
    assert latency_of(chain, replace(CHIP, extremum_latency=1.0)) == 1.0
    assert latency_of(chain, replace(CHIP, extremum_latency=4.0)) == 4.0


def test_an_extremum_of_integers_is_of_a_cycle():
    before, read = (tirx.Var(name, "int32") for name in "hx")
    assert chain_of(tirx.Max(before, read), [before]).extremes == 0


def test_the_loop_waits_for_its_extremes():
    fast, slow = (
        cycles("clamped", (1, 100_000), "cpu/sequential()", extremum_latency=each)
        for each in (1.0, 4.0)
    )
    assert slow - fast == pytest.approx(6 * 100_000, rel=0.1)


def test_of_lanes_that_take_turns_no_more_are_under_way_than_the_scheduler_holds():
    """16 steps of a lane wait behind those of another: wide blocks gain nothing beyond that."""
    sizes = (64, 16 * 64)
    plans = [f"cpu/lanes(lane_block={width})" for width in (2, 8, 16)]
    few = [cycles("clamped", sizes, plan, window=64.0) for plan in plans]
    assert max(few) < 1.15 * min(few)
    many = [cycles("clamped", sizes, plan, window=1000.0) for plan in plans]
    assert many[1] < 0.6 * few[1] and many[1] < 0.6 * many[0]


@pytest.mark.parametrize("plan", ["cpu/lanes(lane_block=4, vectorize=True)", "cpu/lanes()"])
def test_a_block_begins_while_the_last_steps_of_another_wait(plan):
    """Of short rows several are under way, of long ones one."""
    short, long = (
        cycles("clamped", (1 << 14, steps), plan, window=100.0, sum_latency=20.0) / steps
        for steps in (12, 4096)
    )
    assert short < 0.9 * long


def test_a_vector_that_is_not_full_takes_as_long_as_one_that_is():
    body = step_of(extract(Case("clamped", (64, 64)).func)).body
    of = [vector_cycles(body, lanes, CHIP, True, False) for lanes in (2, 4, 8, 16)]
    assert of[0] == of[1] == of[2] == of[3] / 2


def test_rows_that_meet_in_a_set_are_fetched_again():
    """Rows whole pages apart; not where they are a line more apart, or transposed in tiles."""
    wide = "cpu/lanes(lane_block=16, vectorize=True)"
    meet, apart = (work_of("clamped", (64, steps), wide).moved / steps for steps in (4096, 4112))
    assert meet > 3 * apart
    tiles = "cpu/lanes(lane_block=16, vectorize=True, transpose=True)"
    meet, apart = (work_of("clamped", (64, steps), tiles).moved / steps for steps in (4096, 4112))
    assert meet == pytest.approx(apart, rel=0.01)


def test_lanes_of_long_chains_are_vectors_where_the_scheduler_is_small():
    """Measured on a Zen 3: interleaved scalars took 2.3 times as long as vectors of 8 lanes."""
    chip = replace(CHIP, window=64.0, extremum_latency=1.0, sum_latency=3.0)
    machine = replace(Machine.of(AVX2), chip=chip)
    chosen = decide(AVX2, extract(Case("clamped", (322, 1168)).func), machine).chosen.plan
    assert chosen.vectorize, chosen


@pytest.mark.parametrize("lanes", [8, 16, 24, 32, 48, 64, 128])
def test_cores_contest_the_lines_of_rows_that_they_share(lanes):
    """Of up to 128 bytes, beyond the private caches; one core contests nothing."""
    plan = "cpu/lanes(lane_block=4, vectorize=True)"
    near, far = (work_of("ema", (lanes, length), plan, layout="ld") for length in (400, 1 << 20))
    # Of a line that both halves of a row have a part of, both write all, wherever it is held.
    assert (near.contested > 0) == (lanes in (16, 24, 48))
    assert (far.contested > 0) == (lanes in (8, 16, 24, 32))
    one, two = (cost_on(cores, far).busy for cores in (1, 2))
    plain = replace(far, contested=0.0)
    assert one == cost_on(1, plain).busy
    assert (two > cost_on(2, plain).busy) == (lanes in (8, 16, 24, 32))


def test_a_strip_waits_for_its_first_lines():
    """The prefetcher has brought the others."""
    sizes = (4096, 512)
    first, some, many = (
        work_of("ema", sizes, f"cpu/lanes(lane_block={width}, vectorize=True)", layout="ld").cycles
        for width in (32, 64, 1024)
    )
    assert first > 1.2 * some > 1.2 * many
    held, beyond = (
        work_of("ema", (1024, steps), "cpu/lanes(lane_block=32, vectorize=True)", layout="ld")
        for steps in (50, 500)
    )
    assert beyond.cycles > 15 * held.cycles


def test_a_long_strip_pushes_lines_out_of_the_nearest_cache():
    """Not one whose results are stored past it."""
    plan = "cpu/lanes(lane_block={}, vectorize=True{})"

    def each(width, past=""):
        return work_of("ema", (8192, 512), plan.format(width, past), layout="ld").cycles

    assert each(2048) > 1.2 * each(256)
    assert each(2048, ", nontemporal=True") < 0.9 * each(2048)


def test_a_cell_that_is_stored_alone_takes_more_than_one_that_is_read():
    plan = "cpu/lanes(lane_block=8, vectorize=True)"
    sums, gated = (work_of(f, (64, 100), plan).cycles for f in ("cumsum", "linear_recurrence"))
    assert sums < gated < 1.5 * sums


def test_a_pool_of_one_thread_wakes_nobody():
    work = work_of("cumsum", (64, 100), "cpu/lanes(lane_block=4)")
    assert work.joins == 1
    one, two = (cost_on(cores, work).pool for cores in (1, 2))
    assert one == CHIP.start
    assert two == CHIP.start + CHIP.wake


def test_a_pool_that_counts_processors_at_every_call_costs_more():
    """As it does where no variable says how many threads it has, even if it has one."""
    work = replace(work_of("cumsum", (64, 100), "cpu/lanes(lane_block=4)"), joins=3)
    for cores in (1, 2):
        known, counted = (cost_on(cores, work, seconds) for seconds in (0.0, 5e-6))
        assert counted.pool == pytest.approx(known.pool + 15e-6)
    assert cost_on(1, replace(work, joins=0), 5e-6).pool == CHIP.start


@pytest.mark.parametrize("name", ["TVM_NUM_THREADS", "OMP_NUM_THREADS"])
def test_processors_are_counted_unless_a_variable_says_the_threads(monkeypatch, name):
    for each in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setattr(machines, "_counting", lambda: 5e-6)
    few = extract(Case("linear_recurrence", (2, 512), {"layout": "dl"}).func)
    machine = Machine.of(AVX2)
    assert machine.counting == 5e-6 and Machine.of(CORES).counting == 0.0
    # What takes less than the pool's call runs without it.
    chosen = decide(AVX2, few, machine).chosen.plan
    assert chosen.cost(few, machine).waits == 0
    monkeypatch.setenv(name, "1")
    assert Machine.of(AVX2).counting == 0.0


def test_counting_processors_takes_a_moment():
    assert 0.0 <= machines._counting() < 1e-3


def test_a_pool_that_may_wake_slowly_has_to_gain_more():
    """Up to two wakes more, however often it is woken, and none of a pool of one thread."""
    work = work_of("cumsum", (64, 100), "cpu/lanes(lane_block=4)")
    for joins, cores, wakes in ((1, 2, 2), (64, 2, 2), (0, 2, 0), (1, 1, 0)):
        cost = cost_on(cores, replace(work, joins=joins))
        slow = cost.seconds + wakes * CHIP.wake
        assert cost.ranked == pytest.approx(geometric_mean([cost.seconds, slow]), rel=1e-12)


@pytest.mark.parametrize("length", [5, 15, 16, 40])
def test_rows_shorter_than_a_tile_are_in_none(length):
    recurrence = extract(Case("cumsum", (256, length)).func)
    machine = Machine.of(AVX2)
    listed = list(Lanes.shortlist(recurrence, machine))
    tried = [plan for branch in Lanes.space(recurrence, machine) for plan in branch.plans()]
    assert any(plan.vectorize for plan in listed) and any(plan.vectorize for plan in tried)
    assert any(plan.transpose for plan in listed) == (length >= 16)
    assert any(plan.transpose for plan in tried) == (length >= 16)


def test_of_short_rows_beyond_the_caches_every_line_comes_each_time():
    """A line of a row of two is as much as the row; within the caches it is a line."""
    plans = [f"cpu/lanes(lane_block={width}, vectorize=True)" for width in (32, 16, 8)]
    near, far = (
        [work_of("ema", (32, length), plan, layout="ld").moved for plan in plans]
        for length in (700, 1 << 18)
    )
    assert near[0] == near[1] < 0.6 * near[2]
    assert far[0] < 0.7 * far[1] < 0.7 * 0.7 * far[2]
    # Two lanes that are left over pass over all of the rows, too.
    left, none = (
        work_of("ema", (lanes, 1 << 18), plans[1], layout="ld").moved / lanes for lanes in (18, 16)
    )
    assert left > 1.5 * none


def test_all_lanes_of_few_short_rows_may_be_one_block():
    """It needs no pool, which takes longer to wake."""
    machine = Machine.of(AVX2)
    for lanes, steps, *widest in ((203, 7, 256, 0), (300, 7, 512, 0), (141, 23, 256, 256)):
        assert widest == _widest(machine, lanes, steps)
    assert _widest(machine, 5000, 7) == [16, 0]
    assert _widest(machine, 5000, 23) == [16, 64]


def _widest(machine, lanes, steps):
    """Lanes of the widest vectors, and tiles."""
    listed = list(Lanes.shortlist(extract(Case("cumsum", (lanes, steps)).func), machine))
    return [
        max((p.lane_block for p in listed if p.vectorize and p.transpose == tiles), default=0)
        for tiles in (False, True)
    ]


def test_long_vectors_with_runs_leave_the_registers():
    sizes, plan = (1, 1 << 12), "cpu/lanes(time_vector={}, time_runs=True)"

    def of(dtype, width, register=64):
        chip = replace(CHIP, vector_bytes=register)
        return work_of("cumsum", sizes, plan.format(width), chip, dtype=dtype).cycles

    assert of("float64", 64) > 1.1 * of("float64", 32) > of("float32", 64)
    # AVX has half as many registers, half as wide, and SSE a quarter of these bytes.
    assert of("float32", 64, 32) > 1.1 * of("float32", 32, 32)
    assert of("float32", 64, 16) == pytest.approx(of("float32", 32, 16), rel=0.1)


def test_a_cell_beside_a_state_waits_for_the_ports():
    """Of rows in vectors, and in tiles: which of the two is chosen."""
    plain, tiles = (
        work_of("selective_scan", (2, 32, 1024, 16), plan, layout="bdl").cycles
        for plan in (
            "cpu/lanes(lane_block=16, vectorize=True)",
            "cpu/lanes(lane_block=16, vectorize=True, transpose=True)",
        )
    )
    assert tiles < plain


def test_llvm_gathers_no_rows_of_many_arrays_that_may_overlap():
    """It would compare the addresses of all of them: the loop stays as it is."""
    chip = replace(CHIP, vector_bytes=64)
    resets, sums = (
        work_of(family, (512, 12), "cpu/sequential()", chip).cycles
        for family in ("resets", "cumsum")
    )
    assert resets < 1.5 * sums


def test_few_steps_of_a_strip_are_followed_to_the_next_one():
    """Narrow strips of 8 steps of two arrays jump nowhere; those of 80 do."""
    plan = "cpu/lanes(lane_block=16, vectorize=True)"
    few, many = (
        work_of("cumsum", ((1 << 16) + 16, steps), plan, axis=0).cycles / steps for steps in (8, 80)
    )
    assert many > 2 * few


def test_little_is_left_around_a_block_of_vectors():
    """Beside the block before: short rows take as long for a step as long ones."""
    plan = "cpu/lanes(lane_block=8, vectorize=True)"
    short, long = (work_of("cumsum", (64, steps), plan).cycles / steps for steps in (16, 1600))
    assert short < 1.1 * long


def test_a_row_that_is_written_backwards_takes_longer():
    """In scalar code; vectors of time are reversed in registers."""
    plan = "cpu/lanes(lane_block=8)"
    forwards, backwards = (
        work_of("cumsum", (64, 1000), plan, dtype="int32", reverse=back).cycles
        for back in (False, True)
    )
    assert backwards > 1.4 * forwards


@pytest.mark.parametrize(("dtype", "vectors"), [("float32", True), ("float64", False)])
def test_rows_of_few_bytes_are_taken_in_vectors(dtype, vectors):
    step = step_of(extract(Case("cumprod", (1000, 8), {"dtype": dtype}).func))
    assert takes_rows_in_vectors(step) == vectors


def test_cores_write_one_after_the_other_to_one_line():
    """Of sums of integers, which wait for nothing else; means wait as long for themselves."""
    work = {
        family: work_of(family, (3, 2500), "cpu/lanes()", **options)
        for family, options in (
            ("cumsum", {"axis": 0, "dtype": "int64"}),
            ("ema", {"layout": "ld"}),
        )
    }
    assert work["cumsum"].contested > 0.5 * work["cumsum"].cycles
    assert work["ema"].contested == 0


def test_a_second_core_gets_its_part_from_the_first_one():
    """Or has it from the last call, as most often; beyond private caches both find it."""
    near, far = (
        work_of("cumsum", (8, steps), "cpu/lanes(lane_block=4)") for steps in (4000, 1 << 20)
    )
    for work, times in ((near, 0.25), (far, 0.0)):
        rate = CHIP.rate(work.footprint, 2.0)
        more = cost_on(2, work).memory - work.moved / rate
        assert more == pytest.approx(times * work.footprint / 2 / CHIP.private_rate, rel=1e-6)


def test_short_vectors_move_their_cells_as_fast_as_long_ones():
    """Of 51307 integers a Zen 4 with AVX2 takes 18 us in vectors of time, 33 in chunks of scalars.

    A move by some cells is two shuffles there, and twice as many begin in a cycle.
    """
    target = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"})
    chip = with_features(cpu_constants._shipped("znver4"), target)
    machine = replace(Machine.of(target), chip=chip, cores=2)
    chosen = decide(target, extract(Case("affine integers", (1, 51307)).func), machine).chosen.plan
    assert chosen.time_vector


def test_rows_that_share_a_page_begin_line_by_line():
    # Of rows beside one another no prefetcher follows more than one in a page.
    _, machine = machine_of("znver4")

    def scattered(plan, *sizes):
        return work_of("ema", sizes, f"cpu/lanes({plan})", machine.chip, layout="dl").scattered

    eight = "lane_block=8, vectorize=True"
    assert scattered(eight, 20000, 176) > 20000 * 2 * 512
    assert 0 < scattered(eight, 8000, 176) < 8000 * 2 * 256
    assert scattered("lane_block=8", 20000, 176) == scattered(eight, 20000, 176)
    # A row after the other, few neighbouring rows, a row for each page, and what caches hold.
    assert scattered("time_vector=16", 20000, 176) == scattered("", 20000, 176) == 0.0
    assert scattered(eight, 160000, 22) == scattered(eight, 3000, 1176) == 0.0
    assert scattered(eight, 2000, 176) == 0.0


def test_of_such_rows_the_default_reads_whole_lines():
    target, machine = machine_of("znver4", cores=1)

    def ratio(rows):
        found = extract(Case("ema", (rows, 128), {"layout": "dl"}).func)
        chosen = decide(target, found, machine).chosen.plan
        assert chosen.time_vector or chosen.transpose
        rows_at_once, steps = (
            ScanPlan.parse(f"cpu/lanes({plan})").cost(found, machine, None).seconds
            for plan in ("lane_block=8, vectorize=True", "time_vector=64, time_runs=True")
        )
        return rows_at_once / steps

    assert ratio(20000) > 1.5 * ratio(1000)


def test_cores_that_take_columns_apart_fetch_all_their_lines():
    step = step_of(extract(Case("cumsum", (2, 1 << 21), {"axis": 0}).func))
    apart, together = (
        ScanPlan.parse(f"cpu/lanes({plan})").work(step, CHIP).moved
        for plan in ("time_vector=16", "lane_block=2")
    )
    assert apart == pytest.approx(together + step.loads + step.stores)


def test_of_caches_one_core_waits():
    """2841 columns of 9 steps: the loop takes 2.9 us on a Zen 4, strips of 2048 of them 4.9."""
    target, machine = machine_of("znver4")
    found = extract(Case("linear_recurrence", (2841, 9), {"layout": "ld"}).func)
    assert decide(target, found, machine).chosen.plan != ScanPlan.parse(
        "cpu/lanes(lane_block=2048, vectorize=True)"
    )


def test_memory_keeps_one_core_as_busy_as_several():
    work = work_of("cumsum", (2, 1 << 21), "cpu/lanes(lane_block=2)", axis=0)
    cost = cost_on(2, work)
    assert work.tasks == 1 and cost.busy > 0
    assert cost.seconds < cost.pool + 1.9 * max(cost.busy, cost.memory)
    assert cost.seconds < cost.pool + cost.busy + cost.memory


def test_integers_have_more_ports_beside_those_that_exchange_cells():
    """A Zen 4 sums rows of 175 integers of 8 bytes in vectors of time in 0.6 of scalars' time.

    4541 rows take two cores 115 to 131 us backwards, in tiles 113 to 127 and once 258.
    """
    _, machine = machine_of("znver4")
    found = extract(Case("cumsum", (4541, 175), {"dtype": "int64", "reverse": True}).func)
    vectors, scalars = (
        ScanPlan.parse(f"cpu/lanes({plan})") for plan in ("time_vector=16", "lane_block=4")
    )
    few = replace(machine.chip, mixed_integers=machine.chip.mixed_issue)
    of_scalars = scalars.cost(found, machine).seconds
    assert vectors.cost(found, machine).seconds < of_scalars
    assert vectors.cost(found, replace(machine, chip=few)).seconds > of_scalars


@pytest.mark.parametrize(("lanes", "past"), [(330, False), (336, True)])
def test_strips_are_written_past_the_caches_where_rows_begin_at_lines(lanes, past):
    found = extract(Case("cummax", (lanes, 6240), {"axis": 0, "dtype": "float64"}).func)
    _, machine = machine_of("znver4")
    plans = [plan for plan in Lanes.shortlist(found, machine) if plan.vectorize]
    assert any(plan.nontemporal for plan in plans) == past


@pytest.mark.parametrize(
    ("cores", "tasks", "short", "longest"),
    [
        (1, 2, 60, 140),  # all of it
        (2, 2, 60, 100),  # 40 beside 100
        (2, 3, 60, 140),  # 40 and 100 beside 100
        (2, 4, 60, 200),  # 40 and 100 beside 100 and 100
        (2, 3, 0, 200),
        (4, 5, 60, 200),  # 40 and 100, 100 and 100, 100, none
    ],
)
def test_cores_wait_for_the_one_with_the_longest_tasks(cores, tasks, short, longest):
    """TVM gives the first cores the first tasks, of which the first one is shorter."""
    work = CpuWork(100.0 * tasks - short, float(tasks), 1.0, 0.0, short=float(short))
    assert cost_on(cores, work).busy == pytest.approx(longest * CHIP.cycle)


def test_no_steps_take_no_time_on_any_number_of_cores():
    assert cost_on(4, CpuWork(0.0, 5.0, 1.0, 0.0)).busy == 0.0


def test_lines_come_from_fewer_cores_while_a_short_task_is_done():
    """One core goes on alone for as long as the other one's task is shorter."""
    even = CpuWork(200.0, 2.0, 1.0, 1e8, footprint=1e9)
    uneven = replace(even, cycles=110.0, short=90.0)
    alone = replace(even, tasks=1.0, joins=0.0)
    least, more, most = (cost_on(2, work).memory for work in (even, uneven, alone))
    assert least < more < most
