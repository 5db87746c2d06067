"""TVM's own tune_tir and tune_relax with our space, our hook, our builder."""

import logging

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from tvm.target import Target

from tests.meta.test_space import mixed
from tvm_scan import ScanPlan
from tvm_scan.algebra import Reduce
from tvm_scan.meta import CheckedTuning, register_hooks, scan_space
from tvm_scan.meta.measure.check import WRONG
from tvm_scan.meta.space.rule import annotate
from tvm_scan.meta.store.entry import Entry
from tvm_scan.meta.store.replay import replay
from tvm_scan.meta.store.rows import record_digest
from tvm_scan.relax import ExpandScans

# TVM's rules for CPUs want to know the cores.
CPU = Target({"kind": "llvm", "num-cores": 2})
QUICK = ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=1)
SEARCH = {
    "population_size": 8,
    "init_min_unmeasured": 4,
    "max_fail_count": 20,
    "genetic_num_iters": 1,
    "genetic_max_fail_count": 2,
}
X = np.random.default_rng(0).integers(-3, 4, (8, 200)).astype("float32")
WANT = np.cumsum(2 * X, 1) + 1


@pytest.fixture(autouse=True)
def no_log_files(monkeypatch):
    """TVM's second call in a process stumbles over the log handlers of its first one."""

    def loggers(_folder, names):
        return [logging.getLogger(f"tests.{name}") for name in names]

    for module in (ms.tir_integration, ms.relax_integration):
        monkeypatch.setattr(module, "get_loggers_from_work_dir", loggers)


def options(checked=None, **more):
    return {
        "max_trials_global": 4,
        "num_trials_per_iter": 4,
        **(checked or CheckedTuning(config=QUICK)).options(),
        "strategy": ms.search_strategy.EvolutionarySearch(**SEARCH),
        "cost_model": ms.cost_model.RandomModel(seed=1),  # else the state of numpy decides
        "seed": 1,
        **more,
    }


def plans_of(database):
    out = []
    for record in database.get_all_tuning_records():
        if record.is_valid() if hasattr(record, "is_valid") else float(record.run_secs[0]) < 1e9:
            workload, body = record.workload.as_json(), record.as_json()
            out += Entry(record_digest(workload, body), workload, body, None).plans
    return out


def test_tune_tir_with_our_space_beside_the_default_rules(tmp_path):
    database = ms.tune_tir(
        mixed,
        CPU,
        str(tmp_path),
        space=scan_space(CPU, others=True),
        num_tuning_cores=1,
        **options(),
    )
    assert len({str(plan) for plan in plans_of(database)}) >= 2
    scheduled = replay(database, mixed, CPU)
    assert scheduled is not None
    args = [tvm.runtime.tensor(X) for _ in range(3)]
    tvm.compile(scheduled.with_attr("global_symbol", "main"), target=CPU)["main"](*args)
    np.testing.assert_array_equal(args[2].numpy(), WANT)


def test_tune_tir_with_the_hook_and_tvms_own_space(tmp_path):
    register_hooks()
    sch = Schedule(tvm.IRModule({"main": mixed}))
    sch.annotate(sch.get_sblock("scan"), "schedule_rule", "tvm_scan")
    hooked = sch.mod["main"]
    database = ms.tune_tir(hooked, CPU, str(tmp_path), num_tuning_cores=1, **options())
    assert plans_of(database)
    scheduled = replay(database, hooked, CPU)
    assert scheduled is not None
    args = [tvm.runtime.tensor(X) for _ in range(3)]
    tvm.compile(scheduled.with_attr("global_symbol", "main"), target=CPU)["main"](*args)
    np.testing.assert_array_equal(args[2].numpy(), WANT)


def test_a_plan_for_another_processor_is_no_candidate():
    """TVM tells no rule the target: a hook may have drawn what only this machine has."""
    sch = Schedule(tvm.IRModule({"main": mixed}))
    plan = ScanPlan.parse("cpu/three_phase(chunks=8, time_vector=16, nontemporal=True)")
    annotate(sch, sch.get_sblock("scan"), plan)
    checked = CheckedTuning(config=QUICK)
    results = {}
    for processor in ("x86-64", "x86-64-v3"):
        target = Target({"kind": "llvm", "num-cores": 2, "mcpu": processor})
        (results[processor],) = checked.build([ms.builder.BuilderInput(sch.mod, target)])
    assert "expected a target with AVX" in str(results["x86-64"].error_msg)
    assert results["x86-64-v3"].error_msg is None


@I.ir_module(s_tir=True)
class Model:
    @T.prim_func(s_tir=True)
    def running_sum(X: T.Buffer((8, 200), "float32"), Y: T.Buffer((8, 200), "float32")):
        T.func_attr({"op_pattern": 8})
        for b, t in T.grid(8, 200):
            with T.sblock("scan"):
                vb = T.axis.spatial(8, b)
                vt = T.axis.scan(200, t)
                Y[vb, vt] = T.if_then_else(vt > 0, Y[vb, vt - 1], T.float32(0)) + X[vb, vt]

    @R.function
    def main(x: R.Tensor((8, 200), "float32")) -> R.Tensor((8, 200), "float32"):
        cls = Model
        with R.dataflow():
            y = R.call_tir(cls.running_sum, (x,), R.Tensor((8, 200), "float32"))
            R.output(y)
        return y


