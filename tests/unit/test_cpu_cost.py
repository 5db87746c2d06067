"""The cost model of CPU plans: its counts, the constants it reads, and what is chosen by it."""

import io
import json
import logging
import sys
from dataclasses import asdict, replace
from math import isinf

import pytest
from tvm.script import tirx as T
from tvm.target import Target

from tests import ROOT
from tests.support import forks
from tvm_scan import Recurrence, ScanPlan, extract
from tvm_scan.library import cumsum, ema, linear_recurrence, selective_scan
from tvm_scan.schedules import default_plan
from tvm_scan.schedules.calibration.calibrate import measured, store_constants
from tvm_scan.schedules.choose.default import decide
from tvm_scan.schedules.choose.rules import RULES, factor_of
from tvm_scan.schedules.cpu.cost.step import step_of
from tvm_scan.schedules.cpu.cost.vectors import vector_reduction
from tvm_scan.schedules.cpu.sequential import Sequential
from tvm_scan.schedules.gpu.lanes import Lanes as GpuLanes
from tvm_scan.schedules.machine import cpu_constants
from tvm_scan.schedules.machine.cpu_chip import OF_TARGET, CpuChip
from tvm_scan.schedules.machine.cpu_constants import (
    chip_of,
    machine_constants,
    parse_constants,
    processor_name,
    with_features,
)
from tvm_scan.schedules.machine.machine import Machine

TARGETS = {
    "avx512": Target({"kind": "llvm", "mcpu": "skylake-avx512"}),
    "avx2": Target({"kind": "llvm", "mcpu": "haswell"}),
    "sse2": Target({"kind": "llvm", "mcpu": "x86-64"}),
}


def found_in(func):
    found = extract(func)
    assert isinstance(found, Recurrence), found
    return found


def test_a_step_is_counted():
    step = step_of(found_in(linear_recurrence(4, 300)))
    assert (step.rows, step.length, step.lanes) == (4, 300, 4)
    assert (step.body.operations, step.body.calls) == (1, 0)  # a product and its sum are one
    assert (step.chain.products, step.chain.sums) == (1, 0)
    assert sorted((a.store, a.along_time, a.along_lane) for a in step.accesses) == [
        (False, 1, 300),
        (False, 1, 300),
        (True, 1, 300),
    ]
    assert (step.loads, step.stores) == (2 * 4 * 4 * 300, 4 * 4 * 300)
    assert step.parts[0].sizes == (4, 4)


def test_one_lane_of_an_outer_axis_is_contiguous_along_time():
    step = step_of(found_in(linear_recurrence(1, 1000, layout="ld")))
    assert {a.along_time for a in step.accesses} == {1}


def test_parts_that_are_numbers_cost_nothing():
    # The gate of an exponential moving average is one number at every step.
    assert step_of(found_in(ema(4, 300))).parts[0].sizes == (4,)


def test_a_state_is_counted_in_every_cell():
    step = step_of(found_in(selective_scan(1, 16, 64, 16)))
    assert step.body.calls >= 16
    assert step.state
    assert step.in_vectors


def test_unknown_extents_are_one_number():
    step = step_of(found_in(cumsum(None, None)))
    assert (step.rows, step.length) == (4096, 4096)


def test_features_are_the_targets():
    widths = {n: with_features(CpuChip(), t).vector_bytes for n, t in TARGETS.items()}
    assert widths == {"avx512": 64, "avx2": 32, "sse2": 16}
    chips = {n: with_features(CpuChip(), t) for n, t in TARGETS.items()}
    assert chips["sse2"].fused > chips["avx2"].fused == 0.0
    assert chips["sse2"].halves > chips["avx2"].halves == 0.0


def test_more_work_takes_longer():
    machine = Machine.of(TARGETS["avx512"])
    lengths = (100, 1000, 10000, 1 << 20)
    seconds = [Sequential().cost(found_in(cumsum(4, n)), machine).seconds for n in lengths]
    assert seconds == sorted(seconds)
    symbolic = found_in(cumsum(4, None))
    assert [Sequential().cost(symbolic, machine, n).seconds for n in lengths] == seconds


