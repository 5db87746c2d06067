"""Records of ``tvm_scan.meta`` are what the Relax passes schedule by, where they fit."""

import json
import logging
from functools import partial

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tests.meta.test_search import pretend
from tests.support.compiled import compile_cached
from tvm_scan import ScanPlan, default_plan, extract, library, loops
from tvm_scan.meta import RecordStore
from tvm_scan.meta.search.candidates import candidate_of
from tvm_scan.meta.store.provenance import provenance
from tvm_scan.relax import FuseScans, ParallelizeScans, get_pipeline
from tvm_scan.relax.export import export
from tvm_scan.relax.operators import emit_along_axis
from tvm_scan.relax.tasks import scan_tasks
from tvm_scan.schedules.splice import ensure_blocks

CPU = Target.from_device("cpu")
ROWS, LENGTH = 4, 4096
FUNC = library.cumsum(ROWS, LENGTH).without_attr("global_symbol")
PLAN = ScanPlan.of("cpu", "three_phase", chunks=7)


def module(func=FUNC, activation=False, length=LENGTH):
    builder = relax.BlockBuilder()
    kind = relax.TensorType([ROWS, length], "float32")
    x = relax.Var("x", kind)
    name = builder.add_func(func, "cumsum")
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.call_tir(name, [x], kind))
            y = builder.emit(relax.op.negative(y)) if activation else y
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


def commit(store, func, target, plan=PLAN):
    mod = tvm.IRModule({"main": ensure_blocks(func)})
    made = candidate_of(mod, (plan,), target)
    record = ms.database.TuningRecord(
        made.measure.sch.trace, ms.database.Workload(mod), [1e-9], target, made.measure.args_info
    )
    assert store.commit(mod, record, provenance(target, 0))


def test_what_tune_found_is_used(tmp_path, caplog):
    tasks, _ = scan_tasks(module(), CPU)
    pretend(tmp_path / "records", tasks, trials=3)
    store = RecordStore(tmp_path / "records")
    commit(store, tasks["cumsum"], CPU)  # faster than whatever was found
    with caplog.at_level(logging.INFO, logger="tvm_scan"):
        after = ParallelizeScans(CPU, store)(module())
    assert "cumsum is scheduled from a tuning record" in caplog.text
    assert "7" in after["cumsum"].script().split("scan_reduce")[0], "seven chunks a row"
    assert "scan_reduce" not in ParallelizeScans(CPU)(module()).script()
    x = np.random.default_rng(0).integers(-3, 4, (ROWS, LENGTH)).astype("float32")
    built = compile_cached(
        module(), target=CPU, relax_pipeline=get_pipeline(CPU, store), plainly=True
    )
    got = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(got, np.cumsum(x, 1))


def test_every_function_that_is_scheduled_is_tuned(tmp_path):
    """The operators of two results, too, and what a model walks from its end."""
    builder = relax.BlockBuilder()
    make = partial(loops.extremum, dtype="float32")
    x = relax.Var("x", relax.TensorType([ROWS, LENGTH], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            outs = [
                emit_along_axis(builder, partial(make, smallest=i == 1), [x], 1, n)[i]
                for i, n in enumerate(("cummax", "cummin"))
            ]
            back = builder.emit(relax.op.cumsum(builder.emit(relax.op.flip(x, 1)), 1))
            outs.append(builder.emit(relax.op.flip(back, 1)))
            out = builder.emit_output(relax.Tuple(outs))
        builder.emit_func_output(out)
    mod = builder.get()
    tasks, symbolic = scan_tasks(mod, CPU)
    assert (sorted(tasks), symbolic) == (["cummax", "cummin", "cumsum"], {})
    pretend(tmp_path / "records", tasks, trials=2)
    path = export(mod, CPU, tmp_path / "model", database=RecordStore(tmp_path / "records"))
    scans = json.loads(path.read_text())["scans"]
    assert sorted(scan["function"] for scan in scans) == sorted(tasks)
    assert all("from a tuning record" in scan["plan"] for scan in scans)


@pytest.mark.parametrize(
    "what", ["another function", "another target", "another length", "another build"]
)
def test_without_a_record_that_fits_the_default_plan_is_used(tmp_path, caplog, what):
    store = RecordStore(tmp_path / "records")
    if what == "another function":
        commit(store, library.cumprod(ROWS, LENGTH), CPU)
    elif what == "another target":
        commit(store, FUNC, Target({"kind": "llvm", "num-cores": 3}))
    elif what == "another length":
        commit(store, library.cumsum(ROWS, 512).without_attr("global_symbol"), CPU)
    elif what == "another build":
        commit(store, FUNC, CPU)
        path = store.folder / "manifest.json"
        manifest = json.loads(path.read_text())
        for facts in manifest["records"].values():
            facts["tvm"] = "0.26.1"
        path.write_text(json.dumps(manifest))
        store = RecordStore(tmp_path / "records")
    with caplog.at_level(logging.INFO, logger="tvm_scan"):
        after = ParallelizeScans(CPU, store)(module())
    tvm.ir.assert_structural_equal(after, ParallelizeScans(CPU)(module()))
    assert "cumsum has no tuning record for this target: its default plan" in caplog.text


def test_the_manifest_says_where_a_plan_is_from(tmp_path):
    store = RecordStore(tmp_path / "records")
    commit(store, library.cumprod(ROWS, LENGTH), CPU)
    default = str(default_plan(CPU, extract(FUNC)))
    for expected in (default, "from a tuning record"):
        path = export(module(), CPU, tmp_path / "model", database=store)
        (scan,) = json.loads(path.read_text())["scans"]
        assert scan["plan"] == expected or scan["plan"].endswith(f" {expected}")
        commit(store, FUNC, CPU)


def test_a_tuned_function_is_not_fused_and_a_fused_one_is_tuned(tmp_path):
    mod = module(activation=True)
    (name,) = scan_tasks(mod, CPU)[0]
    assert name == "fused_tir_negative_cumsum"
    store = RecordStore(tmp_path / "records")
    commit(store, FUNC, CPU)
    tvm.ir.assert_structural_equal(FuseScans(CPU, store)(mod), mod)
    commit(RecordStore(tmp_path / "fused"), scan_tasks(mod, CPU)[0][name], CPU)
    fused = RecordStore(tmp_path / "fused")
    after = ParallelizeScans(CPU, fused)(FuseScans(CPU, fused)(mod))
    assert "scan_reduce" in after[name].script()