@I.ir_module(s_tir=True)
class Long:
    """Two tasks of one shape, in which nearly every plan combines."""

    @T.prim_func(s_tir=True)
    def total(X: T.Buffer((1, 4096), "float32"), Y: T.Buffer((1, 4096), "float32")):
        T.func_attr({"op_pattern": 8})
        for b, t in T.grid(1, 4096):
            with T.sblock("scan"):
                vb = T.axis.spatial(1, b)
                vt = T.axis.scan(4096, t)
                Y[vb, vt] = T.if_then_else(vt > 0, Y[vb, vt - 1], T.float32(0)) + X[vb, vt]

    @T.prim_func(s_tir=True)
    def largest(X: T.Buffer((1, 4096), "float32"), Y: T.Buffer((1, 4096), "float32")):
        T.func_attr({"op_pattern": 8})
        for b, t in T.grid(1, 4096):
            with T.sblock("scan"):
                vb = T.axis.spatial(1, b)
                vt = T.axis.scan(4096, t)
                Y[vb, vt] = T.max(T.if_then_else(vt > 0, Y[vb, vt - 1], T.float32(-9)), X[vb, vt])

    @R.function
    def main(x: R.Tensor((1, 4096), "float32")) -> R.Tensor((1, 4096), "float32"):
        cls = Long
        with R.dataflow():
            y = R.call_tir(cls.total, (x,), R.Tensor((1, 4096), "float32"))
            z = R.call_tir(cls.largest, (y,), R.Tensor((1, 4096), "float32"))
            R.output(z)
        return z


def break_sums(monkeypatch):
    """Chunks of a sum forget what was before them; those of a maximum do not."""
    right = Reduce.combine, Reduce.plainly

    def combine(self, earlier, later):
        return later if self.op == "add" else right[0](self, earlier, later)

    monkeypatch.setattr(Reduce, "combine", combine)
    monkeypatch.setattr(
        Reduce, "plainly", lambda self: None if self.op == "add" else right[1](self)
    )


def test_tune_relax_reports_a_wrong_candidate_and_keeps_no_record(tmp_path, monkeypatch, caplog):
    break_sums(monkeypatch)
    checked = CheckedTuning(config=QUICK)
    with caplog.at_level(logging.ERROR, "tvm_scan"):
        database = ms.relax_integration.tune_relax(
            mod=Long,
            params={},
            target=CPU,
            work_dir=str(tmp_path),
            space=scan_space(CPU),
            **options(checked) | {"max_trials_global": 12, "num_trials_per_iter": 6},
        )
    assert checked.wrong
    assert all(f"{WRONG}: expected" in text for text in checked.wrong)
    assert caplog.text.count(WRONG) == len(checked.wrong)
    found = {"add": set(), "max": set()}
    for record in database.get_all_tuning_records():
        op = "max" if "T.max" in record.workload.mod.script() else "add"
        workload, body = record.workload.as_json(), record.as_json()
        entry = Entry(record_digest(workload, body), workload, body, None)
        found[op] |= {str(plan) for plan in entry.plans}
        assert float(record.run_secs[0]) < 1e9
    combining = ("three_phase", "time_vector")
    assert not any(word in plan for plan in found["add"] for word in combining)
    assert any(word in plan for plan in found["max"] for word in combining)


def test_the_hook_reports_a_wrong_candidate(tmp_path, monkeypatch):
    break_sums(monkeypatch)
    register_hooks()
    sch = Schedule(tvm.IRModule({"main": Long["total"].without_attr("op_pattern")}))
    sch.annotate(sch.get_sblock("scan"), "schedule_rule", "tvm_scan")
    checked = CheckedTuning(config=QUICK)
    database = ms.tune_tir(
        sch.mod["main"], CPU, str(tmp_path), num_tuning_cores=1, **options(checked)
    )
    assert checked.wrong
    assert len(plans_of(database)) + len(checked.wrong) <= 4
    assert not any("three_phase" in str(plan) for plan in plans_of(database))


def test_tune_relax_and_apply_the_database(tmp_path):
    database = ms.relax_integration.tune_relax(
        mod=Model,
        params={},
        target=CPU,
        work_dir=str(tmp_path),
        space=scan_space(CPU),
        **options(),
    )
    assert plans_of(database)
    with CPU, database:
        applied = relax.transform.MetaScheduleApplyDatabase()(Model)
    annotated = applied["running_sum"].script()
    assert "tvm_scan.plan.algorithm" in annotated
    expanded = ExpandScans()(applied)
    assert "tvm_scan.plan.algorithm" not in expanded["running_sum"].script()
    vm = relax.VirtualMachine(tvm.compile(expanded, target=CPU), tvm.cpu())
    np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(X)).numpy(), np.cumsum(X, 1))
