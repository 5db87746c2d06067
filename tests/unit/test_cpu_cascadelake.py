"""How the cost of CPU plans agrees with what was measured on a Cascade Lake."""

from functools import partial

import pytest

from bench.cpu_loops import loop_of
from tests.support import cpu_work
from tvm_scan import extract
from tvm_scan.schedules.calibration import costs, memory
from tvm_scan.schedules.choose.default import decide

LOOP = "cpu/sequential()"
TILES = "cpu/lanes(lane_block=16, vectorize=True, transpose=True, prefetch=1)"
chosen = partial(cpu_work.chosen_on, "cascadelake")


def microseconds(*case, **options):
    """Prediction on two cores."""
    return 1e6 * cpu_work.seconds_on("cascadelake", 2, *case, **options)


@pytest.mark.parametrize(
    ("family", "sizes", "measured"),
    [
        ("linear_recurrence", (128, 16), 8.8),
        ("linear_recurrence", (128, 24), 13.5),
        ("linear_recurrence", (4096, 16), 270),
        ("cumsum", (128, 16), 6.4),
    ],
)
def test_gathers_take_long(family, sizes, measured):
    """LLVM gathers rows of 9 to 28 steps cell by cell, which microcode makes slow here."""
    assert microseconds(family, sizes, LOOP) == pytest.approx(measured, rel=0.3)
    assert not chosen(family, sizes).keeps_loop


@pytest.mark.parametrize("plan", [LOOP, "cpu/lanes(time_vector=8)"])
def test_columns_one_after_another_come_line_by_line(plan):
    """They take 21 to 24 ms (vectors of time 15 to 22), strips of 512 columns 5.2."""
    sizes, columns = (366066, 20), {"layout": "ld"}
    assert microseconds("linear_recurrence", sizes, plan, **columns) > 10_000
    assert chosen("linear_recurrence", sizes, **columns).vectorize


def test_cells_of_polynomials_take_longer_where_one_port_shuffles():
    """Logarithms of sums of 1000 x 64: 44 us in tiles, 75 in vectors of rows."""
    of_rows = "cpu/lanes(lane_block=64, vectorize=True, {}ldexp=True)"
    tiles, rows = (
        microseconds("logsumexp", (1000, 64), of_rows.format(more))
        for more in ("transpose=True, prefetch=1, ", "")
    )
    assert tiles == pytest.approx(44, rel=0.2)
    assert rows > 1.3 * tiles
    assert chosen("logsumexp", (1000, 64)).transpose


def test_rows_are_taken_whole_where_lines_of_strips_come_one_by_one():
    """Affine steps of 8 x 2048 x 1024: 12 to 13 ms, and 15 to 27 in strips of 64 to 512 cells."""
    found = extract(loop_of("affine middle", [8, 2048, 1024]))
    target, machine = cpu_work.machine_of("cascadelake")
    assert decide(target, found, machine).chosen.plan.lane_block >= 1024


@pytest.mark.parametrize(
    ("sizes", "columns"),
    [
        ((2229, 154), {"layout": "ld"}),  # 122 to 140 us in strips, 210 in blocks of scalars
        ((50, 4621), {"layout": "bld", "batch": 2}),  # 244 to 290, and 490
        ((100, 5807), {"layout": "bld", "batch": 1}),  # 540, and 740
    ],
)
def test_strips_that_mostly_lie_in_the_last_cache_are_not_late(sizes, columns):
    """Only the share of their lines that is beyond it comes one by one."""
    plan = chosen("linear_recurrence", sizes, **columns)
    assert plan.vectorize and plan.lane_block >= 16


@pytest.mark.parametrize(
    ("width", "measured"),
    # The last two 830 and 770 in a quiet phase, else 800 to 1130 and 1070 to 1230.
    [(64, 1450), (128, 1330), (1024, 830), (2048, 920)],
)
def test_long_strips_are_followed(width, measured):
    """Their first lines come one by one: after some a prefetcher has seen where they go."""
    plan, columns = f"cpu/lanes(lane_block={width}, vectorize=True)", {"layout": "ld"}
    predicted = microseconds("linear_recurrence", (40000, 40), plan, **columns)
    assert predicted == pytest.approx(measured, rel=0.4)


@pytest.mark.parametrize(
    ("family", "sizes", "columns", "width", "measured"),
    [
        ("linear_recurrence", (3, 4801), {"layout": "ld"}, 32, 24.3),  # in pairs of lanes 14.3
        ("linear_recurrence", (2, 50689), {"layout": "ld"}, 16, 109),  # 77
        ("cumsum", (2, 4096), {"axis": 0, "dtype": "float64"}, 16, 9.3),  # 6.6, the loop 8.1
    ],
)
def test_few_columns_are_not_read_in_vectors_of_time(family, sizes, columns, width, measured):
    """Their cells lie apart, which takes longer here than the instructions say."""
    predicted = microseconds(family, sizes, f"cpu/lanes(time_vector={width})", **columns)
    assert predicted == pytest.approx(measured, rel=0.25)
    assert not chosen(family, sizes, **columns).time_vector


