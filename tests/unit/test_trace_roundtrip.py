"""The decisions survive in the trace: trace -> JSON -> replay -> expand is the scheduled module."""

import json

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace
from tvm.target import Target

from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET
from tvm_scan import ScanPlan, expand_scans, library, parallel_scan
from tvm_scan.meta.store.replay import replay
from tvm_scan.schedules.splice import blocks_in, ensure_blocks

CPU = Target.from_device("cpu")
PLANS = {
    "lanes": ScanPlan.of("cpu", "lanes"),
    "vector": ScanPlan.of("cpu", "lanes", lane_block=8, vectorize=True),
    "chunks": ScanPlan.of("cpu", "three_phase", chunks=8, lane_block=4),
    "sequential": ScanPlan.of("cpu", "sequential"),
    "thread per lane": ScanPlan.of("cuda", "lanes", threads_per_block=64),
    "tiles": ScanPlan.of("cuda", "serial_tiles", threads_per_block=64, items_per_thread=4),
    "phases": ScanPlan.of("cuda", "three_phase", threads_per_block=32, items_per_thread=2),
}
FUNCS = {
    "history": lambda: library.linear_recurrence(3, 100),
    "state": lambda: library.linear_recurrence(3, 100, initial_state=True, final_state=True),
    "reverse": lambda: library.cumsum(3, 100, reverse=True, exclusive=True),
    "selective scan": lambda: library.selective_scan(1, 4, 50, 4),
}
BLOCK = {"history": "scan", "state": "scan", "reverse": "scan", "selective scan": "state"}


def target_of(plan):
    return CUDA_TARGET if plan.device == "cuda" else CPU


def annotated_only(sch):
    """The schedule's trace applied to a fresh schedule, through JSON text."""
    text = json.dumps(tvm_ffi_to_python(sch.trace.as_json()))
    fresh = s_tir.Schedule(sch_source[id(sch)], debug_mask="all")
    Trace.apply_json_to_schedule(json.loads(text), fresh)
    return fresh


def tvm_ffi_to_python(value):
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if hasattr(value, "items"):
        return {str(k): tvm_ffi_to_python(v) for k, v in value.items()}
    if hasattr(value, "value"):
        return value.value
    return [tvm_ffi_to_python(v) for v in value]


sch_source = {}


def scheduled(func, block, plan):
    mod = tvm.IRModule({"main": ensure_blocks(func)})
    sch = s_tir.Schedule(mod, debug_mask="all")
    sch_source[id(sch)] = mod
    handle = sch.get_sblock(block)
    parallel_scan(sch, handle, plan, target=target_of(plan))
    return sch, handle


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize("name", FUNCS)
def test_trace_json_replay_expand(name, plan):
    sch, _ = scheduled(FUNCS[name](), BLOCK[name], plan)
    fresh = annotated_only(sch)
    if plan.algorithm != "sequential":
        assert not any(b.name_hint.startswith("scan_") for b in blocks_in(fresh.mod["main"].body))
    expand_scans(fresh)
    tvm.ir.assert_structural_equal(fresh.mod, sch.mod)


def test_the_trace_holds_stock_scalar_annotations_only():
    sch, _ = scheduled(FUNCS["history"](), "scan", PLANS["chunks"])
    names = {str(inst.kind.name) for inst in sch.trace.insts}
    assert names <= {"GetSBlock", "GetBlock", "Annotate"}, names


def test_the_users_block_stays_valid():
    sch, handle = scheduled(FUNCS["history"](), "scan", PLANS["chunks"])
    assert sch.get(handle).name_hint == "scan_replay"
    loops = sch.get_loops(handle)
    assert len(loops) == 1


def test_neighbours_stay_valid_and_stock_primitives_work_on_the_result():
    func = library.cumsum(3, 100, axis=0, exclusive=True)
    mod = tvm.IRModule({"main": func})
    sch = s_tir.Schedule(mod, debug_mask="all")
    init, scan = sch.get_sblock("init"), sch.get_sblock("scan")
    parallel_scan(sch, scan, PLANS["chunks"], target=CPU)
    assert sch.get(init).name_hint == "init"
    outer, _ = sch.split(sch.get_loops(init)[0], [None, 2])
    sch.parallel(outer)
    sch.annotate(sch.get_loops(scan)[0], "pragma_test", 1)
    x = np.random.default_rng(0).integers(-9, 9, (100, 3)).astype("float32")
    y = tvm.runtime.tensor(np.zeros_like(x))
    compile_cached(sch.mod["main"], target=CPU)(tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), np.cumsum(x, 0) - x)


def test_annotated_but_not_expanded_is_the_loop_and_right():
    sch, _ = scheduled(FUNCS["history"](), "scan", PLANS["chunks"])
    plain = annotated_only(sch).mod["main"]
    rng = np.random.default_rng(0)
    a, x = rng.random((2, 3, 100)).astype("float32")
    h = tvm.runtime.tensor(np.zeros_like(x))
    compile_cached(plain, target=CPU)(tvm.runtime.tensor(a), tvm.runtime.tensor(x), h)
    want, _ = library.linear_recurrence_reference(a.astype("float64"), x.astype("float64"))
    np.testing.assert_allclose(h.numpy(), want, 1e-5)


def test_stock_database_on_disk(tmp_path):
    func = FUNCS["history"]()
    sch, _ = scheduled(func, "scan", PLANS["chunks"])
    paths = {
        "path_workload": str(tmp_path / "workload.json"),
        "path_tuning_record": str(tmp_path / "record.json"),
    }
    database = ms.database.JSONDatabase(**paths)
    workload = database.commit_workload(sch_source[id(sch)])
    args = ms.arg_info.ArgInfo.from_prim_func(func)
    database.commit_tuning_record(ms.database.TuningRecord(sch.trace, workload, [1.0], CPU, args))
    reopened = ms.database.JSONDatabase(**paths)
    found = replay(reopened, func, CPU)
    tvm.ir.assert_structural_equal(found.body, sch.mod["main"].body)
    assert found.attrs["tirx.is_scheduled"]
    assert replay(reopened, library.cumsum(2, 7), CPU) is None
