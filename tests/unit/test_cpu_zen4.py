"""How the cost of CPU plans agrees with what was measured on a Zen 4."""

from dataclasses import replace
from functools import partial

import pytest
from tvm.target import Target

from bench.regret_cases import Case
from tests.support import cpu_work
from tests.support.cpu_work import machine_of, work_of
from tvm_scan import extract
from tvm_scan.schedules.choose.default import decide
from tvm_scan.schedules.cpu.cost.step import step_of
from tvm_scan.schedules.cpu.plans import lane_vectors
from tvm_scan.schedules.machine.cpu_constants import with_features
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan

ZEN4 = machine_of("znver4")[1].chip
LOOP = "cpu/sequential()"
seconds_on = partial(cpu_work.seconds_on, "znver4")
chosen = partial(cpu_work.chosen_on, "znver4")


def cycles(family, sizes, plan=LOOP, **options):
    """Cycles of a cell on one core, but for memory."""
    rows, length = sizes
    work = work_of(family, sizes, plan, ZEN4, **options)
    return (work.cycles + work.alone) / rows / length


@pytest.mark.parametrize(
    ("family", "measured"),
    [
        ("clamped", {2: 0.30, 4: 0.56, 6: 0.72, 8: 0.95}),
        ("order 2", {3: 0.37, 5: 0.60, 7: 0.89}),
        ("restarts", {2: 0.42, 4: 0.62, 7: 1.16}),
        ("narrow", {2: 0.41, 5: 0.60, 8: 0.78}),
    ],
)
def test_each_step_of_a_short_row_is_dealt_out_to_vectors(family, measured):
    """The loop, whose rows LLVM takes as cells; rows that are neighbours are not dealt out."""
    for length, each in measured.items():
        assert cycles(family, (4000 // length, length)) == pytest.approx(each, rel=0.4, abs=0.1)
    rows = (256, 16)
    beside = cycles("linear_recurrence", rows, layout="bld", dtype="float64", batch=1)
    assert beside < 2.0


@pytest.mark.parametrize(
    ("dtype", "measured"),
    [
        ("float32", {5: 4.2, 8: 4.3, 9: 4.5, 11: 6.6, 16: 15.4, 17: 25.4, 24: 15.6, 32: 15.7}),
        ("float64", {4: 4.4, 8: 4.9, 9: 6.8, 12: 6.5, 16: 15.7, 17: 25.9, 20: 15.4, 30: 24.9}),
        ("int64", {4: 2.4, 8: 4.4, 9: 6.5, 12: 6.5}),
        ("int32", {6: 3.5, 8: 3.5, 10: 4.0, 12: 4.0}),
    ],
)
def test_carries_of_few_columns_stay_in_registers(dtype, measured):
    """The loop down columns: cycles a step, of which 12 are memory's and more where lines end."""
    for lanes, each in measured.items():
        step = cycles("cumsum", (lanes, 400), dtype=dtype, axis=0) * lanes
        assert step == pytest.approx(each, rel=0.4)


@pytest.mark.parametrize("lanes", [128, 256, 512])
def test_carries_of_wide_blocks_come_from_the_pool(lanes):
    """512 columns of two steps in blocks of 64, 128, 256, 512: 120, 700, 590, 500 cycles more."""
    plan = "cpu/lanes(lane_block={}, vectorize=True)"
    narrow, wide = (
        work_of("cumsum", (512, 2), plan.format(width), ZEN4, dtype="float32", axis=0)
        for width in (64, lanes)
    )
    more = wide.cycles + wide.alone - narrow.cycles - narrow.alone
    assert more == pytest.approx({128: 590, 256: 470, 512: 380}[lanes], rel=0.4)


@pytest.mark.parametrize(
    ("family", "dtype", "measured"),
    [
        ("cumsum", "float32", 0.6),
        ("cumsum", "float64", 0.86),
        ("linear_recurrence", "float32", 0.86),
    ],
)
def test_tiles_in_registers_begin_with_nothing_to_clear(family, dtype, measured):
    """Rows of one tile, 2048 of 16 steps; of longer ones as many cycles a cell."""
    plan = "cpu/lanes(lane_block=16, vectorize=True, transpose=True)"
    each = cycles(family, (2048, 16), plan, dtype=dtype)
    assert each == pytest.approx(measured, rel=0.2)
    assert each < 1.1 * cycles(family, (2048, 64), plan, dtype=dtype)


def test_squares_of_halves_have_rows_of_16_cells():
    """128 rows of 128 halves take 0.85, 0.87 and 0.89 cycles a cell in tiles of 16, 32, 64."""
    plan = "cpu/lanes(lane_block={}, vectorize=True, transpose=True)"
    found = [cycles("narrow", (128, 128), plan.format(width)) for width in (16, 32, 64)]
    assert max(found) < 1.25 * min(found)
    assert found[1] == pytest.approx(0.87, rel=0.2)


def test_maxima_of_integers_have_the_ports_of_floats():
    """6 rows of 2000 take 1.4 cycles a cell in vectors of 16 of 8 bytes; sums of them do not."""
    plan = "cpu/lanes(time_vector=16)"
    most, sums = (cycles(f, (6, 2000), plan, dtype="int64") for f in ("cummax", "cumsum"))
    assert most == pytest.approx(1.42, rel=0.2)
    assert sums < 0.8 * most


def test_rows_of_two_arrays_may_meet_in_a_set():
    """Sums of 16 rows of 512 KB took 1.2 or 20 cycles a cell, as the arrays began in a page."""
    plan = "cpu/lanes(lane_block={}, vectorize=True)"
    for width, meet in ((4, False), (8, True)):
        near, far = (
            work_of("cumsum", (16, length), plan.format(width), ZEN4, dtype="float64")
            for length in (1 << 16, (1 << 16) + 8)
        )
        bytes_of = [work.moved + work.scattered for work in (near, far)]
        assert (bytes_of[0] > 1.5 * bytes_of[1]) == meet


def test_tiles_wait_longer_for_memory():
    """96 rows of 60024 sums take one core 1.5 cycles a cell, in vectors of time 0.95."""
    tiles = "cpu/lanes(lane_block=16, vectorize=True, transpose=True, prefetch=1)"
    near, far = (
        work_of("cumsum", (96, length), tiles, ZEN4, dtype="float32") for length in (10000, 60024)
    )
    assert near.scattered < 0.01 * near.moved
    assert far.scattered / ZEN4.scattered_rate > 0.5 * far.moved / ZEN4.memory_rate


@pytest.mark.parametrize(("sizes", "ahead"), [((4096, 4096), 16), ((512, 512), 0)])
def test_strips_of_rows_beyond_the_caches_are_asked_for(sizes, ahead):
    """Sums of 4096 columns of 4096 steps take 3.0 ms so, and 4.3 if nobody asks."""
    target, machine = machine_of("znver4")
    func = Case("cumsum", sizes, {"dtype": "float32", "axis": 0}).func
    plan = decide(target, extract(func), machine).chosen.plan
    assert plan.vectorize and not plan.transpose and plan.prefetch == ahead


@pytest.mark.parametrize(("dtype", "measured"), [("int32", 1.3), ("int64", 4.0)])
def test_vectors_of_integers_have_no_maximum_before_sse4(dtype, measured):
    """64 rows of 84 steps: two threads take 1.1 cycles a cell one by one, in vectors of 4 2.0."""
    target = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"})
    chip = with_features(ZEN4, target)
    vectors, scalars = (
        work_of("cummax", (64, 84), f"cpu/lanes({plan})", chip, dtype=dtype).cycles / 64 / 84
        for plan in ("lane_block=4, vectorize=True", "lane_block=2")
    )
    assert vectors == pytest.approx(measured, rel=0.3)
    assert (vectors > scalars) == (dtype == "int64")


@pytest.mark.parametrize(
    ("sizes", "measured"),
    [
        ((81920, 16), {16: 182.9, 64: 130.2, 256: 82.3}),
        ((81922, 16), {16: 200.3, 64: 161.5, 256: 92.6}),
        ((82434, 16), {16: 120.0, 64: 86.0, 256: 81.7}),
        ((82048, 16), {16: 58.1, 64: 60.3, 256: 77.2}),
        ((2050, 256), {16: 64.6, 64: 52.8, 256: 29.3}),
        ((2176, 256), {16: 26.3, 64: 26.7, 256: 33.5}),
    ],
)
def test_loads_wait_for_stores_whose_addresses_are_alike_within_a_page(sizes, measured):
    """Sums down columns in strips, us on two cores: rows of whole pages, and of a little more."""
    found = extract(Case("cumsum", sizes, {"dtype": "float32", "axis": 0}).func)
    target, machine = machine_of("znver4")
    strips = {n: ScanPlan.parse(f"cpu/lanes(lane_block={n}, vectorize=True)") for n in measured}
    cost = {n: plan.cost(found, machine).seconds for n, plan in strips.items()}
    assert measured[min(cost, key=cost.__getitem__)] < 1.15 * min(measured.values())
    chosen = decide(target, found, machine).chosen.plan
    assert chosen.vectorize or min(measured, key=measured.__getitem__) == 16
    if measured[256] < measured[64]:
        assert cost[16] > cost[256] and chosen.lane_block >= 64


def test_lanes_one_by_one_are_strips_of_a_line():
    """Maxima of 8 rows of 32768 of 8 bytes: 50 us, in blocks of 8 50, of 256 34; of 33108 31.

    Where all arrays begin alike 63, 66 and 31; 25.
    """
    near, far = (
        cycles("cummax", (lanes, 8), "cpu/lanes()", dtype="int64", axis=0)
        for lanes in (32768, 33108)
    )
    assert near > 1.4 * far


def selective(lanes, layout="bld"):
    """Cycles of a step of a block of channels of a selective scan with 16 states."""
    plan = f"cpu/lanes(lane_block={lanes}, vectorize=True, ldexp=True)"
    work = work_of("selective_scan", (1, 256, 64, 16), plan, ZEN4, layout=layout)
    return (work.cycles + work.alone) / 256 / 64 * lanes


@pytest.mark.parametrize(("lanes", "measured"), [(4, 217), (8, 221), (16, 287), (32, 569)])
def test_halves_of_vectors_of_polynomials_take_three_quarters(lanes, measured):
    assert selective(lanes) == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(("lanes", "measured"), [(4, 230), (8, 245), (16, 331), (32, 651)])
def test_what_a_loop_over_states_does_not_move_is_read_once(lanes, measured):
    """Rows along time: four numbers of a lane and step, one of them for all of its 16 states."""
    assert selective(lanes, "bdl") == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_log1p_waits_for_less_than_it_takes(lanes):
    """1000 rows of 300 steps take 90 to 99 cycles a step of a block."""
    plan = f"cpu/lanes(lane_block={lanes}, vectorize=True, ldexp=True)"
    assert cycles("logsumexp", (1008, 300), plan) * lanes == pytest.approx(95, rel=0.35)


def test_a_last_cache_is_shared():
    """Sums down columns of 8, 12, 24, 32 MB: a core's time of a byte, over that of 8.

    Of 16 and 19 MB it was 1.2 at one time, and 1 an hour later.
    """
    measured = {12: 1.1, 24: 1.7, 32: 2.2}
    near = ZEN4.rate(8 << 20, 1)
    for mb, times in measured.items():
        assert near / ZEN4.rate(mb << 20, 1) == pytest.approx(times, rel=0.45)


def test_a_long_row_is_read_again_from_the_second_cache():
    """The loop down 12300 columns of 64 steps takes 101 us, down 1836 of 500 94."""
    short, long = (
        cycles("cumsum", sizes, dtype="float32", axis=0) for sizes in ((1836, 500), (12300, 64))
    )
    assert long > short + 0.1


@pytest.mark.parametrize(("runs", "measured"), [(False, 0.8), (True, 0.97)])
def test_shuffles_of_runs_of_eight_bytes_take_two_vectors(runs, measured):
    """Sums of 2048 integers by vectors of 32, but for memory."""
    plan = f"cpu/lanes(time_vector=32, time_runs={runs})"
    assert cycles("cumsum", (1, 2048), plan, dtype="int64") == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("length", "measured"), [(5, 0.91), (6, 0.92), (7, 1.4), (8, 2.8)])
def test_a_loop_that_goes_backwards_takes_short_rows_in_vectors(length, measured):
    rows = (6000 // length, length)
    each = cycles("cumsum", rows, dtype="float64", reverse=True)
    assert each == pytest.approx(measured, rel=0.45)


def test_logarithms_are_not_scaled():
    """Under AVX2 16384 rows of 128 steps take in tiles of 16 rows 2.1 ms, of 32 1.2 to 1.6.

    In those of 64 1.1 to 1.2.
    """
    target = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"})
    chip = with_features(ZEN4, target)
    machine = replace(Machine.of(target), cores=2, chip=chip)
    found = extract(Case("logsumexp", (16384, 128)).func)
    assert step_of(found).body.scales < step_of(found).body.calls
    assert decide(target, found, machine).chosen.plan.lane_block >= 32


def test_cores_that_go_side_by_side_through_a_row_may_meet():
    """32 columns of 8706 sums of 8 bytes: 30 or 125 us in blocks of 16, 30 to 47 in those of 8."""
    target, machine = machine_of("znver4")
    found = extract(Case("cumsum", (32, 8706), {"dtype": "float64", "axis": 0}).func)
    halves, quarters, eighths = (
        ScanPlan.parse(f"cpu/lanes(lane_block={n}, vectorize=True)").cost(found, machine).seconds
        for n in (16, 8, 4)
    )
    assert halves > 1.4 * quarters
    assert decide(target, found, machine).chosen.plan.lane_block == 8
    assert eighths > quarters


@pytest.mark.parametrize(
    ("family", "sizes"), [("restarts", (8, 1 << 20)), ("resets", (8, 1 << 19))]
)
def test_lines_of_several_arrays_meet_in_a_set(family, sizes):
    """Vectors of 4 rows, of which two arrays have room, take 4.3 and 4.0 ms; others 2.1 and 1.8."""
    plan = chosen(family, sizes)
    assert plan.time_vector or not plan.vectorize


@pytest.mark.parametrize(
    ("family", "sizes", "options"),
    [
        ("cumsum", (100, 80000), {"axis": 0}),  # the loop 1.9 ms, strips 5.6 to 8.5
        ("cumsum", (500, 40000), {"axis": 0}),  # 6.2 and 10.7 to 21
        ("cumsum", (1001, 20000), {"axis": 0}),  # 7.0 and 8.6 to 17
        ("cummax", (1111, 4444), {"axis": 0}),  # 1.35 and 1.38 to 1.8
    ],
)
def test_strips_that_begin_within_a_line_are_written_slowly(family, sizes, options):
    """Beyond the caches, where their rows do not begin at lines and none is stored past them."""
    assert str(chosen(family, sizes, dtype="float32", **options)) == LOOP


@pytest.mark.parametrize(("lanes", "steps"), [(512, 40000), (4096, 4096), (20000, 300)])
def test_strips_that_begin_at_lines_are_stored_past_the_caches(lanes, steps):
    """Of 128 lanes 3.1, 3.2 and 1.5 ms; of 64 4.0, 3.8 and 2.1."""
    plan = chosen("cumsum", (lanes, steps), dtype="float32", axis=0)
    assert plan.nontemporal and plan.prefetch and plan.lane_block >= 128


@pytest.mark.parametrize("sizes", [(3000, 3000), (1000, 20000)])
def test_rows_of_which_every_other_one_begins_at_a_line_are_stored_past_the_caches(sizes):
    """1.6 and 6.4 ms in strips of 64, 2.2 and 8.6 through the caches, 2.9 and 7.0 in the loop."""
    plan = chosen("cumsum", sizes, dtype="float32", axis=0)
    assert plan.nontemporal and plan.lane_block == 64


@pytest.mark.parametrize("steps", [19, 64])
def test_long_steps_ask_for_lines_of_the_next_ones(steps):
    """27594 channels of 64 steps in strips of 16: 10.8 ms if nobody asks, 5.4 else; of 64 5.2."""
    plan = chosen("selective_scan", (1, 27594, steps, 16), layout="bld")
    assert plan.prefetch == 2 and plan.lane_block >= 64
    near = chosen("selective_scan", (1, 300, 64, 16), layout="bld")
    assert not near.prefetch


def test_strips_of_a_line_come_one_by_one_from_a_part_of_the_last_cache():
    """6240 x 330 maxima of 8 bytes: 0.83 ms in strips of 8, 0.64 of 16, 0.51 of 32, 0.40 of 128."""
    assert chosen("cummax", (6240, 330), dtype="int64", axis=0).lane_block >= 32


def test_strips_that_fit_nearly_are_not_asked_for():
    """Sums of 3500 x 1100, 31 MB, take 0.7 ms if nobody asks, 1.3 else."""
    assert not chosen("cumsum", (3500, 1100), dtype="float32", axis=0).prefetch


@pytest.mark.parametrize(
    ("sizes", "measured"), [((366066, 20), 6.1e-3), ((177635, 37), 6.5e-3), ((2000, 300), 1.06e-3)]
)
def test_a_loop_down_one_column_after_another_reads_lines_one_by_one(sizes, measured):
    machine = machine_of("znver4")[1]
    loop = extract(Case("linear_recurrence", sizes, {"layout": "ld"}).func)
    predicted = ScanPlan.parse(LOOP).cost(loop, machine).seconds
    assert predicted == pytest.approx(measured, rel=0.4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [(1, 64, 256, 16), (1, 1536, 512, 16), (2, 1536, 512, 16)])
def test_selective_scans_take_tiles_of_16_rows(dtype, sizes):
    """Of 1536 x 512 1.8 ms in tiles of 16 rows, 2.05 of 32 and 1.8 to 1.9 of 64."""
    plan = chosen("selective_scan", sizes, dtype=dtype)
    assert plan.transpose and plan.lane_block in (16, 64)


def test_halves_that_all_lanes_read_are_converted_once():
    """A selective scan takes in bfloat16 as long as in float32, 39 us for 64 x 256."""
    plan = "cpu/lanes(lane_block=16, vectorize=True, transpose=True, prefetch=1, ldexp=True)"
    of_dtype = [
        work_of("selective_scan", (1, 64, 256, 16), plan, ZEN4, dtype=dtype).cycles
        for dtype in ("float32", "bfloat16")
    ]
    assert of_dtype[1] < 1.2 * of_dtype[0]


@pytest.mark.parametrize(
    ("sizes", "measured"),
    [((3, 4095), 7.6), ((3, 2002), 6.1), ((3, 402), 5.3), ((3, 1001), 4.2), ((8, 401), 4.0)],
)
def test_a_loop_down_few_columns_keeps_its_carries_for_as_many_steps_as_divide(sizes, measured):
    """All steps but the first one: of 4094 two, of 2001 three, of 401 none, then four."""
    step = cycles("cumsum", sizes, dtype="float32", axis=0) * sizes[0]
    assert step == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(
    ("family", "lanes", "measured"),
    [("cumsum", 3, 2.4), ("cumsum", 8, 2.9), ("linear_recurrence", 3, 3.5)],
)
def test_vectors_of_time_gather_and_scatter_cells_of_columns(family, lanes, measured):
    """Vectors of 8 steps of 3 and 8 columns, on each core 2 and 4 of them."""
    options = {"layout": "ld"} if family != "cumsum" else {"axis": 0, "dtype": "float32"}
    each = cycles(family, (lanes, 9000), "cpu/lanes(time_vector=8)", **options)
    assert each == pytest.approx(measured, rel=0.35)


@pytest.mark.parametrize(
    ("family", "steps", "measured"),
    [
        ("ema", 33868, {4: 26.8, 8: 27.6, 16: 30.6, 32: 32.2}),
        ("linear_recurrence", 20000, {4: 17.5, 8: 20.4, 16: 24.4, 32: 29.7}),
    ],
)
def test_longer_vectors_of_cells_of_columns_take_longer(family, steps, measured):
    """Two columns, a core for each, us."""
    for width, time in measured.items():
        plan = f"cpu/lanes(time_vector={width})"
        predicted = seconds_on(2, family, (2, steps), plan, layout="ld")
        assert 1e6 * predicted == pytest.approx(time, rel=0.25)


@pytest.mark.parametrize(
    ("family", "near", "far", "times"),
    [
        ("cumsum", (16, 32768), (16, 32784), 1.2),  # 104 and 88 us
        ("clamped", (128, 16384), (128, 16400), 1.1),  # 260 to 330 and 255 to 360
        ("restarts", (32, 16384), (32, 16400), 1.3),  # 91 and 68
        ("linear_recurrence", (64, 4096), (64, 4112), 1.5),  # 59 and 40
        ("resets", (128, 2048), (128, 2064), 2.5),  # 143 and 56
        ("resets", (64, 2048), (64, 2064), 2.5),  # 73 and 29
        ("restarts", (1024, 16384), (1024, 16400), 1.0),  # from memory
    ],
)
def test_tiles_of_rows_of_whole_pages_wait_for_lines(family, near, far, times):
    plan = "cpu/lanes(lane_block=16, vectorize=True, transpose=True, prefetch=1)"
    each = [cycles(family, sizes, plan) for sizes in (near, far)]
    assert each[0] / each[1] == pytest.approx(times, rel=0.35)


@pytest.mark.parametrize(
    ("sizes", "far", "measured"),
    [((16, 65536), (16, 65552), {4: 621, 64: 400}), ((64, 4096), (64, 4112), {4: 158, 64: 100})],
)
def test_rows_of_arrays_that_may_begin_alike_meet(sizes, far, measured):
    """Resets of rows of whole pages, us, the mean of arrays that begin alike and of others."""
    vectors, of_time = "lane_block=4, vectorize=True", "time_vector=64, time_runs=True"
    for plan, time in ((vectors, measured[4]), (of_time, measured[64])):
        predicted = seconds_on(2, "resets", sizes, f"cpu/lanes({plan})")
        assert 1e6 * predicted == pytest.approx(time, rel=0.2)
    assert str(chosen("resets", sizes)) != f"cpu/lanes({vectors})"
    apart = seconds_on(2, "resets", far, f"cpu/lanes({vectors})")
    assert apart < 0.6 * seconds_on(2, "resets", sizes, f"cpu/lanes({vectors})")


def test_rows_whose_lines_are_written_both_ways_are_written_through_the_caches():
    """Maxima of rows of 104 bytes, 48 MB: 1.3 ms past the caches, 0.9 through them."""
    assert not chosen("cummax", (231853, 26), dtype="float32").nontemporal


@pytest.mark.parametrize(
    ("family", "sizes", "dtype"),
    [
        ("cumsum", (6839, 90), "float64"),  # 100 us, in vectors of time 128
        ("cummax", (5284, 117), "int64"),  # 101 and 112
        ("cumprod", (5422, 122), "float64"),  # 136 and 145
    ],
)
def test_rows_are_followed_within_a_part_of_the_last_cache(family, sizes, dtype):
    """Of 10 MB few come from memory: several rows at a time take less than one after another."""
    assert not chosen(family, sizes, dtype=dtype).time_vector


def test_rows_a_little_beyond_the_caches_lose_little():
    """Linear recurrences of 11204 rows of 99 steps, 13 MB, 260 and 268 us in vectors of 16, 32."""
    for width, measured in ((16, 259), (32, 268)):
        plan = f"cpu/lanes(lane_block={width}, vectorize=True)"
        found = seconds_on(2, "linear_recurrence", (11204, 99), plan, layout="bdl", batch=1)
        assert found * 1e6 == pytest.approx(measured, rel=0.5)


def test_scalar_maxima_of_integers_are_compared_and_moved_before_sse4():
    """10 rows of 605: 3.4 us in the loop of the x86-64 baseline, 2.5 with AVX-512."""
    baseline = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"})
    each = [
        work_of("cummax", (10, 605), LOOP, chip, dtype="int32").cycles / 6050
        for chip in (ZEN4, with_features(ZEN4, baseline))
    ]
    assert each[0] == pytest.approx(1.4, rel=0.2) and each[1] == pytest.approx(2.0, rel=0.2)


@pytest.mark.parametrize("steps", [8000, 16384])
def test_short_strips_are_stored_past_the_caches_from_a_part_of_the_last_one(steps):
    """128 columns of 8000 and 16384 steps: 0.16 and 0.43 ms, through the caches 0.22 and 0.92."""
    times = [
        seconds_on(
            2, "linear_recurrence", (128, steps), f"cpu/lanes({plan})", layout="bld", batch=1
        )
        for plan in (
            "lane_block=64, vectorize=True, nontemporal=True",
            "lane_block=64, vectorize=True",
        )
    ]
    assert times[1] / times[0] == pytest.approx({8000: 1.0, 16384: 1.4}[steps], rel=0.45)


def test_chunks_side_by_side_wait_for_stores_that_go_backwards():
    """Sums of 477485 numbers of 8 bytes by 8 chunks: 265 us backwards, 110 forwards."""
    plan = "cpu/three_phase(lane_block=8, chunks=16)"
    back, on = (
        seconds_on(2, "cumsum", (1, 477485), plan, dtype="float64", axis=0, reverse=reverse)
        for reverse in (True, False)
    )
    assert back / on == pytest.approx(2.4, rel=0.25)
    assert chosen("cumsum", (1, 477485), dtype="float64", axis=0, reverse=True).time_vector


@pytest.mark.parametrize(
    ("sizes", "measured"), [((100, 4566), 42.3), ((100, 7521), 69.3), ((64, 4044), 22.1)]
)
def test_a_loop_down_short_rows_takes_as_long_as_its_memory(sizes, measured):
    """Sums of columns: cells are read and written in order; in strips on two cores 48 and 82 us."""
    found = seconds_on(2, "cumsum", sizes, LOOP, dtype="float32", axis=0) * 1e6
    assert found == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(("lanes", "steps"), [(3244, 38), (2184, 33)])
def test_two_cores_share_what_their_caches_hold(lanes, steps):
    """Averages down columns: 6.3 us in strips, the loop 15; 3.7 and 6.1."""
    assert chosen("ema", (lanes, steps), layout="ld").vectorize


@pytest.mark.parametrize(
    ("sizes", "measured"), [((32, 2048), 1.27), ((4, 293900), 2.4), ((512, 4096), 2.3)]
)
def test_a_processor_learns_where_it_guesses_wrong_of_few_integers(sizes, measured):
    """Cycles of a maximum of integers in the loop."""
    assert cycles("cummax", sizes, dtype="int64") == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(("steps", "lanes"), [(67584, 8), (67585, 8), (67586, 4)])
def test_rows_a_few_bytes_from_whole_pages_meet_in_a_set(steps, lanes):
    """6.1, 6.0 and 4.2 ms in vectors of 4 lanes, 2.8, 3.0 and 3.0 by 4 lanes in turns."""
    options = {"layout": "bdl", "dtype": "float64", "batch": 8}
    plan = f"cpu/lanes(lane_block={lanes}, vectorize=True)"
    near, far = (
        seconds_on(2, "linear_recurrence", (8, n), plan, **options) for n in (steps, 67600)
    )
    assert near > {8: 2.0, 4: 1.05}[lanes] * far
    default = chosen("linear_recurrence", (8, steps), **options)
    assert default.time_vector or not default.vectorize


@pytest.mark.parametrize(
    ("family", "sizes", "plan", "measured"),
    [
        ("cumsum", (31, 5000), "lane_block=16, vectorize=True", 25.2),
        ("cumsum", (31, 5000), "lane_block=16, vectorize=True, transpose=True, prefetch=1", 24.3),
        ("cumsum", (31, 5000), "lane_block=4", 23.5),
        ("cumsum", (7, 5000), "lane_block=8, vectorize=True", 10.1),
        ("cumsum", (55, 5000), "lane_block=16, vectorize=True", 49.0),
        ("cumsum", (14, 226), "lane_block=16, vectorize=True", 1.1),
        ("cumsum", (17, 277), "lane_block=32, vectorize=True", 1.6),
        ("cumsum", (27, 277), "lane_block=32, vectorize=True", 2.5),
        ("cumprod", (232, 20), "lane_block=128, vectorize=True, transpose=True, prefetch=1", 1.8),
        ("selective_scan", (1, 15, 1000, 16), "lane_block=16, vectorize=True, ldexp=True", 122),
        ("selective_scan", (1, 31, 1000, 16), "lane_block=32, vectorize=True, ldexp=True", 185),
        ("selective_scan", (1, 59, 1000, 16), "lane_block=64, vectorize=True, ldexp=True", 353),
    ],
)
def test_lanes_beyond_full_blocks_are_one_task_more(family, sizes, plan, measured):
    """One vector of them each, of any number of lanes."""
    options = {"layout": "bld"} if family == "selective_scan" else {}
    predicted = 1e6 * seconds_on(2, family, sizes, f"cpu/lanes({plan})", **options)
    assert predicted == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize(
    ("lanes", "strip", "measured"),
    [(1276, 640, 164), (1276, 512, 168), (1276, 128, 152), (1100, 64, 70)],
)
def test_a_narrow_last_strip_is_side_by_side_with_the_others(lanes, strip, measured):
    """Sums of 1276 columns of 1540 steps, of 1100 of 1000; 310 us one after another."""
    steps = 1000 if lanes == 1100 else 1540
    plan = f"cpu/lanes(lane_block={strip}, vectorize=True)"
    predicted = 1e6 * seconds_on(2, "cumsum", (lanes, steps), plan, axis=0, dtype="float32")
    assert predicted == pytest.approx(measured, rel=0.35)


def test_one_block_of_all_lanes_needs_no_pool():
    """Sums of 3 rows of 402 steps: 0.5 us in turns on one core, 1.3 in two tasks, the loop 1.1."""
    assert 1e6 * seconds_on(2, "cumsum", (3, 402), "cpu/lanes(lane_block=4)") < 0.6
    assert chosen("cumsum", (3, 402)).lane_block == 4


@pytest.mark.parametrize(
    ("columns", "steps", "dtype"),
    [
        (128, 400, "float32"),  # two strips 4.6 or 14.5 us, whole rows 3.9
        (128, 1500, "float32"),  # 26 or 33, and 17
        (64, 3000, "float32"),  # 25 or 81, and 17
        (256, 750, "float32"),  # 9.3 or 27, four strips 9.1 or 19
        (32, 1600, "float32"),  # 3.7 or 7.1, whole rows 4.2
        (16, 1648, "float64"),  # 3.9 or 7.9, and 4.0
    ],
)
def test_two_strips_side_by_side_are_no_default(columns, steps, dtype):
    """As the host has placed the cores, each takes the other's lines, or hardly does."""
    plan = chosen("cumsum", (columns, steps), axis=0, dtype=dtype)
    assert plan.keeps_loop or plan.lane_block >= columns or plan.lane_block <= columns // 4


@pytest.mark.parametrize(("rows", "steps"), [(512, 8), (450, 8), (256, 16)])
def test_one_block_of_all_lanes_leaves_the_nearest_cache(rows, steps):
    """2.7, 1.9 and 3.1 us, lane by lane on two cores 2.1, 2.2 and 2.5; of 400 x 8 1.5 and 2.0."""
    assert not chosen("cumsum", (rows, steps)).lane_block >= rows


def test_one_block_in_tiles_needs_no_pool_for_more_than_the_nearest_cache_holds():
    """Linear recurrences of 128 x 32, 49 KB: 1.6 us; tasks of 16 rows 1.4 or 2.3, the loop 2.1."""
    plan = chosen("linear_recurrence", (128, 32), layout="bdl", batch=1)
    assert plan.transpose and plan.lane_block == 128
    # Of more the tile alone fills it: sums of 512 rows of 40 numbers of 8 bytes 6.2 us, by 16 4.4.
    assert chosen("cumsum", (512, 40), dtype="float64").lane_block == 16


@pytest.mark.parametrize(
    ("family", "lanes", "vectors"),
    [
        ("cumsum", 3, [(1, 3)]),
        ("cumsum", 8, [(1, 8)]),
        ("cumsum", 15, [(1, 8), (1, 4), (1, 3)]),
        ("cumsum", 16, [(1, 16)]),
        ("resets", 12, [(1, 8), (1, 4)]),
        ("cumsum", 91, [(2, 32), (1, 16), (1, 8), (1, 3)]),
        ("logsumexp", 91, [(2, 32), (1, 16), (1, 11)]),
        ("selective_scan", 91, [(2, 32), (1, 27)]),
    ],
)
def test_lanes_are_vectors_that_processors_have(family, lanes, vectors):
    """Of another length LLVM puts them together in memory: up to twice the time without AVX."""
    sizes = (1, lanes, 40, 4) if family == "selective_scan" else (lanes, 40)
    assert lane_vectors(step_of(extract(Case(family, sizes, {}).func)), lanes) == vectors


@pytest.mark.parametrize(
    ("family", "options", "plan", "instructions", "measured"),
    [
        ("clamped", {}, "three_phase(lane_block=8, chunks=16)", None, 48.5),
        ("resets", {}, "three_phase(lane_block=8, chunks=16)", None, 43.3),
        ("resets", {}, "three_phase(lane_block=2, chunks=16)", "x86-64-v3", 54.9),
        ("order 2", {}, "three_phase(chunks=2, time_vector=16)", None, 16.8),
        ("clamped", {}, "lanes(time_vector=16)", "x86-64", 78.1),
        ("clamped", {}, "three_phase(chunks=2, time_vector=16, time_runs=True)", "x86-64", 41.0),
        ("clamped", {}, "lanes(time_vector=16)", "x86-64-v3", 51.9),
        ("resets", {}, "lanes(time_vector=16)", "x86-64", 83.8),
        ("resets", {}, "lanes(time_vector=16)", "x86-64-v3", 52.9),
        ("affine integers", {}, "lanes(time_vector=16)", "x86-64", 42.2),
        ("linear_recurrence", {"dtype": "float64"}, "lanes(time_vector=16)", "x86-64", 36.0),
        ("linear_recurrence", {"dtype": "float64"}, "lanes(time_vector=32)", "x86-64", 52.6),
        ("linear_recurrence", {"dtype": "float64"}, "lanes(time_vector=32)", "x86-64-v3", 25.7),
    ],
)
def test_one_row_in_shorter_vectors(family, options, plan, instructions, measured):
    """30000 steps; chunks by two threads that wake quickly or slowly."""
    seconds = seconds_on(2, family, (1, 30000), f"cpu/{plan}", instructions, **options)
    assert 1e6 * seconds == pytest.approx(measured, rel=0.35)


@pytest.mark.parametrize("steps", [30000, 181520])
def test_chunks_of_elements_of_many_parts_are_no_scalars(steps):
    """Clamped sums without AVX 75 and 428 us, in vectors of time 41 and 326, the loop 57, 345."""
    for instructions in ("x86-64", "x86-64-v3", "znver4"):
        target, machine = machine_of("znver4", instructions=instructions)
        func = Case("clamped", (1, steps), {}).func
        assert decide(target, extract(func), machine).chosen.plan.time_vector


@pytest.mark.parametrize(
    ("sizes", "plan", "measured"),
    [
        ((1024, 8), "lanes()", 25.1),
        ((1024, 8), "lanes(lane_block=16, vectorize=True)", 18.1),
        ((64, 30), "lanes(lane_block=2)", 8.8),
        ((21, 248), "lanes(lane_block=8, vectorize=True)", 15.4),
        ((21, 248), "lanes(time_vector=8)", 13.5),
    ],
)
def test_halves_without_an_instruction_are_many(sizes, plan, measured):
    """Ten times the time that they take with one, less in vectors than one by one."""
    seconds = seconds_on(2, "narrow", sizes, f"cpu/{plan}", "x86-64")
    assert 1e6 * seconds == pytest.approx(measured, rel=0.35)
    assert seconds > 3 * seconds_on(2, "narrow", sizes, f"cpu/{plan}", "x86-64-v3")


@pytest.mark.parametrize(
    ("sizes", "measured"),
    [
        ((1, 1000), {"lanes()": 8.0, "lanes(time_vector=16)": 4.1}),
        ((1, 3002), {"lanes()": 23.7, "lanes(time_vector=16)": 12.3}),
        ((1, 30000), {"lanes()": 351, "lanes(time_vector=16)": 202}),
        (
            (64, 1000),
            {
                "lanes()": 372,
                "lanes(lane_block=4, vectorize=True)": 272,
                "lanes(lane_block=16, vectorize=True)": 212,
                "lanes(lane_block=16, vectorize=True, transpose=True)": 178,
            },
        ),
    ],
)
def test_calls_for_halves_wait_where_a_carry_does(sizes, measured):
    """What many calls choose is not learnt, and each takes half as long again."""
    for plan, us in measured.items():
        seconds = seconds_on(2, "narrow", sizes, f"cpu/{plan}", "x86-64")
        assert 1e6 * seconds == pytest.approx(us, rel=0.2), plan


@pytest.mark.parametrize("steps", [63, 64, 72])
def test_short_rows_beyond_the_caches_are_in_no_tiles(steps):
    """14 MB of rows of 252 to 288 bytes take in tiles up to twice as long as in vectors of time."""
    rows = int(14e6 / 8 / steps)
    for instructions in ("haswell", None):
        target, machine = machine_of("znver4", instructions=instructions)
        found = extract(Case("cumsum", (rows, steps), {"dtype": "float32"}).func)
        assert not getattr(decide(target, found, machine).chosen.plan, "transpose", False)


@pytest.mark.parametrize(
    ("sizes", "measured"),
    [((2, 1048576), 900), ((2, 4000000), 3550), ((4, 700000), 1612), ((12, 250000), 5483)],
)
def test_few_columns_beyond_the_caches_do_not_meet(sizes, measured):
    """By vectors of 16 steps; one core is some lines before the other."""
    plan = "cpu/lanes(time_vector=16)"
    seconds = seconds_on(2, "ema", sizes, plan, layout="ld")
    assert 1e6 * seconds == pytest.approx(measured, rel=0.4)


@pytest.mark.parametrize(
    ("family", "rows", "lanes", "vectors"),
    [("ema", 400000, 725, 402), ("cummax", 400000, 681, 361), ("cumsum", 400000, 248, 332)],
)
def test_rows_of_eight_steps_beyond_the_caches_are_dealt_out_slowly(family, rows, lanes, vectors):
    """But for sums, of which LLVM deals out two lines at a time."""
    times = [
        seconds_on(2, family, (rows, 8), f"cpu/lanes({plan})", dtype="float32")
        for plan in ("", "lane_block=8, vectorize=True")
    ]
    assert (times[0] < times[1]) == (lanes < vectors)


@pytest.mark.parametrize(
    ("plan", "measured"),
    [
        ("lanes()", {4232: 4.2, 4233: 7.4, 4234: 7.5, 4235: 4.0, 4236: 4.6, 8193: 14.0}),
        ("sequential()", {4233: 4.0, 4234: 6.3, 4235: 7.3, 4236: 4.9, 3002: 3.0, 8193: 7.0}),
    ],
)
def test_maxima_of_integers_are_moved_where_few_steps_are_written_out(plan, measured):
    """Three rows on one core, of 8 bytes; the loop's first step is apart."""
    for steps, us in measured.items():
        seconds = seconds_on(1, "cummax", (3, steps), f"cpu/{plan}", dtype="int64")
        assert 1e6 * seconds == pytest.approx(us, rel=0.3), steps


def test_small_rows_that_may_begin_alike_are_in_no_long_vectors():
    """Resets of 8 x 512 in vectors of 8 lanes 2.5 us, or 11.6 where all arrays begin alike."""
    eight, apart = (
        seconds_on(2, "resets", (8, steps), "cpu/lanes(lane_block=8, vectorize=True)")
        for steps in (512, 500)
    )
    assert 1e6 * eight == pytest.approx(7.2, rel=0.35)
    assert 1e6 * apart == pytest.approx(2.4, rel=0.2)
    assert chosen("resets", (8, 512)).lane_block < 8
    assert chosen("logsumexp", (32, 4096)).transpose


@pytest.mark.parametrize(("dtype", "steps"), [("float32", 10510), ("float64", 3815)])
def test_two_strips_that_begin_within_a_line_both_write_it(dtype, steps):
    """100 columns in strips of 64 take 98 or 839 us (doubles 64 or 201), in whole rows 95 (66)."""
    halves, whole = (
        seconds_on(2, "cumsum", (100, steps), plan, axis=0, dtype=dtype)
        for plan in (f"cpu/lanes(lane_block={width}, vectorize=True)" for width in (64, 128))
    )
    assert halves > whole


@pytest.mark.parametrize(
    ("steps", "tiles", "vectors"), [(8000, 109, 108), (11000, 175, 157), (6678, 540, 306)]
)
def test_tiles_of_three_arrays_wait_for_a_cache_that_others_use(steps, tiles, vectors):
    """Linear recurrences of 96 rows, and backwards of 209 under AVX2."""
    rows, backwards = (209, True) if steps == 6678 else (96, False)
    instructions = "haswell" if backwards else None
    plans = {
        "lanes(lane_block=16, vectorize=True, transpose=True, prefetch=1)": tiles,
        f"lanes(time_vector={32 if backwards else 64}, time_runs=True)": vectors,
    }
    for plan, us in plans.items():
        predicted = seconds_on(
            2, "linear_recurrence", (rows, steps), f"cpu/{plan}", instructions, reverse=backwards
        )
        assert 0.6 * us < 1e6 * predicted < 1.25 * us, plan


@pytest.mark.parametrize(
    ("family", "sizes", "options", "measured"),
    [
        (
            "linear_recurrence",
            (1024, 2048),
            {"layout": "bld", "batch": 8},
            {64: 4.3, 128: 4.3, 256: 5.8, 512: 6.7, 1024: 6.5},
        ),
        (
            "cumsum",
            (4096, 4096),
            {"axis": 0, "dtype": "float32"},
            {64: 2.8, 128: 2.75, 256: 3.4, 512: 3.7, 1024: 4.1},
        ),
    ],
)
def test_long_strips_past_the_caches_come_late(family, sizes, options, measured):
    """Asked for 16 steps ahead; those of 64 and 128 lanes are the quickest."""
    for width, ms in measured.items():
        plan = f"cpu/lanes(lane_block={width}, vectorize=True, prefetch=16, nontemporal=True)"
        assert 1e3 * seconds_on(2, family, sizes, plan, **options) == pytest.approx(ms, rel=0.35)
    assert chosen(family, sizes, **options).lane_block in (64, 128)


def test_a_product_waits_for_no_sum():
    """Without FMA a sum of a product takes both, products alone as long as with it."""
    for family, times in (("cumprod", 1.0), ("linear_recurrence", 1.3)):
        without, fused = (
            seconds_on(1, family, (1, 20000), LOOP, instructions)
            for instructions in ("x86-64", "x86-64-v3")
        )
        assert without == pytest.approx(times * fused, rel=0.2)


def test_short_rows_in_blocks_wait_for_ports_of_floats():
    """Clamped sums of 14 steps take 1.55 cycles a step in blocks of 16, sums of as many 1.0."""
    plan = "cpu/lanes(lane_block=16)"
    assert cycles("clamped", (2000, 14), plan) == pytest.approx(1.55, rel=0.2)
    assert cycles("cumsum", (2000, 14), plan) == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize(("lanes", "steps", "batch"), [(16, 16, 8), (32, 8, 8)])
def test_little_work_stays_in_the_loop(lanes, steps, batch):
    """0.33 and 0.35 us on one core, in blocks 0.38 and 0.39."""
    target, machine = machine_of("znver4", cores=1)
    func = Case("linear_recurrence", (lanes, steps), {"layout": "bld", "batch": batch}).func
    assert decide(target, extract(func), machine).chosen.plan.keeps_loop


@pytest.mark.parametrize(("columns", "steps", "plain", "block"), [(6, 29426, 31.9, 18.9)])
def test_few_cells_of_a_line_are_read_two_at_a_time(columns, steps, plain, block):
    """Maxima down 6 columns in vectors of 4 and 2."""
    plan = "cpu/lanes(lane_block=8, vectorize=True)"
    for text, measured in ((LOOP, plain), (plan, block)):
        seconds = seconds_on(2, "cummax", (columns, steps), text, axis=0, reverse=True)
        assert 1e6 * seconds == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(
    ("columns", "steps", "strip", "least", "most"),
    [(145, 940, 64, 26.5, 138.4), (145, 300, 64, 12.0, 36.9), (145, 940, 32, 10.4, 23.5)],
)
def test_strips_that_begin_within_a_line_write_one_line(columns, steps, strip, least, most):
    """Sums down columns, us as the host has placed the cores; in whole rows 14.5 and 4.4."""
    plan = f"cpu/lanes(lane_block={strip}, vectorize=True)"
    predicted = 1e6 * seconds_on(2, "cumsum", (columns, steps), plan, axis=0, dtype="float32")
    assert 0.8 * least < predicted < most
    assert chosen("ema", (columns, steps), layout="ld").lane_block != 64


@pytest.mark.parametrize(
    ("columns", "steps", "strip", "least", "most"),
    [
        (202, 800, 32, 11.6, 21.8),
        (205, 200, 16, 5.7, 9.4),
        (205, 1600, 32, 24.3, 49.2),
        (300, 800, 32, 25.1, 27.2),
        (450, 800, 16, 36.0, 41.3),
    ],
)
def test_a_line_in_which_one_core_ends_and_another_begins(columns, steps, strip, least, most):
    """Sums down columns of rows that begin within a line, us as the host has placed the cores."""
    plan = f"cpu/lanes(lane_block={strip}, vectorize=True)"
    predicted = partial(seconds_on, 2, "cumsum", plan=plan, axis=0, dtype="float32")
    seconds = predicted((columns, steps))
    assert 0.8e-6 * least < seconds < 1.2e-6 * most
    # Of whole lines each core has its own.
    assert seconds > predicted((-(-columns // 16) * 16, steps))
    assert str(chosen("cumsum", (205, 200), axis=0, dtype="float32")) == LOOP


@pytest.mark.parametrize(
    ("family", "steps", "block", "options", "measured"),
    [
        ("cumsum", 12, 4, {"dtype": "float32"}, 11.2),
        ("cumsum", 12, 8, {"dtype": "float32"}, 11.3),
        ("cumsum", 31, 4, {"dtype": "float32"}, 28.5),
        ("cumsum", 20, 4, {"dtype": "float64"}, 23.2),
        ("cumsum", 16, 4, {"dtype": "int32", "reverse": True}, 14.0),
        ("ema", 16, 8, {}, 16.7),
        ("linear_recurrence", 12, 8, {"reverse": True}, 17.0),
    ],
)
@pytest.mark.parametrize("instructions", [None, "haswell", "x86-64"])
def test_blocks_of_short_rows_are_written_out(
    family, steps, block, options, measured, instructions
):
    """Of 8000 rows, us; before, sums of 12 and 31 steps took 17 and 37."""
    plan = f"cpu/lanes(lane_block={block}, vectorize=True)"
    predicted = seconds_on(2, family, (8000, steps), plan, instructions, **options)
    assert 1e6 * predicted == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(
    ("sizes", "block", "measured"),
    [((1, 4, 2048, 16), 4, 236), ((4, 5958, 22, 16), 8, 6437), ((4, 5958, 22, 16), 32, 4708)],
)
def test_polynomials_of_a_state_fill_the_scheduler_without_avx(sizes, block, measured):
    """Selective scans, us: those of few vectors wait for one another's."""
    plan = f"cpu/lanes(lane_block={block}, vectorize=True)"
    predicted = seconds_on(2, "selective_scan", sizes, plan, "x86-64", layout="bdl")
    assert 1e6 * predicted == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    ("states", "block", "measured"),
    [(16, 256, 1318), (16, 1024, 2811), (16, 2048, 2400), (8, 512, 390), (8, 1024, 679)],
)
def test_states_whose_cells_lie_pages_apart_come_from_the_second_cache(states, block, measured):
    """Selective scans of 4 x 2048 and 2 x 2048 channels of 64 steps, us."""
    sizes = (4 if states == 16 else 2, 2048, 64, states)
    plan = f"cpu/lanes(lane_block={block}, vectorize=True, ldexp=True)"
    predicted = seconds_on(2, "selective_scan", sizes, plan, layout="bld")
    assert 1e6 * predicted == pytest.approx(measured, rel=0.25)
    assert chosen("selective_scan", sizes, layout="bld").lane_block <= 512


@pytest.mark.parametrize(
    ("family", "measured"),
    [
        ("cumsum", {4: 8.1, 5: 10.7, 6: 12.7, 7: 21.6, 8: 19.3}),
        ("ema", {4: 8.6, 5: 13.2, 6: 17.2, 7: 24.8, 8: 30.2}),
        ("linear_recurrence", {4: 9.1, 5: 17.1, 6: 19.2, 7: 28.4, 8: 30.2}),
        ("order 2", {6: 19.2, 7: 26.7, 8: 32.5}),
        ("clamped", {4: 11.8, 6: 20.3, 8: 32.6}),
    ],
)
def test_an_even_number_of_steps_is_dealt_out_by_fewer_shuffles(family, measured):
    """30000 rows in vectors of rows on two cores, us."""
    options = {"dtype": "float32"} if family == "cumsum" else {}
    for steps, time in measured.items():
        predicted = seconds_on(2, family, (30000, steps), "cpu/lanes()", **options)
        assert 1e6 * predicted == pytest.approx(time, rel=0.36)


@pytest.mark.parametrize(
    ("family", "options", "longest", "gathered", "plain"),
    [
        ("cumsum", {"dtype": "float32", "reverse": True}, 24, 2.9, 1.1),
        ("linear_recurrence", {}, 27, 5.4, 1.4),
        ("linear_recurrence", {"reverse": True}, 22, 4.2, 1.4),
        ("ema", {}, 27, 4.2, 3.1),
    ],
)
def test_llvm_gathers_rows_until_it_writes_out_no_more(family, options, longest, gathered, plain):
    """Cycles of a cell of 1000 rows of so many steps, and of one step more."""
    for steps, measured in ((longest, gathered), (longest + 1, plain)):
        assert cycles(family, (1000, steps), **options) == pytest.approx(measured, rel=0.4)


@pytest.mark.parametrize(
    ("columns", "dtype", "measured"),
    [
        (262144, "float32", {16: 217, 32: 190, 64: 160, 128: 285, 256: 313}),
        (262144, "int64", {8: 690, 16: 740, 32: 690, 64: 1140, 128: 1050}),  # 32 past caches 600
        (131072, "int64", {8: 215, 16: 193, 32: 191, 64: 350, 128: 310}),
        (131088, "int64", {16: 150, 32: 154, 64: 330, 128: 345}),
        (65536, "float32", {16: 50, 64: 37, 256: 33}),
    ],
)
def test_long_strips_of_few_rows_overrun(columns, dtype, measured):
    """Sums of 8 rows, us; of what the private caches hold long strips take no longer."""
    for block, time in measured.items():
        plan = f"cpu/lanes(lane_block={block}, vectorize=True)"
        predicted = seconds_on(2, "cumsum", (columns, 8), plan, axis=0, dtype=dtype)
        assert 1e6 * predicted == pytest.approx(time, rel=0.45)
    plan = chosen("cumsum", (columns, 8), axis=0, dtype=dtype)
    assert measured[plan.lane_block] <= 1.1 * min(measured.values())


@pytest.mark.parametrize(
    ("family", "dtype", "instructions", "measured"),
    [
        ("cumsum", "float64", None, 19.4),
        ("cumsum", "float64", "haswell", 20.5),
        ("cumsum", "float64", "x86-64", 28.2),
        ("cumsum", "float32", "haswell", 17.0),
        ("cumsum", "float32", "x86-64", 23.5),
        ("cummax", "int64", "haswell", 24.7),
        ("linear_recurrence", "float64", "haswell", 38.8),
    ],
)
def test_squares_of_shorter_vectors(family, dtype, instructions, measured):
    """1000 rows of 144 steps in tiles of 16, us: fewer levels of shuffles, and more ports."""
    plan = "cpu/lanes(lane_block=16, vectorize=True, transpose=True, prefetch=1)"
    predicted = seconds_on(2, family, (1000, 144), plan, instructions, dtype=dtype)
    assert 1e6 * predicted == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize(
    ("family", "measured"), [("cumsum", 12.7), ("ema", 17.7), ("clamped", 18.9), ("order 2", 21.2)]
)
def test_a_long_chain_shows_beside_the_squares_of_a_tile(family, measured):
    """512 rows of 288 steps, us."""
    plan = "cpu/lanes(lane_block=16, vectorize=True, transpose=True, prefetch=1)"
    options = {"dtype": "float32"} if family == "cumsum" else {}
    seconds = seconds_on(2, family, (512, 288), plan, **options)
    assert 1e6 * seconds == pytest.approx(measured, rel=0.2)
