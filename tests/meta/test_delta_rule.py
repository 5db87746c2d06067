"""Delta rules go through search, records and near shapes as every other loop does."""

import numpy as np
import pytest
import tvm
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tests.programs.delta_programs import FORMS, linear_attention
from tests.programs.test_delta import attention, called
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET
from tvm_scan import (
    ScanPlan,
    default_plan,
    expand_scans,
    extract,
    library,
    parallelize,
    plan_of,
    tir,
)
from tvm_scan import verify as compare
from tvm_scan.errors import PlanError
from tvm_scan.meta import RecordStore, tune
from tvm_scan.meta.search.candidates import candidate_of
from tvm_scan.meta.search.features import row_of
from tvm_scan.meta.space.decisions import enumerate_plans
from tvm_scan.meta.space.expand import expand_checked
from tvm_scan.meta.space.rule import sample_branches
from tvm_scan.meta.store.names import RECORDS
from tvm_scan.meta.store.nearest import tuned_function
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.annotated import annotated_plans
from tvm_scan.schedules.choose.shape_key import shape_key
from tvm_scan.schedules.common.ir import cell_count
from tvm_scan.schedules.delta.cpu_plan import DeltaWalk
from tvm_scan.schedules.delta.gpu_plan import DeltaBlocks
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.primitive import parallel_scan
from tvm_scan.schedules.registry import SCHEDULES
from tvm_scan.schedules.splice import ensure_blocks

CPU = Target.from_device("cpu")
GPU = CUDA_TARGET
ONCE = ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0)


def rule_of(func):
    (found,) = analyse(func).deltas
    return found


FUNC = linear_attention(40)
RULE = rule_of(FUNC)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("delta") / "records"
    result = tune(FUNC, CPU, folder, trials=5, config=ONCE, confirm=False, progress=False)
    return result.functions[0], RecordStore(folder)


def test_a_search_measures_plans_of_it(tuned):
    found, store = tuned
    assert found.measured == len(found.trials) == 5
    assert not any(trial.wrong or trial.error for trial in found.trials)
    assert found.default is not None and found.sequential is not None
    assert isinstance(found.best.plans[0], DeltaWalk)
    assert {plan for entry in store.entries() for plan in entry.plans} == {
        plan for trial in found.trials for plan in trial.plans
    }


def test_its_record_is_that_of_the_loop_and_of_near_shapes(tuned):
    _, store = tuned
    best = min(store.entries(), key=lambda entry: entry.seconds).plans[0]
    assert plan_of(RULE, CPU, store) == best
    for near in (linear_attention(50), linear_attention(40, heads=3)):
        assert plan_of(rule_of(near), CPU, store) == best
    for far in (
        linear_attention(4000),
        linear_attention(40, size=32),
        linear_attention(40, rule="delta"),
        linear_attention(40, queries=2),
    ):
        other = rule_of(far)
        assert store.plan_of(other, CPU) is None
        assert plan_of(other, CPU, store) == default_plan(CPU, other)


@pytest.mark.parametrize("length", [40, 50])
def test_a_function_is_scheduled_by_it_and_right(tuned, length):
    _, store = tuned
    made = {}

    def run(func, given):
        made["tuned"] = tuned_function(store, func, CPU)
        return called(compile_cached(made["tuned"].func, target=CPU), given)

    got, want = attention(length, 16, 16, run=run)
    assert made["tuned"].exact == (length == 40) and made["tuned"].records
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_second_search_measures_nothing_again(tuned):
    found, store = tuned
    again = tune(FUNC, CPU, store.folder, trials=1, config=ONCE, confirm=False, progress=False)
    assert sum(trial.recorded for trial in again.functions[0].trials) == len(found.trials)
    assert again.functions[0].measured == 1