def test_a_chunk_that_is_reduced_reads_its_cells_as_the_walk_does():
    plan = ScanPlan.parse("cpu/three_phase(chunks=2, time_vector=64)")
    chip = chip_of(TARGETS["avx512"])

    def reduced(**options):
        step = step_of(found_in(linear_recurrence(1, 1 << 20, **options)))
        return vector_reduction(plan, step, chip, float(step.length))

    assert reduced() < reduced(reverse=True) < 2 * reduced()  # two vectors to reverse


@pytest.mark.parametrize("name", TARGETS)
def test_the_choice_is_the_same_each_time_and_looks_at_few_plans(name):
    target = TARGETS[name]
    for func in (linear_recurrence(1, 1 << 20), cumsum(64, 4096, axis=0), cumsum(64, 4096)):
        made, again = decide(target, found_in(func)), decide(target, found_in(func))
        assert made.chosen.plan == again.chosen.plan == default_plan(target, found_in(func))
        plans = [made.chosen.plan, *(one.plan for one in made.others)]
        assert 2 <= len(plans) == len(set(plans)) <= 80
        assert Sequential() in plans
        # Of plans within a percent of the best, the simplest.
        assert made.chosen.ranked <= 1.01 * min(one.ranked for one in made.others)
        for plan in plans:
            assert name == "avx512" or not plan.ldexp
            assert name != "sse2" or not plan.nontemporal


@T.prim_func(s_tir=True)
def half_sum(X: T.Buffer((4, 100), "float16"), Y: T.Buffer((4, 100), "float16")):
    for b in range(4):
        for t in range(100):
            Y[b, t] = T.if_then_else(t > 0, Y[b, t - 1], T.float16(0)) + X[b, t]


def test_rules_that_no_prediction_knows_are_named():
    half = found_in(half_sum)
    assert default_plan(TARGETS["avx2"], half) != Sequential()
    factor, rules = factor_of(Sequential(), half)
    assert isinf(factor) and "rounds a carry of halves" in rules[0].name
    assert all(rule.name and rule.measured and rule.factor > 0 for rule in RULES)
    assert factor_of(GpuLanes(threads_per_block=32, chunks=4), half) == (1.0, ())


def text_of(**changes):
    return json.dumps({"constants": {**asdict(CpuChip()), **changes}})


def test_constants_are_read_as_they_were_written():
    chip = replace(CpuChip(), cycle=0.5e-9, private=1 << 20)
    assert parse_constants(json.dumps({"constants": asdict(chip)}), "mine") == chip
    # A file of before need not have what the target says.
    measured = {name: value for name, value in asdict(chip).items() if name not in OF_TARGET}
    assert parse_constants(json.dumps({"constants": measured}), "mine") == chip


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"constants": []}',
        '{"constants": {"cycle": 1}}',
        text_of(more=1),
        text_of(cycle=0),
        text_of(cycle=-1),
        text_of(cycle=float("nan")),
        text_of(cycle=float("inf")),
        text_of(cycle="1"),
        text_of(cycle=True),
        text_of(cycle=None),
        text_of(private=1.5),
        text_of(private=10**400),
        "[" * 100000,
    ],
)
def test_damaged_constants_are_left_out_with_a_message(text, caplog):
    with caplog.at_level(logging.WARNING, "tvm_scan"):
        assert parse_constants(text, "mine.json") is None
    assert "mine.json" in caplog.text
    assert "expected a positive number" in caplog.text


def test_a_calibration_is_stored_and_used(tmp_path, monkeypatch):
    path = tmp_path / "new" / "mine.json"
    monkeypatch.setenv("TVM_SCAN_MACHINE", str(path))
    chip = replace(CpuChip(), cycle=0.7e-9)
    target = TARGETS["avx2"]
    # What was asked for before the calibration is not what a target has after it.
    assert chip_of(target).cycle != chip.cycle
    store_constants(chip, path)
    assert machine_constants() == (chip, "calibrated")
    assert chip_of(target).cycle == chip.cycle
    path.write_text("{")
    assert machine_constants()[1] != "calibrated"
    monkeypatch.setenv("TVM_SCAN_MACHINE", "off")
    assert chip_of(target).cycle != chip.cycle


KINDS = sorted((ROOT / "schedules" / "machine" / "data").glob("*.json"))


