"""What a Zen 5 does otherwise than a Zen 4, as its constants say it: plans that were measured."""

from dataclasses import replace
from functools import partial

import pytest

from tests.support.cpu_work import chosen_on, machine_of, work_of

ZEN4, ZEN5 = (machine_of(kind)[1].chip for kind in ("znver4", "znver5"))
chosen = partial(chosen_on, "znver5")


@pytest.mark.parametrize("sizes", [(32, 3854), (100, 1809)])
def test_squares_of_whole_vectors_are_cheap(sizes):
    """Filters in vectors of 8 lanes took 1.3 to 1.5 times as long as in transposed tiles."""
    assert chosen("order 2", sizes).transpose
    # Sums wait for no chain, so that little but squares is counted.
    plan = "cpu/lanes(lane_block=32, vectorize=True, transpose=True)"
    assert work_of("cumsum", sizes, plan, ZEN5).cycles < 0.47 * sizes[0] * sizes[1]


def test_nothing_is_lost_around_short_rows():
    """Sums of 12 steps in blocks of four took 0.71 cycles a cell, of 100 steps 0.68."""
    plan = "cpu/lanes(lane_block=4)"
    short, long = (work_of("cumsum", (4096, n), plan, ZEN5).cycles / n for n in (12, 100))
    assert short == pytest.approx(long, rel=0.15)
    old = work_of("cumsum", (4096, 12), plan, ZEN4).cycles / 12
    assert old > 1.3 * short


def test_the_last_cache_is_its_own():
    """Rows in vectors of 8 lanes lose nothing up to 32 MB, and three quarters beyond."""
    plan = "cpu/lanes(lane_block=8, vectorize=True)"
    for chip, lost in ((ZEN4, True), (ZEN5, False)):
        found = work_of("cumsum", (12582, 250), plan, chip, dtype="float32")
        assert (found.scattered > 0) == lost
    beyond = work_of("cumsum", (262144, 32), plan, ZEN5, dtype="float32")
    assert beyond.scattered > 50e6
    assert not chosen("ema", (254853, 26), layout="dl").vectorize


@pytest.mark.parametrize("lanes", [16, 64])
def test_tiles_of_16_rows_are_followed(lanes):
    """Sums of 8 million numbers in rows of 1400: tiles of 16 lanes 0.74 ms, of 64 2.5."""
    plan = f"cpu/lanes(lane_block={lanes}, vectorize=True, transpose=True)"
    # But for what all tiles wait for memory.
    found = work_of("cumsum", (5991, 1400), plan, replace(ZEN5, late=0.0), dtype="float32")
    assert (found.scattered > 0) == (lanes == 64)


def test_lines_of_a_tile_that_were_asked_for_are_followed():
    """Linear recurrences of 8192 rows of 1000: 3.2 ms by hardware alone, 1.8 asked for."""
    plan = "cpu/lanes(lane_block=32, vectorize=True, transpose=True{})"
    alone, asked = (
        work_of("linear_recurrence", (8192, 1000), plan.format(text), ZEN5).scattered
        for text in ("", ", prefetch=1")
    )
    assert alone > 10 * max(asked, 1.0)


def test_rows_of_a_tile_that_meet_in_a_set_come_again():
    """A page apart, or nearly; also those that lie in more pages than the core has at hand."""
    plan = "cpu/lanes(lane_block={}, vectorize=True, transpose=True, prefetch=1)"

    def scattered(width, sizes):
        return work_of("linear_recurrence", sizes, plan.format(width), ZEN5).scattered

    apart, meet, nearly = (scattered(16, (512, n)) for n in (16400, 16384, 16383))
    assert apart < 0.2 * min(meet, nearly)
    assert scattered(32, (64, 107957)) > 2 * scattered(16, (64, 107957))