@pytest.mark.parametrize(
    ("family", "sizes", "columns"),
    [
        ("cumsum", (4096, 4096), {"axis": 0}),  # 9.4 ms, in strips of 128 columns 13.2, a copy 7.7
        ("linear_recurrence", (64433, 17), {"layout": "bld", "batch": 2}),  # 1.4 ms, and 3.8
        ("cumsum", (107154, 58), {"axis": 0, "dtype": "float64"}),  # 7.3 ms, and 11.0
    ],
)
def test_strips_beyond_the_caches_are_long(family, sizes, columns):
    plan = chosen(family, sizes, **columns)
    assert plan.vectorize and plan.lane_block >= 512


@pytest.mark.parametrize(
    ("instructions", "family", "plan", "measured"),
    [
        ("haswell", "cumsum", "cpu/lanes(time_vector=64, time_runs=True)", 1.16),
        ("haswell", "cumsum", "cpu/lanes(time_vector=16, time_runs=True)", 1.54),
        ("haswell", "linear_recurrence", "cpu/lanes(time_vector=64, time_runs=True)", 1.72),
        ("haswell", "linear_recurrence", "cpu/lanes(time_vector=8)", 1.85),
        ("x86-64", "linear_recurrence", "cpu/lanes(time_vector=64, time_runs=True)", 2.8),
        ("x86-64", "linear_recurrence", "cpu/lanes(time_vector=32)", 3.04),
    ],
)
def test_vectors_of_half_a_line_are_no_two_for_one(instructions, family, plan, measured):
    """The ports that sum and shuffle whole lines do no more of their halves.

    2048 steps on one core, in AVX2 and in SSE2.
    """
    cost = cpu_work.seconds_on("cascadelake", 1, family, (1, 2048), plan, instructions)
    assert 1e6 * cost == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(("held", "found"), [(3 << 20, 4 << 20), (13 << 20, 15 << 20)])
def test_a_calibration_finds_what_others_leave_of_the_last_cache(monkeypatch, held, found):
    """The bytes from which on a copy takes longer than amid the cache and memory."""

    def copied(size, threads, moved, seconds):
        return 36e9 if 2 * size <= held else 12e9

    monkeypatch.setattr(memory, "_copied", copied)
    left = memory.left_to_us(32 << 20, (1 / 36e9 + 1 / 15e9) / 2, 0.1)
    assert held < left <= found
    assert memory.left_to_us(2 << 20, (1 / 36e9 + 1 / 15e9) / 2, 0.1) == 2 << 20


@pytest.mark.parametrize(
    ("cost", "took", "constant"),
    [
        (lambda value: 3 + 2 * value, 20, 8.5),
        (lambda value: 3 + 2 * value, 1, -1),  # which is no constant: the least one counts
        # Something else takes longer at first, alone or beside it.
        (lambda value: max(10, 3 + 2 * value), 70, 33.5),
        (lambda value: max(3 + 0.1 * value, 2 * value - 4), 61, 32.5),
    ],
)
def test_a_constant_is_found_on_the_line_of_a_cost_where_it_lies(cost, took, constant):
    """A product of integers took 8 or 35 operations, by two points of another line."""
    assert costs.met(cost, took) == pytest.approx(constant)


@pytest.mark.parametrize(
    ("family", "sizes", "measured"),
    [
        ("linear_recurrence", (1788, 1784), 3400),  # by vectors of time 1850
        ("linear_recurrence", (512, 8192), 5400),  # 2500
        ("linear_recurrence", (96, 51000), 5800),  # 3200
        ("resets", (1341, 1784), 3400),  # 1850 to 2500
    ],
)
def test_rows_in_more_pages_than_a_prefetcher_follows_are_not_taken_in_tiles(
    family, sizes, measured
):
    """Of three arrays sixteen rows lie in 48 pages, of four in 64; it follows 32."""
    assert microseconds(family, sizes, TILES) == pytest.approx(measured, rel=0.25)
    assert chosen(family, sizes).time_vector