@pytest.mark.parametrize("path", KINDS, ids=lambda path: path.stem)
def test_a_kind_that_was_measured_has_its_constants_on_every_machine(path, monkeypatch):
    """A target that names another kind than the host gets that kind's, features and all."""
    measured_there = parse_constants(path.read_text(), path.name)
    target = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": path.stem})
    monkeypatch.setattr(cpu_constants, "host_kind", lambda: "another")
    chip = chip_of(target)
    assert chip.cycle == measured_there.cycle and chip.memory_rates == measured_there.memory_rates
    assert chip.vector_bytes in (16, 32, 64)
    # A masked target is this machine under other instructions.
    masked = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"})
    assert chip_of(masked).cycle == machine_constants()[0].cycle


def test_there_are_kinds_that_were_measured():
    assert KINDS


def test_generations_of_one_name_are_told_apart(monkeypatch):
    names = set()
    for model in (1, 17):
        text = f"processor: 0\ncpu family: 25\nmodel: {model}\nmodel name: AMD EPYC\n"
        monkeypatch.setattr("builtins.open", lambda *_, text=text, **__: io.StringIO(text))
        names.add(processor_name.__wrapped__())
    assert names == {"amd-epyc-25-1", "amd-epyc-25-17"}


def test_what_a_target_calls_itself_names_no_other_file():
    for kind in ("", "../znver4", "znver4/../znver4", "a" * 300, "nothing"):
        assert cpu_constants._shipped(kind) is None


def test_this_machine_is_measured():
    chip = measured(seconds=0.03)
    assert parse_constants(json.dumps({"constants": asdict(chip)}), "mine") == chip
    assert 0.1e-9 < chip.cycle < 5e-9
    assert chip.product_latency > 1
    assert 1 <= chip.extremum_latency < 20
    assert 8 <= chip.window < 1000
    assert 0.2 < chip.mixed_issue < 8
    assert 0.2 < chip.mixed_integers < 8
    assert 1 <= chip.narrow <= 2
    assert 0.1 <= chip.strided < 10
    assert 1.0 <= chip.asked < 10
    assert 1.0 <= chip.past_alone <= 4
    assert 0.0 <= chip.beside < 200
    assert 1 <= chip.integer_product < 20
    assert 1 <= chip.forward < 50
    assert 0.1 <= chip.reread < 50
    assert 0.05 <= chip.apart < 10 and 0.25 <= chip.taken < 10
    assert 0.1 <= chip.jump < 1000 and 0.1 <= chip.late < 1000


def test_a_target_has_constants_whatever_it_is():
    assert chip_of(Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})).vector_bytes == 16


@pytest.mark.parametrize(
    "given",
    [{}, {"TVM_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "2"}],
    ids=str,
)
def test_the_cores_are_the_threads_of_the_pool(given):
    """A plan for two cores is slower than the loop where the pool has one thread."""
    # Read when the pool begins, so that the program sets them itself.
    source = (
        "import os, tvm\n"
        "for name in ('TVM_NUM_THREADS', 'OMP_NUM_THREADS'):\n"
        "    os.environ.pop(name, None)\n"
        f"os.environ.update({given})\n"
        "from tvm_scan.schedules.machine.machine import host_cores\n"
        "assert host_cores() == tvm.get_global_func('runtime.NumThreads')()\n"
    )
    done = forks.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_of_an_array_counts_what_the_steps_touch():
    """A chunk of a long sequence moves a chunk's bytes, whatever the array's size."""

    @T.prim_func(s_tir=True)
    def part(
        X: T.Buffer((64, 2048), "float32"), h: T.Buffer((64,), "float32"),
        Y: T.Buffer((64, 2048), "float32"),
    ):  # fmt: skip
        for i in range(64):
            for t in range(32):
                h[i] = h[i] * T.float32(0.5) + X[i, t + 100]
                Y[i, t + 100] = h[i]

    step = step_of(found_in(part))
    assert step.loads == 64 * 32 * 4
    assert step.stores == 64 * 32 * 4 + 64 * 4
    whole = step_of(found_in(linear_recurrence(64, 2048)))
    assert whole.loads == 2 * 64 * 2048 * 4
