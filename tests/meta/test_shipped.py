"""Shipped records: written by the bench, used without being asked for, on their machine alone."""

import base64
import json

import pytest
import tvm
from tvm import tirx
from tvm.target import Target

import bench.tuned
from bench import tuned_torch
from bench.tuned import WORKLOADS, Case, Row, write_records
from bench.tuned_torch import _SUM, TORCH_WORKLOADS
from tests import ROOT
from tests.meta.test_nearest import CHUNKS, PAIRS, commit
from tests.relax.test_passes import module
from tvm_scan import Recurrence, _resources, default_plan, extract, library, parallelize
from tvm_scan.meta import RecordStore
from tvm_scan.meta.store.nearest import shapes_of
from tvm_scan.meta.store.summary import read_summaries
from tvm_scan.relax import ParallelizeScans
from tvm_scan.schedules import ScanPlan
from tvm_scan.schedules.choose import shipped
from tvm_scan.schedules.choose.plan_of import plan_of
from tvm_scan.schedules.choose.shape_key import shape_key
from tvm_scan.schedules.choose.shipped import machine_key, shipped_plan
from tvm_scan.schedules.common.sizes import sizes_of

CPU = Target.from_device("cpu")
QUICK = Case("linear_recurrence", (1, 30000), {})
SLOW = Case("linear_recurrence", (1, 2000), {})


def row(case, worth):
    return Row(case.label, 3.0, 2.0, 1.0, 2.0, 1.9, 2.1, "", "", worth)


@pytest.fixture
def records(tmp_path, monkeypatch):
    """A folder of records of this machine, in place of those that are installed."""
    work = RecordStore(tmp_path / "work")
    facts = {**commit(work, library.cumsum(1, 8), PAIRS, 1.0).facts, "host": "mine"}
    made = []
    for case, plan, worth in ((QUICK, CHUNKS, True), (SLOW, PAIRS, False)):
        found = extract(case.func)
        shape = (shape_key(found), *sizes_of(found))
        about = {**facts, "plans": [str(plan)], "shapes": [shape]}
        made.append((case, commit(work, case.func, plan, 1e-6, facts=about), row(case, worth)))
    folder = write_records(tmp_path / "records", CPU, made)

    def show():
        texts = ((folder / "manifest.json").read_text(),)
        monkeypatch.setattr(shipped, "shipped_manifests", lambda: [json.loads(t) for t in texts])
        shipped._known.cache_clear()

    show()
    monkeypatch.delenv("TVM_SCAN_RECORDS", raising=False)
    yield folder, show
    shipped._known.cache_clear()


def test_what_is_written(records):
    folder, _ = records
    names = {path.name for path in folder.iterdir()}
    assert names == {"manifest.json", "database_workload.json", "database_tuning_record.json"}
    assert folder.name == f"llvm-{machine_key(CPU)['processor']}-{machine_key(CPU)['cores']}"
    store = RecordStore(folder)
    assert store.best(QUICK.func, CPU).plans == [CHUNKS]
    assert store.best(SLOW.func, CPU) is None, "it was no gain"
    manifest = json.loads((folder / "manifest.json").read_text())
    (facts,) = manifest["records"].values()
    assert facts["seconds"] < facts["default_seconds"]
    assert "host" not in facts
    assert len(manifest["defaults"]) == 1
    (line,) = (folder / "database_workload.json").read_text().splitlines()
    assert str(ROOT).encode() not in base64.b64decode(json.loads(line)[1])


def test_the_bench_tunes_measures_and_writes(tmp_path, monkeypatch, capsys):
    asked = []

    def tuned(program, target, folder, **options):
        ((name, func),) = program.items()
        asked.append((name, options["trials"]))
        commit(RecordStore(folder), func, PAIRS, 1e-6)

    monkeypatch.setattr(bench.tuned, "tune", tuned)
    words = ["--only", "cumsum 1x4096,torch:affine 1x64x", "--seconds", "0", "--trials", "5"]
    words += ["--json", str(tmp_path / "a.json"), "--markdown", str(tmp_path / "a.md")]
    words += ["--write-records", "--records", str(tmp_path / "records")]
    words += ["--database", str(tmp_path / "work")]
    assert bench.tuned.main(words) == 0
    assert asked == [("cumsum 1x4096", 5), ("torch:affine 1x64x4096", 5)]
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [row["tuned"] for row in rows] == [str(PAIRS)] * 2
    assert all(row["least"] <= row["gain"] <= row["most"] for row in rows)
    page = (tmp_path / "a.md").read_text()
    assert page.count(f"| `{PAIRS}` |") == 2
    (folder,) = (tmp_path / "records").iterdir()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert len(manifest["records"]) == sum(row["worth"] for row in rows)
    assert len(manifest["records"]) + len(manifest["defaults"]) == 2
    assert bench.tuned.main(words) == 0
    assert len(asked) == 2, "what is on record is not tuned again"


