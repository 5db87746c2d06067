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
