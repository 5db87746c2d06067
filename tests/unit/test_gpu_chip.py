"""The GPU that a target stands for in predictions, and what differs by it."""

import pytest
from tvm.target import Target

from bench.gpu_loops import selective_halves
from tests.support.cuda_harness import CUDA_TARGET
from tvm_scan import default_plan, extract, library
from tvm_scan.schedules.machine.machine import Machine


def on(arch):
    return Machine.of(Target({**dict(CUDA_TARGET.export()), "arch": arch}))


@pytest.mark.parametrize(
    ("arch", "name", "multiprocessors"),
    [
        ("sm_80", "A100", 108),
        ("sm_89", "L40", 142),
        ("sm_90a", "H200", 132),
        ("sm_100", "B200", 148),
        ("sm_120", "RTX PRO 6000 Blackwell", 188),
    ],
)
def test_an_architecture_has_a_row_of_its_own(arch, name, multiprocessors):
    machine = on(arch)
    assert (machine.gpu.name, machine.multiprocessors) == (name, multiprocessors)
    assert machine.predicted_for == name


@pytest.mark.parametrize(
    ("arch", "taken"), [("sm_121", "sm_120"), ("sm_101", "sm_100"), ("sm_88", "sm_87")]
)
def test_one_that_is_not_known_is_taken_for_the_nearest_below(arch, taken):
    machine = on(arch)
    assert machine.gpu.arch == taken
    assert f"of {taken}: the nearest architecture below {arch}" in machine.predicted_for


def test_what_is_older_than_all_rows_is_taken_for_the_oldest():
    assert "of sm_70: the nearest architecture above sm_61" in on("sm_61").predicted_for


@pytest.mark.parametrize(("arch", "taken"), [("sm_75", 0), ("sm_80", 1024), ("sm_120", 1024)])
def test_shared_memory_that_the_driver_takes_for_a_block(arch, taken):
    assert on(arch).gpu.block_bytes == taken


def test_other_devices():
    assert Machine.of(Target("webgpu")).predicted_for == "H200"
    assert Machine.of(Target({"kind": "llvm"})).predicted_for == ""


def test_bounds_are_those_of_the_chip():
    found = extract(library.cumsum(2048, 4096))
    plan = default_plan(CUDA_TARGET, found)
    memory = [plan.cost(found, on(arch)).memory for arch in ("sm_90", "sm_100", "sm_89")]
    assert memory[0] / memory[1] == pytest.approx(8.0 / 4.8)
    assert memory[2] / memory[0] == pytest.approx(4.8 / 0.864)


@pytest.mark.parametrize(("arch", "share"), [("sm_90", 0), ("sm_100", 0), ("sm_103", 0)])
def test_pairs_leave_room_for_polynomials(arch, share):
    """B200 has pairs, an H200 has none, and a B300 twice the special functions."""
    found = extract(library.selective_scan(8, 2048, 2048, 16))
    target = Target({**dict(CUDA_TARGET.export()), "arch": arch})
    assert default_plan(target, found).exp_share == share
    chunks = extract(selective_halves(1, 2048, 2048, 16, "bfloat16"))
    assert default_plan(target, chunks).exp_share == (2 if arch == "sm_100" else 0)
