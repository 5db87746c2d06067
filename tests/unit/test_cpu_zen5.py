"""What a Zen 5 does otherwise than a Zen 4, as its constants say it: plans that were measured."""

from dataclasses import replace

import pytest
from tvm.target import Target

from bench.regret_cases import Case
from tvm_scan import extract
from tvm_scan.schedules.choose.default import decide
from tvm_scan.schedules.cpu.cost.step import step_of
from tvm_scan.schedules.machine import cpu_constants
from tvm_scan.schedules.machine.cpu_constants import with_features
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan


def machine_of(kind):
    """A machine of two cores by the constants that are shipped, and its target."""
    target = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": kind})
    chip = with_features(cpu_constants._shipped(kind), target)
    return target, replace(Machine.of(target), cores=2, chip=chip)


def chosen(kind, family, sizes, **options):
    target, machine = machine_of(kind)
    return decide(target, extract(Case(family, sizes, options).func), machine).chosen.plan


def work_of(kind, plan, family, sizes, **options):
    step = step_of(extract(Case(family, sizes, options).func))
    return ScanPlan.parse(plan).work(step, machine_of(kind)[1].chip)


@pytest.mark.parametrize("sizes", [(32, 3854), (100, 1809)])
def test_squares_of_whole_vectors_are_cheap(sizes):
    """Filters in vectors of 8 lanes took 1.3 to 1.5 times as long as in transposed tiles."""
    assert chosen("znver5", "order 2", sizes).transpose
    plan = "cpu/lanes(lane_block=16, vectorize=True, transpose=True)"
    old, new = (work_of(kind, plan, "order 2", sizes).cycles for kind in ("znver4", "znver5"))
    assert new < 0.6 * old


def test_nothing_is_lost_around_short_rows():
    """Sums of 12 steps in blocks of four took 0.71 cycles a cell, of 100 steps 0.68."""
    plan = "cpu/lanes(lane_block=4)"
    short, long = (work_of("znver5", plan, "cumsum", (4096, n)).cycles / n for n in (12, 100))
    assert short == pytest.approx(long, rel=0.15)
    old = work_of("znver4", plan, "cumsum", (4096, 12)).cycles / 12
    assert old > 1.3 * short


def test_the_last_cache_is_its_own():
    """Rows in vectors of 8 lanes lose nothing up to 32 MB, and three quarters beyond."""
    plan = "cpu/lanes(lane_block=8, vectorize=True)"
    for kind, steps, lost in (("znver4", 250, True), ("znver5", 250, False)):
        found = work_of(kind, plan, "cumsum", (12582, steps), dtype="float32")
        assert (found.scattered > 0) == lost
    beyond = work_of("znver5", plan, "cumsum", (262144, 32), dtype="float32")
    assert beyond.scattered > 50e6
    assert not chosen("znver5", "ema", (254853, 26), layout="dl").vectorize


@pytest.mark.parametrize("lanes", [16, 64])
def test_tiles_of_16_rows_are_followed(lanes):
    """Sums of 8 million numbers in rows of 1400: tiles of 16 lanes 0.74 ms, of 64 2.5."""
    plan = f"cpu/lanes(lane_block={lanes}, vectorize=True, transpose=True)"
    found = work_of("znver5", plan, "cumsum", (5991, 1400), dtype="float32")
    assert (found.scattered > 0) == (lanes == 64)


def test_lines_of_a_tile_that_were_asked_for_are_followed():
    """Linear recurrences of 8192 rows of 1000: 3.2 ms by hardware alone, 1.8 asked for."""
    plan = "cpu/lanes(lane_block=32, vectorize=True, transpose=True{})"
    alone, asked = (
        work_of("znver5", plan.format(text), "linear_recurrence", (8192, 1000)).scattered
        for text in ("", ", prefetch=1")
    )
    assert alone > 10 * max(asked, 1.0)