def test_it_is_used_without_being_asked_for(records):
    func = library.linear_recurrence(1, 40000)
    want = parallelize(func, CPU, CHUNKS)
    tvm.ir.assert_structural_equal(parallelize(func, CPU), want)
    got = ParallelizeScans(CPU)(module(1, 40000))["recurrence"]
    tvm.ir.assert_structural_equal(got.body, want.body)
    # Where the default was measured to be the fastest, a neighbour's plan does not replace it.
    near = extract(library.linear_recurrence(1, 2500))
    assert plan_of(near, CPU) == default_plan(CPU, near)
    other = extract(library.cumsum(1, 40000))
    assert plan_of(other, CPU) == default_plan(CPU, other)


def test_it_is_used_on_its_machine_and_version_alone(records, monkeypatch):
    folder, show = records
    found = extract(library.linear_recurrence(1, 30000))
    assert shipped_plan(CPU, found) == CHUNKS
    assert shipped_plan(Target({"kind": "llvm", "mcpu": "x86-64-v2"}), found) is None
    assert shipped_plan(Target({**CPU.export(), "num-cores": 64}), found) is None
    assert shipped_plan(CPU, extract(library.linear_recurrence(1, None))) is None
    monkeypatch.setenv("TVM_SCAN_RECORDS", "off")
    assert shipped_plan(CPU, found) is None
    monkeypatch.delenv("TVM_SCAN_RECORDS")
    path = folder / "manifest.json"
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "tvm": "0.26.0"}))
    show()
    assert shipped_plan(CPU, found) is None
    path.write_text(before.replace("chunks=8", "pieces=8"))
    show()
    assert shipped_plan(CPU, found) is None, "a plan of another version's words"
    path.write_text(before)
    show()
    assert shipped_plan(CPU, found) == CHUNKS