def test_as_many_rows_in_fewer_pages_are_followed():
    """Of 3.2 million cells: rows of 750 take a core 4.3 ms, of 800 7.9; resets of 512 as before."""
    short, long = (
        microseconds("linear_recurrence", (3_200_000 // steps, steps), TILES)
        for steps in (750, 800)
    )
    assert long > 1.6 * short
    assert microseconds("resets", (4096, 512), TILES) < 0.6 * microseconds(
        "resets", (2048, 1024), TILES
    )


def test_lines_of_rows_that_no_prefetcher_follows_are_no_quicker_than_others():
    """By 4 and by 8 lanes: 2.8 and 3.6 ms (2451 x 1593), 3.1 and 3.5 (512 x 8192)."""
    for sizes in ((2451, 1593), (512, 8192)):
        few, many = (
            microseconds("linear_recurrence", sizes, f"cpu/lanes(lane_block={lanes})")
            for lanes in (4, 8)
        )
        assert many > 1.1 * few


def test_fewer_cores_bring_the_lines_of_the_last_strips():
    """Of 100 columns of 70650 steps three strips of 32, and four columns, took two cores 15 ms.

    The loop takes one core 11 to 12. They were counted as 8.8.
    """
    columns = {"axis": 0, "dtype": "float64"}
    strips = "cpu/lanes(lane_block=32, vectorize=True, prefetch=16, nontemporal=True)"
    two, three = (microseconds("cumsum", (lanes, 70650), strips, **columns) for lanes in (64, 96))
    assert three > 2.0 * two
    assert chosen("cumsum", (100, 70650), **columns).keeps_loop


@pytest.mark.parametrize("sizes", [(32, 9821), (64, 9023)])
def test_the_last_cache_brings_lines_of_many_pages_later_too(sizes):
    """In tiles of 16 rows 148 and 276 us, in vectors of time 103 and 190."""
    assert chosen("linear_recurrence", sizes).time_vector


@pytest.mark.parametrize(
    ("sizes", "plan", "measured"),
    [
        ((64, 747), LOOP, 190),
        ((64, 747), "cpu/lanes()", 64),
        ((13, 968), "cpu/lanes()", 18.4),
        ((13, 968), "cpu/lanes(lane_block=2)", 12.6),
    ],
)
def test_scalar_resets_wait_for_a_product_and_a_sum(sizes, plan, measured):
    """LLVM jumps over the product, so that no instruction takes both."""
    assert microseconds("resets", sizes, plan) == pytest.approx(measured, rel=0.3)


@pytest.mark.parametrize("lanes", [16, 36, 256])
def test_llvm_gathers_longer_rows_whose_carry_is_in_an_array(lanes):
    """36 rows of 39 steps and their last values: the loop takes 8.5 us (32 rows in tiles 1.8)."""
    last = {"final_state": True}
    gathered, plain = (
        microseconds("linear_recurrence", (lanes, steps), LOOP, **last) / steps
        for steps in (42, 43)
    )
    assert gathered > 2.5 * plain
    assert not chosen("linear_recurrence", (lanes, 39), dtype="float64", **last).keeps_loop


@pytest.mark.parametrize(
    ("sizes", "width", "measured"),
    [
        ((64, 512), 32, 10.6),
        ((128, 512), 64, 19.5),
        ((256, 512), 128, 38.5),
        ((1024, 128), 512, 29.5),  # a line of it brings only 20 of the other core's
        ((128, 512), 32, 9.0),  # beside one another for half of the time
        ((256, 512), 32, 15.5),
    ],
)
def test_lines_beside_a_strip_are_another_cores(sizes, width, measured):
    """Prefetchers bring them, and the other core has to bring them back."""
    plan = f"cpu/lanes(lane_block={width}, vectorize=True)"
    predicted = microseconds("cumsum", sizes, plan, axis=0)
    assert predicted == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(
    ("family", "sizes", "columns"),
    [
        ("cummax", (32, 512), {"axis": 0, "dtype": "int64"}),  # 9.9 us in two strips, whole 4.1
        ("cumsum", (64, 512), {"axis": 0}),  # 10.6, and 4.3
        ("cumsum", (32, 512), {"axis": 0, "dtype": "float64"}),  # 11.6, and 4.3
    ],
)
def test_few_columns_are_one_cores(family, sizes, columns):
    plan = chosen(family, sizes, **columns)
    assert plan.keeps_loop or plan.lane_block * 2 > sizes[0]


def test_lines_come_one_by_one_in_strips_of_scalars_too():
    """Blocks of 8 scalars of 100 columns of 6289 steps: 1.18 ms, of vectors 0.84."""
    sizes, columns = (100, 6289), {"layout": "bld", "batch": 1}
    scalars, vectors = (
        microseconds("linear_recurrence", sizes, f"cpu/lanes(lane_block=8{more})", **columns)
        for more in ("", ", vectorize=True")
    )
    assert scalars > vectors
    assert chosen("linear_recurrence", sizes, **columns).vectorize


@pytest.mark.parametrize(
    ("family", "lanes", "measured"),
    [("cumsum", 4, 2.6), ("cumsum", 8, 4.9), ("cumsum", 16, 9.0), ("cumsum", 32, 18.9),
     ("cummax", 4, 3.3), ("cummax", 8, 6.2), ("cummax", 16, 11.0), ("cummax", 32, 8.5)],
)  # fmt: skip
def test_few_columns_of_long_integers_backwards_are_scalars_in_the_loop(family, lanes, measured):
    """LLVM writes them out cell by cell, but for 32 maxima; in vectors 16 take 3.8 us."""
    backwards = {"axis": 0, "dtype": "int64", "reverse": True}
    predicted = microseconds(family, (lanes, 1024), LOOP, **backwards)
    assert predicted == pytest.approx(measured, rel=0.4)
    if (family, lanes) != ("cummax", 32):
        assert not chosen(family, (lanes, 1024), **backwards).keeps_loop


@pytest.mark.parametrize("length", [11, 12])
def test_steps_beside_a_vector_of_maxima_are_guessed(length):
    """Vectors of 8 steps and 3 take 33 to 53 us, 4 and 4 and 3 33, vectors of four rows 24."""
    eights = microseconds("cummax", (8000, length), "cpu/lanes(time_vector=8)", dtype="int32")
    fours = microseconds("cummax", (8000, length), "cpu/lanes(time_vector=4)", dtype="int32")
    assert eights > 1.1 * fours


def test_rows_that_meet_in_a_set_wait_behind_polynomials():
    """Vectors of 8 rows on two cores 4.6 to 5.0 ms, a tile of 16 on one 7.0 to 7.5."""
    assert chosen("logsumexp", (16, 131072)).lane_block == 8


@pytest.mark.parametrize(
    ("family", "sizes", "columns", "strip", "measured"),
    [
        ("cumsum", (64, 65536), {"axis": 0}, 32, 2200),  # whole rows 3400
        ("ema", (32, 131072), {"layout": "ld", "dtype": "float64"}, 16, 4500),  # 7000
    ],
)
def test_strips_of_short_rows_come_in_order(family, sizes, columns, strip, measured):
    """Two cores read all lines, which one alone does not do as fast."""
    plan = f"cpu/lanes(lane_block={strip}, vectorize=True, prefetch=16, nontemporal=True)"
    predicted = microseconds(family, sizes, plan, **columns)
    assert predicted == pytest.approx(measured, rel=0.35)
    plan = chosen(family, sizes, **columns)
    assert plan.vectorize and plan.nontemporal and plan.lane_block == strip


@pytest.mark.parametrize(
    ("family", "sizes", "measured"),
    [("cumsum", (3, 402), 10.0), ("cumsum", (3, 2048), 9.6), ("cummax", (16, 2048), 11.5),
     ("cumsum", (3, 2002), 6.5), ("cummax", (16, 2049), 9.0)],
)  # fmt: skip
def test_carries_of_a_loop_whose_steps_none_divide_are_read_again(family, sizes, measured):
    """LLVM keeps them for as many steps as divide all but the first one."""
    cycle = cpu_work.machine_of("cascadelake")[1].chip.cycle
    predicted = microseconds(family, sizes, LOOP, axis=0) * 1e-6 / cycle / sizes[1]
    assert predicted == pytest.approx(measured, rel=0.25)


def test_a_loop_that_reads_its_carries_again_is_left_for_vectors():
    """Maxima of 16 columns of 2048 steps: 8.5 us, in vectors 4.4."""
    assert chosen("cummax", (16, 2048), axis=0).vectorize


@pytest.mark.parametrize(
    ("strips", "steps", "measured"),
    [(1, 10336, 225), (2, 10336, 235), (4, 10336, 335), (2, 16384, 480), (4, 16384, 690)],
)
def test_all_lines_of_short_rows_come_with_every_strip(strips, steps, measured):
    """Sums of 64 columns: from the last cache, too, where prefetchers bring what is beside."""
    plan = f"cpu/lanes(lane_block={64 // strips}, vectorize=True)"
    assert microseconds("cumsum", (64, steps), plan, axis=0) == pytest.approx(measured, rel=0.25)


def test_short_rows_are_not_taken_in_narrow_strips():
    """Averages down 32 columns of 10336 float64 take 241 us in four strips, the loop 175."""
    assert chosen("ema", (32, 10336), layout="ld", dtype="float64").lane_block != 8


def test_one_core_is_no_quicker_past_the_caches():
    """Maxima of 32 columns of 127002 steps: 3.4 ms so on one core, 2.6 on two, the loop 3.0."""
    plan = chosen("cummax", (32, 127002), axis=0, dtype="int32")
    assert plan.keeps_loop or plan.lane_block < 32
