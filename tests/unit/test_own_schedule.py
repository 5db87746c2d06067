"""A schedule of one's own: one class, registered, goes through everything without another file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from tests.support.compiled import compile_cached
from tvm_scan import (
    ScanPlan,
    default_plan,
    expand_scans,
    extract,
    library,
    parallelize,
    plan_of,
    tir,
    verify,
)
from tvm_scan.arguments import host_target
from tvm_scan.cli.draw.tree_svg import tree_svg
from tvm_scan.cli.draw.tree_text import tree_text
from tvm_scan.errors import PlanError
from tvm_scan.meta import RecordStore, tune
from tvm_scan.meta.search.features import decisions_of
from tvm_scan.meta.space.decisions import enumerate_plans
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules import parallel_scan, register
from tvm_scan.schedules.branch import Branch
from tvm_scan.schedules.common.ir import Kernel, int_const, loop
from tvm_scan.schedules.common.lanes import decode_lanes, lane_count
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.sizes import known_extent, known_rows
from tvm_scan.schedules.cpu.sequential import Sequential
from tvm_scan.schedules.machine.cost import Cost
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import Picture, Serial
from tvm_scan.schedules.plan import SCHEDULES
from tvm_scan.schedules.splice import ensure_blocks

CPU = host_target()
FUNC = library.linear_recurrence(3, 50)
FOUND = extract(FUNC)


# ---- the whole schedule -------------------------------------------------------------------------
@dataclass(frozen=True)
class Stride(ScanPlan):
    """One lane after another, ``steps`` steps of it in a block of the loop."""

    device: ClassVar[str] = "cpu"
    algorithm: ClassVar[str] = "stride"
    steps: int = 5

    def check_fit(self, recurrence: Recurrence, machine: Machine) -> None:
        """Check that blocks are whole."""
        known = tir.as_int(recurrence.time.extent) or 0
        self.require(
            self.steps > 0 and known > 0 and known % self.steps == 0 and recurrence.guard is None,
            "a length that the steps divide",
            f"steps={self.steps} of {known}",
            "use another number",
        )

    def build(self, recurrence: Recurrence) -> Built:
        """Return one nest."""
        rows, time = lane_count(recurrence), recurrence.time
        row, size = tvm.tirx.Var("v_row", tir.dtype_of(rows)), int_const(self.steps, time.extent)
        one = Replica(recurrence, decode_lanes(recurrence, row), unroll=False)
        blocks = loop(
            "o",
            time.extent // size,
            lambda o: loop("i", size, lambda i: one.step(o * size + i)),
        )
        body = tir.seq([one.begin(), one.boundary(), blocks, one.finish()])
        kernel = Kernel("scan", recurrence.inputs, recurrence.outputs, body, one.buffers)
        return Built([loop("row", rows, lambda r: kernel.block([(row, rows, r)]))], [])

    def cost(self, recurrence: Recurrence, machine: Machine, steps: int | None = None) -> Cost:
        """Predict a nanosecond for a step, and another for every block of them."""
        work = known_rows(recurrence) * (steps or known_extent(recurrence.time.extent))
        return Cost(work * (1 + 1 / self.steps) * 1e-9 * PRICE[0], 8.0 * work, work, 1.0, 0.0)

    @classmethod
    def space(cls, recurrence: Recurrence, machine: Machine) -> Iterator[Branch]:
        """Yield some numbers of steps."""
        yield Branch(cls(), (("steps", (1, 2, 5, 7)),))

    def picture(self, recurrence: Recurrence) -> Picture:
        """Return a walk."""
        return Picture((("core", f"blocks of {self.steps} steps"),), (Serial("lane", "block"),))


# ---- what it goes through -----------------------------------------------------------------------
#: What its predictions are multiplied by.
PRICE = [1.0]


@pytest.fixture(autouse=True)
def registered():
    register(Stride)
    yield
    SCHEDULES.remove(Stride)


def ran(func):
    inputs = [np.random.default_rng(k).random((3, 50), dtype="float32") for k in range(2)]
    out = tvm.runtime.tensor(np.zeros((3, 50), "float32"))
    built = compile_cached(func.with_attr("global_symbol", "main"), target=CPU)
    built["main"](*map(tvm.runtime.tensor, inputs), out)
    return out.numpy()


def test_plans_are_parsed_checked_and_built():
    plan = ScanPlan.parse("cpu/stride(steps=10)")
    assert (plan, str(plan)) == (Stride(10), "cpu/stride(steps=10)")
    with pytest.raises(PlanError, match="a length that the steps divide, got steps=7 of 50"):
        Stride(7).check(CPU, FOUND)
    with pytest.raises(PlanError, match="expected a new name, got cpu/stride"):
        register(Stride)
    np.testing.assert_array_equal(ran(parallelize(FUNC, CPU, plan)), ran(FUNC))


def test_a_trace_replays_to_the_tree():
    mod = tvm.IRModule({"main": ensure_blocks(FUNC)})
    sch = s_tir.Schedule(mod)
    block = sch.get_child_blocks(sch.get_sblock("root"))[0]
    parallel_scan(sch, block, "cpu/stride(steps=10)", target=CPU)
    again = s_tir.Schedule(mod)
    sch.trace.apply_to_schedule(again, remove_postproc=False)
    expand_scans(again)
    tvm.ir.assert_structural_equal(again.mod, sch.mod)


def test_it_is_searched_and_its_records_are_found(tmp_path):
    assert {Stride(1), Stride(2), Stride(5)} <= set(enumerate_plans(CPU, FOUND))
    assert Stride(7) not in enumerate_plans(CPU, FOUND)
    assert decisions_of(Stride(2)) != decisions_of(Stride(5))
    config = ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0)
    made = tune(FUNC, CPU, tmp_path, trials=8, config=config, progress=False)
    tried = {plan: trial for trial in made.functions[0].trials for plan in trial.plans}
    ours = [trial for plan, trial in tried.items() if isinstance(plan, Stride)]
    assert ours and all(trial.seconds and not trial.wrong for trial in ours)
    store = RecordStore(tmp_path)
    assert any(isinstance(p, Stride) for entry in store.entries() for p in entry.plans)
    assert plan_of(FOUND, CPU, store) in tried


@pytest.mark.parametrize(("price", "chosen"), [(1e-6, Stride), (1e6, Sequential)])
def test_it_is_chosen_by_its_prediction(monkeypatch, price, chosen):
    monkeypatch.setitem(globals(), "PRICE", [price])
    found = extract(library.linear_recurrence(3, 20))
    assert isinstance(default_plan(CPU, found), chosen)


def test_it_is_drawn_and_verified():
    text, svg = tree_text(FOUND, Stride(10)), tree_svg(FOUND, Stride(10))
    assert "blocks of 10 steps" in text and "t = 0" in text
    assert svg.startswith("<svg") and "cpu/stride(steps=10)" in svg
    assert all(c.holds for c in verify(FUNC, CPU, Stride(10)))