@pytest.mark.parametrize(("plan", "columns"), [("lane_block=2", 5), ("time_vector=32", 14)])
def test_beyond_the_private_caches_a_line_of_several_cores_is_lost(plan, columns):
    """16 columns of 101895 steps took four threads 1.2 ms in vectors of time, 0.1 in one block.

    Of two and of four a Zen 4 loses nothing: its cores are some lines apart.
    """
    near, far, few = (
        work_of("ema", (lanes, total // lanes), f"cpu/lanes({plan})", ZEN5, layout="ld")
        for lanes, total in ((columns, 200000), (columns, 2000000), (4, 2000000))
    )
    assert (few.contested == 0) == plan.startswith("time")
    assert near.contested == 0
    assert far.contested > 2 * far.cycles
    # A block of all lanes of a batch has lines of its own.
    sizes, options = (8, 400000), {"layout": "bld", "batch": 2}
    whole = work_of("linear_recurrence", sizes, "cpu/lanes(lane_block=8)", ZEN5, **options)
    assert whole.contested == 0


def test_long_rows_beyond_the_caches_are_asked_for():
    """Sums of 64 rows of 2^18 take 1.06 of the time of a copy, and 1.23 if they do not ask."""
    for sizes in ((1, 1 << 24), (64, 1 << 18), (1000, 1 << 14)):
        plan = chosen("cumsum", sizes, dtype="float32")
        assert plan.time_vector and plan.prefetch == 2 and plan.nontemporal
    for sizes in ((1, 1 << 22), (4096, 4096)):
        plan = chosen("cumsum", sizes, dtype="float32")
        assert not (plan.time_vector and plan.prefetch)
    # Of two arrays they would ask in vain, but for the next tile.
    assert not chosen("linear_recurrence", (64, 1 << 18)).prefetch
    assert chosen("linear_recurrence", (1, 1 << 24)).cache_steps == 1 << 17


def test_first_steps_of_maxima_are_guessed():
    """Of 346739 rows of 14 integers 6 steps beside a vector of 8 took four times the rest."""
    plan = "cpu/lanes(time_vector={})"
    most, least = (
        work_of("cummax", (346739, 14), plan.format(width), ZEN5, dtype="int32").cycles
        for width in (8, 4)
    )
    assert most > 1.5 * least
    assert chosen("cummax", (64, 25), dtype="int32").algorithm == "lanes"


def strips(sizes, width):
    """What sums down columns have to do in strips."""
    plan = f"cpu/lanes(lane_block={width}, vectorize=True)"
    return work_of("cumsum", sizes, plan, ZEN5, dtype="float32", axis=0)


def test_strips_of_rows_that_begin_within_lines_share_lines():
    """Sums of 96 columns in strips of 16 take one core 10 us, of 100 columns 21."""

    def moved(columns, width):
        return strips((columns, 1875), width).moved / columns

    for width in (16, 32, 64):
        assert moved(192, width) == pytest.approx(moved(128, width))
    assert moved(100, 16) > 1.4 * moved(96, 16)
    assert moved(104, 16) < moved(100, 16)
    assert moved(96, 16) < moved(100, 32) < moved(100, 16)


def test_llvm_gathers_rows_of_up_to_29_steps():
    """The loop takes 2.7 cycles a sum of rows of 29 steps, and of 30, one by one, 0.8."""
    short, long = (
        work_of("cumsum", (128, steps), "cpu/sequential()", ZEN5, dtype="float32").cycles / steps
        for steps in (29, 30)
    )
    assert short > 2 * long


def test_wide_strips_of_few_steps_are_followed_less():
    """Moving averages of 292486 x 5 take 49 us in strips of 16 or 64 lanes, of 256 lanes 87."""
    plan = "cpu/lanes(lane_block={}, vectorize=True)"
    narrow, wide = (
        work_of("ema", (292486, 5), plan.format(width), ZEN5, layout="ld").cycles
        for width in (16, 256)
    )
    assert wide > 1.2 * narrow
    assert chosen("ema", (292486, 5), layout="ld").lane_block <= 64


def test_narrow_strips_of_rows_that_meet_in_a_set_take_longer():
    """Sums of 1024 rows of 1024 in strips of 64 and 256 take 111 and 63 us, of 1040 43 and 67."""

    def cycles(columns, width):
        return strips((columns, 1024), width).cycles / columns

    for columns in (1024, 2048, 4096):
        assert cycles(columns, 16) > 3 * cycles(columns, 256)
        assert chosen("cumsum", (columns, 1024), dtype="float32", axis=0).lane_block >= 128
    assert cycles(1024, 16) > cycles(1536, 16) > cycles(1280, 16) > cycles(1040, 16)
    assert cycles(1040, 64) < cycles(1040, 256)


def test_within_the_caches_a_strip_of_a_short_row_comes_alone():
    """Maxima of 32 columns of 25777 numbers of 8 bytes take 59 us in strips, the loop 150."""
    for steps in (2744, 10067, 25777):
        for sizes, dtype in (((64, steps), "float32"), ((32, steps), "float64")):
            plan = chosen("cummax", sizes, dtype=dtype, axis=0)
            assert plan.algorithm == "lanes" and plan.vectorize


@pytest.mark.parametrize("steps", [1 << 15, 1 << 19, 1 << 22])
def test_short_rows_beyond_a_cache_of_these_cores_alone_come_with_every_pass(steps):
    """Each of four strips of a line brings all lines of 256 bytes, or none again."""
    plan = "cpu/lanes(lane_block=8, vectorize=True)"
    whole, strips = (
        work_of("cumsum", (32, steps), p, ZEN5, dtype="int64", axis=0)
        for p in ("cpu/lanes(lane_block=32, vectorize=True)", plan)
    )
    again = strips.moved + strips.scattered - whole.moved - whole.scattered
    assert again >= 0.0
    assert (again > 0.0) == ZEN5.is_beyond(whole.footprint)