@pytest.mark.parametrize(("old", "new"), [("columns", "rows"), ("delta_walk", "lanes")])
def test_a_damaged_plan_is_a_fault_of_its_record(tuned, tmp_path, old, new):
    """That of the loop as it was written has neither word, and stays."""
    _, store = tuned
    for path in store.folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / RECORDS).write_text((store.folder / RECORDS).read_text().replace(old, new))
    damaged = RecordStore(tmp_path)
    usable = {plan for entry in damaged.entries() for plan in entry.plans}
    assert plan_of(RULE, CPU, damaged) == ScanPlan.parse("cpu/sequential()")
    assert not any(isinstance(plan, DeltaWalk) for plan in usable)


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "cuda"])
def test_every_plan_of_the_space_is_whole(target):
    plans = enumerate_plans(target, RULE)
    assert len(plans) == len(set(plans)) > 4
    widths = {len(row_of(plan, target, RULE)) for plan in plans}
    assert len(widths) == 1 and len({tuple(row_of(p, target, RULE)) for p in plans}) == len(plans)
    for plan in plans:
        assert ScanPlan.parse(str(plan)) == plan
        assert ScanPlan.from_annotations(plan.annotations()) == plan
        assert isinstance(RULE, plan.takes)


@pytest.mark.parametrize(
    "text",
    [
        "cpu/delta_walk(columns=8, steps=8, strip=16, vector=4, threads=False)",
        "cpu/delta_walk(columns=16, steps=1, strip=16, vector=16)",
        "cpu/delta_walk(columns=256, steps=3, strip=1, vector=1)",
        "cpu/sequential()",
    ],
)
def test_plans_are_right(text):
    """Also those that no search proposes."""

    def run(func, given):
        return called(compile_cached(parallelize(func, CPU, text), target=CPU), given)

    got, want = attention(21, 12, 20, run=run)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cpu/delta_walk(columns=0)", "expected 1 to 256 columns of a task, got columns=0"),
        ("cpu/delta_walk(columns=-64)", "expected 1 to 256 columns"),
        ("cpu/delta_walk(columns=999999999999999999)", "expected 1 to 256 columns"),
        ("cpu/delta_walk(vector=7)", "expected vectors of 1, 2, 4, 8 or 16 cells"),
        ("cpu/delta_walk(vector=0)", "expected vectors of"),
        ("cpu/delta_walk(strip=12)", "expected a strip of whole vectors of 8"),
        ("cpu/delta_walk(strip=0)", "expected a strip"),
        ("cpu/delta_walk(strip=99999)", "expected a strip"),
        ("cpu/delta_walk(steps=0)", "expected 1 to 8 steps at once"),
        ("cpu/delta_walk(steps=9)", "expected 1 to 8 steps at once"),
        ("cpu/delta_walk(threads=2)", "expected True or False for threads"),
        ("cpu/delta_walk(chunk=4)", "the field 'chunk'"),
        ("cpu/delta_walk(steps=4, steps=4)", "steps twice"),
        ("cpu/delta_walk(chunks=1)", "expected 0, or 2 to 1024 chunks of time, got chunks=1"),
        ("cpu/delta_walk(chunks=-4)", "expected 0, or 2 to 1024 chunks of time"),
        ("cpu/delta_walk(chunks=99999999)", "expected 0, or 2 to 1024 chunks of time"),
        ("cpu/lanes()", "expected a plan for a delta rule, got one for a recurrence"),
        ("cuda/delta_blocks(steps=7)", "expected chunks of 4, 8, 16 steps"),
        ("cuda/delta_blocks(steps=-16)", "expected chunks of 4, 8, 16 steps"),
        ("cuda/delta_blocks(threads_per_block=100)", "expected blocks of 64, 128 or 256 threads"),
        ("cuda/delta_blocks(threads_per_block=0)", "expected blocks of 64, 128 or 256 threads"),
        (
            "cuda/delta_blocks(products=half)",
            "expected products by fma or tf32x3, got products=half",
        ),
        ("cuda/delta_blocks(chunks=1)", "expected 0, or 2 to 1024 chunks of time, got chunks=1"),
        ("cuda/delta_blocks(chunks=-4)", "expected 0, or 2 to 1024 chunks of time"),
        ("cuda/delta_blocks(chunks=99999999)", "expected 0, or 2 to 1024 chunks of time"),
        ("cuda/lanes()", "expected a plan for a delta rule"),
    ],
)
def test_hostile_plans(text, said):
    target = GPU if text.startswith("cuda") else CPU
    with pytest.raises(PlanError, match=said):
        parallelize(FUNC, target, text)
    sch = Schedule(ensure_blocks(FUNC))
    block = sch.get_child_blocks(sch.get_sblock("root"))[-1]
    with pytest.raises(PlanError, match=said):
        parallel_scan(sch, block, text, target=target)


