"""Decisions of the walk of a delta rule, and of its adjoint: by the machine and the shape."""

from dataclasses import replace

import pytest
from tvm.target import Target

from tests.programs.engine_programs import make_in_place, make_step
from tvm_scan import default_plan
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.delta import adjoint
from tvm_scan.schedules.delta.adjoint import AdjointPlan
from tvm_scan.schedules.delta.walk import WalkShape
from tvm_scan.schedules.delta.walk_plan import WalkPlan, decide
from tvm_scan.schedules.machine.machine import Machine


def chosen(shape, machine, kind=WalkPlan):
    plans = kind.space(shape, machine)
    return min(plans, key=lambda plan: plan.cost(shape, machine).seconds)


@pytest.fixture
def machine():
    """Two cores with AVX-512."""
    here = Machine.of(Target({"kind": "llvm", "mcpu": "znver4"}))
    return replace(here, cores=2)


def test_a_small_step_wakes_no_thread(machine):
    small, large = WalkShape(8, 64, 64, 1), WalkShape(32, 128, 128, 512)
    assert not chosen(small, machine).threads
    assert chosen(large, machine).threads
    assert not chosen(large, replace(machine, cores=1)).threads
    # A pool that wakes slowly is worth more work.
    slow = replace(machine, chip=replace(machine.chip, wake=1.0))
    assert not chosen(large, slow).threads


def test_a_step_in_place_moves_less():
    """States of 2 MiB that stay where they are lie in the second cache of one core."""
    machine = replace(Machine.of(Target({"kind": "llvm", "mcpu": "emeraldrapids"})), cores=2)
    step = WalkShape(32, 128, 128, 1, group=2)
    in_place = replace(step, in_place=True)
    plan = chosen(step, machine)
    assert plan.cost(in_place, machine).seconds < plan.cost(step, machine).seconds
    # Torch's threads are awake: 32 states are worth them (118 us without, 90 with; a Zen 3).
    assert chosen(in_place, machine).threads
    assert not chosen(replace(in_place, states=4), machine).threads


def test_few_states_are_cut_for_many_cores(machine):
    few = WalkShape(2, 128, 128, 8192)
    two, many = chosen(few, machine), chosen(few, replace(machine, cores=16))
    assert 2 * -(-128 // two.columns) >= 2
    assert many.columns < two.columns


@pytest.mark.parametrize(("mcpu", "vector", "strip"), [("znver4", 16, 32), ("znver3", 8, 16)])
def test_vectors_are_those_of_the_target(mcpu, vector, strip):
    options = {"group": 2, "keys": 128, "values": 128, "rule": "delta", "dtype": "float32"}
    sizes = {"batch": 1, "heads": 16, "length": 512}
    found = decide(options, sizes, Target({"kind": "llvm", "mcpu": mcpu}))
    assert (found["vector"], found["strip"]) == (vector, strip)


def test_prediction_grows_with_the_work(machine):
    plan = chosen(WalkShape(32, 128, 128, 512), machine)
    seconds = [plan.cost(WalkShape(32, 128, 128, n), machine).seconds for n in (64, 512, 2048)]
    assert seconds == sorted(seconds)
    two_terms = plan.cost(WalkShape(32, 128, 128, 512, terms=2), machine).seconds
    assert two_terms > seconds[1]


def test_the_way_back_wakes_no_thread_for_little(machine):
    small, large = WalkShape(8, 64, 64, 1), WalkShape(32, 128, 128, 64, group=2)
    assert not chosen(small, machine, AdjointPlan).threads
    assert chosen(large, machine, AdjointPlan).threads
    # States that share their keys are one task.
    assert not chosen(replace(large, states=2), machine, AdjointPlan).threads


@pytest.mark.parametrize(("mcpu", "vector", "strip"), [("znver4", 16, 32), ("znver3", 8, 16)])
def test_vectors_of_the_way_back_are_those_of_the_target(mcpu, vector, strip):
    options = {"group": 1, "keys": 128, "values": 128, "rule": "general", "dtype": "float32"}
    sizes = {"batch": 1, "heads": 16, "length": 512}
    found = adjoint.decide(options, sizes, Target({"kind": "llvm", "mcpu": mcpu}))
    assert (found["vector"], found["strip"]) == (vector, strip)


def test_plan_of_a_loop():
    """Of one sequence, a token of a small state is for one thread; there may be many sequences."""
    target = Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 8})
    (step,) = analyse(make_step(2, 16, 16)).deltas
    assert default_plan(target, step).threads
    alone = replace(step, lanes=step.lanes[1:])
    assert not default_plan(target, alone).threads
    (long,) = analyse(make_in_place(2, 128, 128)).deltas
    plan = default_plan(target, long)
    assert (plan.threads, plan.columns) == (True, 32)
    assert str(plan) == "cpu/delta_walk(strip=32, vector=16, threads=True)"