def test_torch_functions_take_recorded_plans_at_their_first_call(tmp_path, monkeypatch):
    """Those of a user's records, then those that are shipped; never of another machine."""
    torch = pytest.importorskip("torch")
    import tvm_scan.torch as ts
    from tvm_scan.torch.kernels import cache as kernels
    from tvm_scan.torch.kernels import records as torch_records

    for name in ("_calls", "_libraries"):
        monkeypatch.setattr(kernels, name, {})
    monkeypatch.setenv("TVM_SCAN_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setenv("TVM_SCAN_RECORDS", "off")
    x = torch.rand(3, 700)

    def plan_taken():
        kernels._libraries.clear()
        kernels.forget_plans()
        torch.testing.assert_close(ts.cumsum(x, 1), x.cumsum(1))
        return [ScanPlan.parse(plan) for _, plan, _ in kernels._libraries]

    case = Case("torch:cumulative sum", (1, 2, 512), _SUM)
    found = extract(case.func)
    default = default_plan(CPU, found)
    shape = (shape_key(found), *sizes_of(found))
    theirs = commit(
        RecordStore(tmp_path / "work"),
        case.func,
        CHUNKS,
        1e-6,
        facts={
            **commit(RecordStore(tmp_path / "any"), library.cumsum(1, 8), PAIRS, 1.0).facts,
            "plans": [str(CHUNKS)],
            "shapes": [shape],
        },
    )
    folder = write_records(tmp_path / "shipped", CPU, [(case, theirs, row(case, True))])
    text = (folder / "manifest.json").read_text()
    monkeypatch.setattr(shipped, "shipped_manifests", lambda: [json.loads(text)])
    monkeypatch.setattr(torch_records, "shipped_text", lambda: (text,))
    shipped._known.cache_clear()
    assert plan_taken() == [default]
    monkeypatch.delenv("TVM_SCAN_RECORDS")
    assert plan_taken() == [CHUNKS]

    (name,) = loops = ts.loops_of(lambda: ts.cumsum(x.requires_grad_(), 1))
    assert name.startswith("cumulative(")
    tvm.ir.assert_structural_equal(loops[name], case.func)
    commit(RecordStore(tmp_path / "own"), loops[name], PAIRS, 1e-6)
    ts.use_records(tmp_path / "own")
    assert plan_taken() == [PAIRS]
    ts.use_records(None)
    assert plan_taken() == [CHUNKS]
    with pytest.raises(ValueError, match=r"expected a folder with manifest\.json"):
        ts.use_records(tmp_path)
    monkeypatch.setenv("TVM_SCAN_RECORDS", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="expected records in the folder that TVM_SCAN_RECORDS"):
        plan_taken()
    shipped._known.cache_clear()


@pytest.mark.parametrize("length", [1, 40])
def test_a_delta_rule_of_torch_takes_the_plan_of_its_record(length, monkeypatch, tmp_path):
    """In its own walk, whose decisions they are; a plan that cuts time is none for it."""
    torch = pytest.importorskip("torch")
    import tvm_scan.torch as ts
    from tvm_scan.torch.kernels import cache as kernels

    for name in ("_calls", "_libraries"):
        monkeypatch.setattr(kernels, name, {})
    monkeypatch.setenv("TVM_SCAN_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setenv("TVM_SCAN_RECORDS", "off")
    k, v = torch.nn.functional.normalize(torch.rand(1, length, 2, 16), dim=-1), torch.rand(2, 32)
    v, beta = v.expand(1, length, 2, 32).contiguous(), torch.rand(1, length, 2)
    results = []

    def plan_taken():
        kernels._libraries.clear()
        kernels.forget_plans()
        results.append(ts.delta_rule(k, k, v, beta, output_final_state=True))
        return [plan for _, plan, _ in kernels._libraries]

    predicted = plan_taken()
    (name,) = loops = ts.loops_of(lambda: ts.delta_rule(k, k, v, beta))
    assert name.startswith("delta_rule(")

    def taken_with(plan, folder):
        commit(RecordStore(tmp_path / folder), loops[name], ScanPlan.parse(plan), 1e-6)
        ts.use_records(tmp_path / folder)
        return plan_taken()

    walk = "cpu/delta_walk(columns=16, steps=2, strip=4, vector=4, threads=True)"
    measured = ["serial columns=16 strip=4 vector=4 threads=True"]
    assert taken_with(walk, "walk") == measured != predicted
    assert taken_with("cpu/delta_walk(columns=16, chunks=2, threads=True)", "cut") == predicted
    for one in results[1:]:
        torch.testing.assert_close(one, results[0])
    ts.use_records(None)


def test_loops_of_both_directions_can_be_tuned():
    """Names of the kernels, and no parameters that are numbers."""
    torch = pytest.importorskip("torch")
    import tvm_scan.torch as ts

    u, B = torch.rand(1, 3, 8).requires_grad_(), torch.rand(1, 2, 8)
    loops = ts.loops_of(lambda: ts.selective_scan(u, u, -torch.rand(3, 2), B, B).sum().backward())
    assert [name.partition("(")[0] for name in loops] == [
        "selective_forward",
        "selective_backward_chunk",
    ]
    for loop in loops.values():
        assert all(tirx.is_buffer_var(param) for param in loop.params)
        assert isinstance(extract(loop), Recurrence)


@pytest.mark.parametrize("workload", TORCH_WORKLOADS, ids=lambda w: f"{w[0]}-{w[1]}")
def test_what_is_tuned_for_torch_is_what_torch_asks_for(workload):
    """The same key as the kernel's, at sizes that a call can ask for."""
    pytest.importorskip("torch")
    from tvm_scan.torch.kernels.building import loop_of
    from tvm_scan.torch.kernels.spec import KernelSpec

    name, sizes, options = workload
    factory = name.removeprefix("torch:").split()[0]
    names = tuned_torch._SIZES.get(factory, tuned_torch._FRAME)
    spec = KernelSpec(factory, tuple(sorted(options.items())), names)
    assert all(size & (size - 1) == 0 for size in sizes)
    want, got = extract(loop_of(spec, sizes)), extract(Case(*workload).func)
    assert (shape_key(got), *sizes_of(got)) == (shape_key(want), *sizes_of(want))


def test_what_is_shipped_is_of_loops_that_are_still_built():
    """Else a loop was changed, and its records are asked for by nothing: tune it anew."""
    pytest.importorskip("torch")
    built = {shape for workload in WORKLOADS for shape in shapes_of(Case(*workload).func)}
    lost = [
        (manifest["machine"]["processor"], name, shape)
        for manifest in _resources.shipped_manifests()
        for name, shapes in (
            ("a default", manifest["defaults"]),
            *((facts["function"], facts["shapes"]) for facts in manifest["records"].values()),
        )
        for shape in shapes
        if tuple(shape) not in built
    ]
    assert not lost


def test_the_installed_records_can_be_read():
    for folder in (ROOT / "meta" / "records").iterdir():
        store = RecordStore(folder)
        assert len(store.entries()) == len(
            json.loads((folder / "manifest.json").read_text())["records"]
        )
        assert not store.rejected
        (folder / ".lock").unlink(missing_ok=True)
    manifests = _resources.shipped_manifests()
    assert manifests, "the folder meta/records is empty"
    for manifest in manifests:
        assert set(manifest["machine"]) == {"kind", "processor", "cores"}
        for facts in manifest["records"].values():
            assert facts["seconds"] * 1.04 < facts["default_seconds"]
            assert all(ScanPlan.parse(text) for text in facts["plans"])
            assert all(len(shape) == 3 for shape in facts["shapes"])
        assert all(len(shape) == 3 for shape in manifest["defaults"])
        assert all("host" not in facts for facts in manifest["records"].values())


def test_what_is_shipped_is_listed_without_tvm():
    """Every record has the summary of who wrote it: ``tvm-scan list`` is a table of JSON then."""
    folders = [path.parent for path in (ROOT / "meta" / "records").glob("*/manifest.json")]
    assert folders
    for folder in folders:
        summaries = read_summaries(folder)
        assert summaries is not None, folder
        assert all(one.plans and one.function for one in summaries), folder
