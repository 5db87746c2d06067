"""What public functions are given: names of targets and plans work, the rest is a clear error."""

import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.target import Target

from tests.programs.refused_programs import REFUSED
from tests.support.cuda_harness import CUDA_TARGET
from tvm_scan import (
    ScanPlan,
    default_plan,
    expand_scans,
    extract,
    library,
    parallel_scan,
    parallelize,
    verify,
)
from tvm_scan.errors import PlanError, RefusalError, ScanError
from tvm_scan.meta import plan_for, tune
from tvm_scan.relax import (
    FindScans,
    FuseScans,
    ParallelizeScans,
    export,
    get_pipeline,
    scan_passes,
)

LOOP = library.linear_recurrence(4, 1024)
FOUND = extract(LOOP)
REFUSAL = extract(REFUSED["sine"][0])
MODULE = tvm.IRModule({"main": LOOP, "other": LOOP})
EMPTY = tvm.IRModule({})


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("cpu", Target.from_device("cpu")),
        ("llvm", Target("llvm")),
        ("cuda", CUDA_TARGET),
        ("cuda:sm_90", CUDA_TARGET),
        ({"kind": "llvm", "mcpu": "znver4"}, Target({"kind": "llvm", "mcpu": "znver4"})),
        ('{"kind": "llvm", "mcpu": "znver4"}', Target({"kind": "llvm", "mcpu": "znver4"})),
        ({"kind": "cuda", "arch": "sm_90"}, CUDA_TARGET),
        ("nvidia/nvidia-h100", CUDA_TARGET),
    ],
    ids=str,
)
def test_a_target_by_its_name(name, target):
    plan = default_plan(target, FOUND)
    assert default_plan(name, FOUND) == plan
    plan.check(name, FOUND)
    want = parallelize(LOOP, target)
    tvm.ir.assert_structural_equal(parallelize(LOOP, name), want)
    tvm.ir.assert_structural_equal(parallelize(LOOP, name, str(plan)), want)
    tvm.ir.assert_structural_equal(parallelize(LOOP, name, default_plan_of(name)), want)
    tvm.ir.assert_structural_equal(ParallelizeScans(name)(MODULE), ParallelizeScans(target)(MODULE))


def default_plan_of(target):
    return lambda found: str(default_plan(target, found))


def test_a_plan_by_its_string():
    text = "cpu/three_phase(chunks=4)"
    sch = Schedule(library.linear_recurrence(4, 1000))
    applied = parallel_scan(sch, sch.get_sblock("scan"), text, target="cpu")
    assert applied == ScanPlan.parse(text)
    tvm.ir.assert_structural_equal(
        parallelize(LOOP, plan=text), parallelize(LOOP, plan=ScanPlan.parse(text))
    )
    kinds = {c.inputs for c in verify(LOOP, "cpu", text) if c.holds}
    assert {"random", "zeros"} <= kinds


def block(sch):
    return sch.get_sblock("scan")


SCHEDULE = Schedule(LOOP)
TARGETS = [
    ("banana", "expected a target, got 'banana' .*; pass a tvm.target.Target, 'cpu'"),
    ("llvm -mcpu=native", "expected a target, got 'llvm -mcpu=native'"),
    ("", "expected a target, got ''"),
    ("{kind}", "expected a target, got '{kind}'"),
    ({}, "expected a target, got {}"),
    (FOUND, "expected a target, got Recurrence"),
    (3, "expected a target, got int"),
]
PLANS = [
    (3, PlanError, "expected a ScanPlan or the string of one, got int"),
    (Target("llvm"), PlanError, "expected a ScanPlan or the string of one, got Target"),
    (LOOP, PlanError, "expected a ScanPlan or the string of one, got PrimFunc"),
    (REFUSAL, PlanError, "expected a ScanPlan or the string of one, got Refusal"),
    ("quickly", PlanError, r"expected device/algorithm\(field=value, ...\), got 'quickly'"),
    (lambda found: None, PlanError, "expected a ScanPlan or the string of one, got NoneType"),
    (lambda found: "cuda/lanes()", PlanError, "expected a plan for cpu, got device=cuda"),
]
FUNCTIONS = [
    (None, "expected a PrimFunc, got None; write the loop with @T.prim_func"),
    ("loop.py", "expected a PrimFunc, got str 'loop.py'"),
    (MODULE, r"got an IRModule with main, other; pass one function, mod\['main'\]"),
    (EMPTY, "got an IRModule without any"),
    (FOUND, "expected a PrimFunc, got Recurrence"),
    (lambda x: x, "expected a PrimFunc, got function"),
]
RECURRENCES = [
    (REFUSAL, RefusalError, r"expected a Recurrence, got a Refusal\n.*\[unsupported-step\]"),
    (LOOP, ScanError, r"expected a Recurrence, got PrimFunc; .* tvm_scan\.extract\(func\)"),
    (None, ScanError, "expected a Recurrence, got None"),
]