def test_a_plan_of_it_is_for_no_recurrence():
    found = extract(library.cumsum(3, 50))
    for plan in (DeltaWalk(), DeltaBlocks()):
        assert not plan.fits(found, tvm_machine(plan))
        with pytest.raises(
            PlanError, match="expected a plan for a recurrence, got one for a delta"
        ):
            plan.check(GPU if plan.device == "cuda" else CPU, found)


def tvm_machine(plan):

    return Machine.of(GPU if plan.device == "cuda" else CPU)


def test_what_is_between_chunks_can_be_indexed():
    many = linear_attention(4096, heads=512, size=128)
    for target, plan in ((GPU, "cuda/delta_blocks"), (CPU, "cpu/delta_walk")):
        with pytest.raises(PlanError, match="expected fewer than 2147483648 cells of the states"):
            parallelize(many, target, f"{plan}(steps=4, chunks=1024)")


@pytest.mark.parametrize("products", ["fma", "tf32x3"])
@pytest.mark.parametrize("threads", [64, 256])
def test_shared_memory_is_what_the_kernel_allocates(threads, products):
    """Rows of `gated` fill no block: their padding, too."""
    rule = rule_of(FORMS["gated"])
    plan = DeltaBlocks(steps=8, threads_per_block=threads, products=products)
    (nest,) = plan.build(rule).nests
    buffers = [buffer for block in tir.nodes(nest, SBlock) for buffer in block.alloc_buffers]
    cells = [cell_count(buffer) for buffer in buffers if str(buffer.scope()) == "shared"]
    assert plan.shared_bytes(rule) == 4 * sum(cells)


def test_many_products_take_fewer_steps_at_once():
    """All pairs of steps are in the code."""
    (rule,) = analyse(FORMS["product_of_three"]).deltas
    with pytest.raises(PlanError, match="a step of this rule has 12 products with every earlier"):
        parallelize(FORMS["product_of_three"], CPU, "cpu/delta_walk(steps=4)")
    assert default_plan(CPU, rule).steps == 2


def test_a_trace_replays_to_the_tasks():
    mod = tvm.IRModule({"main": ensure_blocks(FUNC)})
    sch = Schedule(mod)
    block = sch.get_child_blocks(sch.get_sblock("root"))[-1]
    applied = parallel_scan(sch, block, "cpu/delta_walk(columns=16, steps=2)", target=CPU)
    again = Schedule(mod)
    sch.trace.apply_to_schedule(again, remove_postproc=False)
    assert [plan for _, plan in annotated_plans(again)] == [applied]
    expand_scans(again)
    tvm.ir.assert_structural_equal(again.mod, sch.mod)


def test_tvms_own_search_samples_its_decisions():
    sch = Schedule(tvm.IRModule({"main": ensure_blocks(FUNC)}))
    block = sch.get_child_blocks(sch.get_sblock("root"))[-1]
    sampled = sample_branches(sch, block, CPU)
    kinds = {type(plan) for one in sampled for _, plan in annotated_plans(one)}
    assert DeltaWalk in kinds and kinds <= set(SCHEDULES)
    for one in sampled:
        assert expand_checked(one, CPU)


def test_a_candidate_of_a_gpu_is_expanded():
    mod = tvm.IRModule({"main": ensure_blocks(FUNC)})
    made = candidate_of(mod, (DeltaBlocks(steps=8),), GPU)
    assert "delta_block" in made.measure.sch.mod.script()
    assert candidate_of(mod, (DeltaBlocks(steps=5),), GPU) is None


def test_keys():
    """Names, extents of lanes and time, and index dtypes do not count; the step and state do."""
    same = {
        shape_key(rule_of(linear_attention(n, heads))) for n, heads in ((40, 2), (77, 2), (40, 5))
    }
    others = [
        linear_attention(40, size=8),
        linear_attention(40, rule="delta"),
        linear_attention(40, queries=2),
    ]
    keys = {shape_key(rule_of(func)) for func in others}
    assert len(same) == 1 and len(keys) == 3 and not same & keys


def test_verified():
    comparisons = compare(FUNC, CPU, "cpu/delta_walk(columns=16, steps=1, threads=False)")
    assert comparisons and all(c.holds for c in comparisons)
