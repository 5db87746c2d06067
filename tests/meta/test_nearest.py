"""Records for other sizes than their own: keys, buckets, checks, and who asks."""

import json

import numpy as np
import pytest
import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tests.meta.test_database import FACTS
from tests.relax.test_passes import module
from tests.support.compiled import compile_cached
from tvm_scan import ScanPlan, extract, library, parallelize
from tvm_scan.meta import RecordStore, plan_for
from tvm_scan.meta.search.candidates import candidate_of
from tvm_scan.meta.store.failure import RecordError
from tvm_scan.meta.store.nearest import tuned_function
from tvm_scan.relax import ParallelizeScans
from tvm_scan.schedules.choose.nearest import Known, nearest
from tvm_scan.schedules.choose.shape_key import shape_key
from tvm_scan.schedules.common.sizes import sizes_of
from tvm_scan.schedules.splice import ensure_blocks

CPU = Target.from_device("cpu")
CHUNKS = ScanPlan.of("cpu", "three_phase", chunks=8)
PAIRS = ScanPlan.of("cpu", "lanes", lane_block=2)


def commit(store, func, plan, seconds, target=CPU, facts=FACTS):
    mod = tvm.IRModule({"main": ensure_blocks(func)})
    made = candidate_of(mod, (plan,), target)
    record = ms.database.TuningRecord(
        made.measure.sch.trace,
        ms.database.Workload(mod),
        [seconds],
        target,
        made.measure.args_info,
    )
    return store.commit(mod, record, facts)


@pytest.fixture
def store(tmp_path):
    made = RecordStore(tmp_path / "records")
    commit(made, library.cumsum(4, 1000), PAIRS, 1e-6)
    commit(made, library.cumsum(4, 1000), CHUNKS, 2e-6)
    commit(made, library.cumsum(1, 1 << 16), CHUNKS, 3e-5)
    return made


def plan(store, func, target=CPU):
    return plan_for(extract(func), target, store)


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        (library.cumsum, {}),
        (library.cumsum, {"reverse": True}),
        (library.cumsum, {"axis": 0}),
        (library.linear_recurrence, {"layout": "ld"}),
        (library.linear_recurrence, {"final_state": True}),
        (library.ema, {}),
    ],
)
def test_a_key_leaves_the_sizes_out(factory, options):
    keys = {
        shape_key(extract(factory(*sizes, **options)))
        for sizes in ((4, 4096), (17, 100), (None, None), (4, None))
    }
    assert len(keys) == 1


def test_a_key_tells_recurrences_apart():
    functions = [
        library.cumsum(4, 100),
        library.cumsum(4, 100, reverse=True),
        library.cumsum(4, 100, axis=0),
        library.cumsum(4, 100, dtype="float64"),
        library.cummax(4, 100),
        library.cumprod(4, 100),
        library.linear_recurrence(4, 100),
        library.linear_recurrence(4, 100, initial_state=True),
        library.ema(4, 100),
        library.selective_scan(1, 4, 100, 8),
        library.selective_scan(1, 4, 100, 16),
    ]
    assert len({shape_key(extract(f)) for f in functions}) == len(functions)
    assert sizes_of(extract(library.cumsum(4, 100))) == (4, 100)
    assert sizes_of(extract(library.cumsum(4, None))) == (4, None)


def test_exact_hits_win_and_near_ones_follow(store):
    assert plan(store, library.cumsum(4, 1000)) == PAIRS
    assert plan(store, library.cumsum(5, 900)) == PAIRS
    assert plan(store, library.cumsum(1, 40000)) == CHUNKS
    assert plan(store, library.cumsum(4, None)) == PAIRS
    assert plan(store, library.cumsum(1, 1 << 20)) is None, "four powers of two away"
    assert plan(store, library.cumsum(64, 1000)) is None
    assert plan(store, library.cumprod(4, 1000)) is None
    commit(store, library.cumsum(5, 900), CHUNKS, 1.0)
    assert plan(store, library.cumsum(5, 900)) == CHUNKS, "however slow: it is of this function"


def test_another_target_version_or_machine_is_not_used(store):
    func = library.cumsum(5, 900)
    assert plan(store, func, Target({"kind": "llvm", "num-cores": 3})) is None
    path = store.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for name, value in (("tvm", "0.26.0"), ("cores", 96)):
        changed = {k: {**v, name: value} for k, v in manifest["records"].items()}
        path.write_text(json.dumps({**manifest, "records": changed}))
        assert plan(store, func) is None
    path.write_text(json.dumps(manifest))
    assert plan(store, func) == PAIRS


def test_a_plan_is_checked_for_the_new_shape():
    found = extract(library.cumsum(4, 40))
    key = shape_key(found)
    wide = Known(key, 4, 40, CHUNKS.with_(chunks=32), 1e-9)
    cuda = Known(key, 4, 40, ScanPlan.of("cuda", "lanes", threads_per_block=32), 1e-9)
    fits = Known(key, 4, 64, PAIRS, 1.0)
    assert nearest([wide, cuda, fits], CPU, found) == fits
    assert nearest([wide, cuda], CPU, found) is None


def test_a_missing_database_is_an_error(tmp_path):
    with pytest.raises(RecordError, match="expected database_tuning_record"):
        plan_for(extract(library.cumsum(4, 10)), CPU, tmp_path / "nothing")


def test_a_function_is_scheduled_by_its_nearest_record(store):
    func = library.cumsum(1, 40000)
    tuned = tuned_function(store, func, CPU)
    assert (tuned.plans, tuned.exact) == ((CHUNKS,), False)
    assert tuned.records[0] in {entry.digest for entry in store.entries()}
    assert tuned_function(store, library.cumsum(4, 1000), CPU).exact
    assert tuned_function(store, library.cumprod(4, 1000), CPU) is None
    x = np.random.default_rng(0).integers(-3, 4, (1, 40000)).astype("float32")
    y = tvm.runtime.tensor(np.zeros_like(x))
    built = compile_cached(tuned.func.with_attr("global_symbol", "main"), target=CPU)
    built["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), np.cumsum(x, 1))


def test_relax_uses_the_nearest_record(store):
    commit(store, library.linear_recurrence(1, 30000), CHUNKS, 1e-6)
    want = parallelize(library.linear_recurrence(1, 40000), CPU, CHUNKS)
    got = ParallelizeScans(CPU, store)(module(1, 40000))["recurrence"]
    tvm.ir.assert_structural_equal(got.body, want.body)