@pytest.mark.parametrize(("value", "message"), TARGETS, ids=repr)
def test_what_is_no_target(value, message, tmp_path):
    calls = {
        "default_plan": lambda: default_plan(value, FOUND),
        "parallelize": lambda: parallelize(LOOP, value),
        "parallel_scan": lambda: parallel_scan(SCHEDULE, block(SCHEDULE), target=value),
        "verify": lambda: verify(LOOP, value),
        "ScanPlan.check": lambda: ScanPlan.of("cpu", "lanes").check(value, FOUND),
        "tune": lambda: tune(LOOP, value, tmp_path / "records"),
        "plan_for": lambda: plan_for(FOUND, value, tmp_path),
        "FuseScans": lambda: FuseScans(value),
        "ParallelizeScans": lambda: ParallelizeScans(value),
        "scan_passes": lambda: scan_passes(value),
        "get_pipeline": lambda: get_pipeline(value),
        "export": lambda: export(EMPTY, value, tmp_path / "model"),
    }
    for name, call in calls.items():
        with pytest.raises(ScanError, match=f"^{name}: {message}"):
            call()
    assert not list(tmp_path.iterdir())


def test_a_target_of_a_kind_without_schedules():
    for call in (default_plan, lambda kind, found: parallelize(LOOP, kind)):
        with pytest.raises(
            PlanError, match=r"expected a target of kind llvm, .* or webgpu, got hexagon"
        ):
            call("hexagon", FOUND)


@pytest.mark.parametrize(("value", "kind", "message"), PLANS, ids=lambda v: type(v).__name__)
def test_what_is_no_plan(value, kind, message):
    calls = [lambda: parallelize(LOOP, "cpu", value), lambda: verify(LOOP, "cpu", value)]
    if not callable(value):
        calls.append(lambda: parallel_scan(SCHEDULE, block(SCHEDULE), value))
    for call in calls:
        with pytest.raises(kind, match=message):
            call()


@pytest.mark.parametrize(("value", "message"), FUNCTIONS, ids=lambda v: type(v).__name__)
def test_what_is_no_function(value, message):
    for call in (extract, parallelize, verify):
        with pytest.raises(ScanError, match=f"^{call.__name__}: .*{message}"):
            call(value)


@pytest.mark.parametrize(("value", "kind", "message"), RECURRENCES, ids=["refusal", "loop", "none"])
def test_what_is_no_recurrence(value, kind, message, tmp_path):
    plan = ScanPlan.of("cuda", "serial_tiles", threads_per_block=32, items_per_thread=1)
    calls = {
        "default_plan": lambda: default_plan("cpu", value),
        "ScanPlan.check": lambda: plan.check("cuda", value),
        "ScanPlan.smem_bytes": lambda: plan.smem_bytes(value),
        "plan_for": lambda: plan_for(value, "cpu", tmp_path),
    }
    for name, call in calls.items():
        with pytest.raises(kind, match=f"(?s)^{name}: {message}") as raised:
            call()
        if value is REFUSAL:
            assert raised.value.refusal is value


def test_what_is_no_module_no_schedule_no_block_and_no_database(tmp_path):
    wrong = {
        r"FindScans: expected an IRModule, got PrimFunc; pass IRModule\({'main': func}\)": (
            lambda: FindScans(LOOP)
        ),
        "export: expected an IRModule, got None": lambda: export(None, "cpu", tmp_path / "model"),
        r"parallel_scan: expected a Schedule, got PrimFunc; .*tvm\.s_tir\.Schedule\(func\)": (
            lambda: parallel_scan(LOOP, "scan")
        ),
        r"parallel_scan: .* got 'scan'; pass sch\.get_sblock\('scan'\)": (
            lambda: parallel_scan(SCHEDULE, "scan")
        ),
        "tune: expected a PrimFunc, an IRModule or .*, got str": lambda: tune("loop.py"),
        "expand_scans: expected a Schedule, .* got str": lambda: expand_scans("scan"),
        "get_pipeline: expected a database of records, got int": lambda: get_pipeline("cpu", 3),
        "scan_passes: expected a database of records, got dict": lambda: scan_passes("cpu", {}),
        "plan_for: expected a RecordStore or its folder, got NoneType": (
            lambda: plan_for(FOUND, "cpu", None)
        ),
    }
    for message, call in wrong.items():
        with pytest.raises(ScanError, match=f"^{message}"):
            call()