def test_rows_of_a_tile_that_meet_in_a_set_come_again():
    """A page apart, or nearly; also those that lie in more pages than the core has at hand."""
    plan = "cpu/lanes(lane_block={}, vectorize=True, transpose=True, prefetch=1)"

    def scattered(width, sizes):
        return work_of("znver5", plan.format(width), "linear_recurrence", sizes).scattered

    apart, meet, nearly = (scattered(16, (512, n)) for n in (16400, 16384, 16383))
    assert apart < 0.2 * min(meet, nearly)
    assert scattered(32, (64, 107957)) > 2 * scattered(16, (64, 107957))


@pytest.mark.parametrize("plan", ["lane_block=2", "time_vector=32"])
def test_beyond_the_private_caches_a_line_of_several_cores_is_lost(plan):
    """16 columns of 101895 steps took four threads 1.2 ms in vectors of time, 0.1 in one block."""
    near, far = (
        work_of("znver5", f"cpu/lanes({plan})", "ema", (5, steps), layout="ld")
        for steps in (40000, 400000)
    )
    assert near.contested == 0
    assert far.contested > 2 * far.cycles
    # A block of all lanes of a batch has lines of its own.
    sizes, options = (8, 400000), {"layout": "bld", "batch": 2}
    whole = work_of("znver5", "cpu/lanes(lane_block=8)", "linear_recurrence", sizes, **options)
    assert whole.contested == 0


def test_long_rows_beyond_the_caches_are_asked_for():
    """Sums of 2^24 numbers 3.0 ms, and 2.4 asked for and in tiles; of 64 rows 2.4 and 2.05."""
    row = chosen("znver5", "cumsum", (1, 1 << 24), dtype="float32")
    assert row.prefetch and row.cache_steps and row.nontemporal
    rows = chosen("znver5", "cumsum", (64, 1 << 18), dtype="float32")
    assert rows.prefetch and rows.nontemporal
    for sizes in ((1, 1 << 22), (4096, 4096)):
        plan = chosen("znver5", "cumsum", sizes, dtype="float32")
        assert not (plan.time_vector and plan.prefetch)


def test_first_steps_of_maxima_are_guessed():
    """Of 346739 rows of 14 integers 6 steps beside a vector of 8 took four times the rest."""
    plan = "cpu/lanes(time_vector={})"
    most, least = (
        work_of("znver5", plan.format(width), "cummax", (346739, 14), dtype="int32").cycles
        for width in (8, 4)
    )
    assert most > 1.5 * least
    assert chosen("znver5", "cummax", (64, 25), dtype="int32").algorithm == "lanes"


def test_strips_of_rows_that_begin_within_lines_share_lines():
    """Sums of 96 columns in strips of 16 take one core 10 us, of 100 columns 21."""
    plan = "cpu/lanes(lane_block={}, vectorize=True)"

    def moved(columns, width):
        work = work_of(
            "znver5", plan.format(width), "cumsum", (columns, 1875), dtype="float32", axis=0
        )
        return work.moved / columns

    for width in (16, 32, 64):
        assert moved(192, width) == pytest.approx(moved(128, width))
    assert moved(100, 16) > 1.4 * moved(96, 16)
    assert moved(104, 16) < moved(100, 16)
    assert moved(96, 16) < moved(100, 32) < moved(100, 16)


def test_llvm_gathers_rows_of_up_to_29_steps():
    """The loop takes 2.7 cycles a sum of rows of 29 steps, and of 30, one by one, 0.8."""
    short, long = (
        work_of("znver5", "cpu/sequential()", "cumsum", (128, steps), dtype="float32").cycles
        / steps
        for steps in (29, 30)
    )
    assert short > 2 * long


def test_wide_strips_of_few_steps_are_followed_less():
    """Moving averages of 292486 x 5 take 49 us in strips of 16 or 64 lanes, of 256 lanes 87."""
    plan = "cpu/lanes(lane_block={}, vectorize=True)"
    narrow, wide = (
        work_of("znver5", plan.format(width), "ema", (292486, 5), layout="ld").cycles
        for width in (16, 256)
    )
    assert wide > 1.2 * narrow
    assert chosen("znver5", "ema", (292486, 5), layout="ld").lane_block <= 64
