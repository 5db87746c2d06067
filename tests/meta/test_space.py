"""The space: pinned decisions, what is refused before a build, moves, TVM's rules beside ours."""

import json

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace
from tvm.script import tirx as T
from tvm.target import Target

from tests.support.compiled import compile_cached
from tests.support.contexts import light_context
from tests.support.cuda_harness import CUDA_TARGET
from tests.unit.test_trace_roundtrip import tvm_ffi_to_python
from tvm_scan import ScanPlan, default_plan, extract, library
from tvm_scan.annotations import PLAN_PREFIX
from tvm_scan.errors import PlanError
from tvm_scan.meta.space import decisions
from tvm_scan.meta.space.expand import ExpandScansPostproc, expand_checked
from tvm_scan.meta.space.mutator import NeighbourMutator, plan_samples
from tvm_scan.meta.space.rule import ScanRule, annotate, register_hooks, sample_branches, scan_space
from tvm_scan.schedules.annotated import annotated_plans
from tvm_scan.schedules.choose.unfit import why_unfit
from tvm_scan.schedules.splice import ensure_blocks

CPU = Target({"kind": "llvm", "num-cores": 2})
SMALL_CUDA = Target(
    {
        "kind": "cuda",
        "arch": "sm_90",
        "max_threads_per_block": 256,
        "max_shared_memory_per_block": 2048,
    },
    host={"kind": "llvm"},
)


@T.prim_func(s_tir=True)
def mixed(
    X: T.Buffer((8, 200), "float32"),
    Y: T.Buffer((8, 200), "float32"),
    Z: T.Buffer((8, 200), "float32"),
):
    P = T.sblock_alloc_buffer((8, 200), "float32")
    for b, t in T.grid(8, 200):
        with T.sblock("double"):
            vb, vt = T.axis.remap("SS", [b, t])
            P[vb, vt] = X[vb, vt] * T.float32(2)
    for b, t in T.grid(8, 200):
        with T.sblock("scan"):
            vb = T.axis.spatial(8, b)
            vt = T.axis.scan(200, t)
            Y[vb, vt] = T.if_then_else(vt > 0, Y[vb, vt - 1], T.float32(0)) + P[vb, vt]
    for b, t in T.grid(8, 200):
        with T.sblock("increment"):
            vb, vt = T.axis.remap("SS", [b, t])
            Z[vb, vt] = Y[vb, vt] + T.float32(1)


@T.prim_func(s_tir=True)
def refused(X: T.Buffer((8, 20), "float32"), Y: T.Buffer((8, 20), "float32")):
    for b, t in T.grid(8, 20):
        with T.sblock("scan"):
            vb = T.axis.spatial(8, b)
            vt = T.axis.scan(20, t)
            Y[vb, vt] = T.sin(T.if_then_else(vt > 0, Y[vb, vt - 1], T.float32(0))) + X[vb, vt]


@T.prim_func(s_tir=True)
def half_sum(X: T.Buffer((4, 100), "float16"), Y: T.Buffer((4, 100), "float16")):
    for b in range(4):
        for t in range(100):
            Y[b, t] = T.if_then_else(t > 0, Y[b, t - 1], T.float16(0)) + X[b, t]


FUNCS = {
    "cumsum": lambda: library.cumsum(64, 4096),
    "long": lambda: library.linear_recurrence(1, 1 << 20),
    "short": lambda: library.linear_recurrence(4, 7),
    "selective": lambda: library.selective_scan(1, 64, 1024, 16),
}
# What each space holds, as (base plan, choices); a change here is a change of what is searched.
PINNED = {
    ("cumsum", "cpu"): [
        ("cpu/sequential()", {}),
        ("cpu/lanes()", {"lane_block": (1, 2, 4, 8, 16)}),
        ("cpu/lanes(vectorize=True)", {"lane_block": (4, 8, 16, 32, 64)}),
        (
            "cpu/lanes(lane_block=16, vectorize=True, transpose=True)",
            {"lane_block": (16, 32, 64), "prefetch": (0, 1, 2, 4)},
        ),
        ("cpu/lanes(time_vector=4)", {"time_vector": (4, 8, 16, 32)}),
        ("cpu/lanes(time_vector=16, time_runs=True)", {"time_vector": (16, 32, 64)}),
        (
            "cpu/three_phase(chunks=2)",
            {"chunks": (2, 4, 8, 16, 32, 64, 128, 256), "lane_block": (1, 2, 4, 8)},
        ),
        (
            "cpu/three_phase(chunks=2, time_vector=4)",
            {"chunks": (2, 4, 8, 16, 32, 64, 128, 256), "time_vector": (4, 8, 16, 32)},
        ),
        (
            "cpu/three_phase(chunks=2, time_vector=16, time_runs=True)",
            {"chunks": (2, 4, 8, 16, 32, 64, 128, 256), "time_vector": (16, 32, 64)},
        ),
    ],
    ("selective", "cpu"): [
        ("cpu/sequential()", {}),
        ("cpu/lanes()", {"lane_block": (1, 2, 4, 8, 16)}),
        (
            "cpu/lanes(vectorize=True)",
            {"lane_block": (4, 8, 16, 32, 64), "library_math": (0, 1)},
        ),
        (
            "cpu/lanes(lane_block=16, vectorize=True, transpose=True)",
            {"lane_block": (16, 32, 64), "prefetch": (0, 1, 2, 4)},
        ),
        (
            "cpu/three_phase(chunks=2)",
            {"chunks": (2, 4, 8, 16, 32, 64), "lane_block": (1, 2, 4, 8)},
        ),
    ],
    ("short", "cpu"): [
        ("cpu/sequential()", {}),
        ("cpu/lanes()", {"lane_block": (1, 2, 4)}),
        ("cpu/lanes(vectorize=True)", {"lane_block": (4,)}),
        ("cpu/lanes(time_vector=4)", {"time_vector": (4, 8, 16, 32)}),
        ("cpu/lanes(time_vector=16, time_runs=True)", {"time_vector": (16, 32, 64)}),
    ],
    ("long", "cuda"): [
        ("cuda/sequential(threads_per_block=32)", {}),
        *(
            branch
            for algorithm in ("serial_tiles", "three_phase", "single_pass")
            for branch in (
                *(
                    (
                        f"cuda/{algorithm}(threads_per_block={threads[0]}, "
                        f"items_per_thread=1{tree})",
                        {
                            "threads_per_block": threads,
                            "items_per_thread": (1, 2, 4, 8, 16, 32, 64),
                            "vector_loads": (0, 1),
                        },
                    )
                    for threads, tree in (
                        ((8, 16, 32, 64, 128, 256, 512, 1024), ""),
                        ((32, 64, 128, 256, 512, 1024), ", block_tree=warp"),
                    )
                ),
                (
                    f"cuda/{algorithm}(threads_per_block=32, items_per_thread=4, "
                    "block_tree=warp, vector_loads=True, block_load=transposed)",
                    {
                        "threads_per_block": (32, 64, 128, 256, 512),
                        # What is held in no register may be more.
                        "items_per_thread": (4, 8, 16) + (32,) * (algorithm == "single_pass"),
                        **({"stages": (1, 2, 3)} if algorithm == "serial_tiles" else {}),
                    },
                ),
            )
        ),
    ],
}


@pytest.mark.parametrize(("name", "device"), PINNED)
def test_pinned_spaces(name, device):
    found = extract(FUNCS[name]())
    got = decisions.branches(CPU if device == "cpu" else CUDA_TARGET, found)
    assert [(str(b.base), dict(b.choices)) for b in got] == PINNED[name, device]


@pytest.mark.parametrize("target", [CPU, CUDA_TARGET, SMALL_CUDA], ids=["cpu", "cuda", "small"])
@pytest.mark.parametrize("name", FUNCS)
def test_every_plan_of_a_space_fits(name, target):
    found = extract(FUNCS[name]())
    plans = decisions.enumerate_plans(target, found)
    assert plans[0] == default_plan(target, found)
    assert any(plan.algorithm == "sequential" for plan in plans)
    assert len(set(plans)) == len(plans) == decisions.size(target, found)
    for plan in plans:
        assert why_unfit(plan, target, found) is None, "a record of it is used"


def test_a_half_is_not_tuned_as_the_loop_that_rounds_it_at_every_step():
    found = extract(half_sum)
    plans = decisions.enumerate_plans(CPU, found)
    assert not any(plan.algorithm == "sequential" for plan in plans)


def test_registers_are_estimated():
    found = extract(library.linear_recurrence(4, 1 << 16, "float64"))
    heavy = ScanPlan.of("cuda", "serial_tiles", threads_per_block=1024, items_per_thread=64)
    heavy.check(CUDA_TARGET, found)
    assert not decisions.fits(heavy, CUDA_TARGET, found)
    assert decisions.fits(heavy.with_(items_per_thread=2), CUDA_TARGET, found)


def test_another_target_has_no_space():
    with pytest.raises(
        PlanError, match=r"expected a target of kind llvm, .* or webgpu, got hexagon"
    ):
        decisions.branches(Target("hexagon"), extract(library.cumsum(2, 9)))


def schedule(func, seed=1):
    return Schedule(tvm.IRModule({"main": ensure_blocks(func)}), seed=seed)


def spaces_of(func, target, seed=1):
    sch = schedule(func, seed)
    block = sch.get_child_blocks(sch.get_sblock("root"))[0]
    return sample_branches(sch, block, target)


def ready(kind, target):
    """A rule or postproc that knows the target, as in a search."""
    made = kind()
    made._initialize_with_tune_context(light_context(tvm.IRModule({"main": mixed}), target))
    return made


@pytest.mark.parametrize("target", [CPU, CUDA_TARGET], ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", FUNCS)
def test_sampled_traces_are_stock_scalar_and_replay_to_the_kernel(name, target):
    func = FUNCS[name]()
    for sch in spaces_of(func, target):
        kinds = {str(inst.kind.name) for inst in sch.trace.insts}
        assert kinds <= {
            "GetSBlock",
            "GetChildBlocks",
            "GetLoops",
            "Annotate",
            "SampleCategorical",
        }, kinds
        text = json.dumps(tvm_ffi_to_python(sch.trace.as_json()))
        fresh = schedule(func)
        Trace.apply_json_to_schedule(json.loads(text), fresh)
        ((_, plan),) = annotated_plans(sch)
        ((_, again),) = annotated_plans(fresh)
        assert plan == again
        before = len(sch.trace.insts)
        fitting = decisions.fits(plan, target, extract(func))
        assert expand_checked(sch, target) == expand_checked(fresh, target) == fitting
        assert len(sch.trace.insts) == before, "the expansion is silent"
        tvm.ir.assert_structural_equal(sch.mod, fresh.mod)


def test_a_rule_returns_what_is_not_its_own():
    sch = schedule(refused)
    rule = ready(ScanRule, CPU)
    root = sch.get_sblock("root")
    block = sch.get_sblock("scan")
    before = len(sch.trace.insts)
    assert rule.apply(sch, block)[0].same_as(sch)
    assert rule.apply(sch, root)[0].same_as(sch)
    plain = schedule(mixed)
    assert rule.apply(plain, plain.get_sblock("double"))[0].same_as(plain)
    planned = schedule(mixed)
    block2 = planned.get_sblock("scan")
    annotate(planned, block2, ScanPlan.of("cpu", "lanes"))
    assert rule.apply(planned, block2)[0].same_as(planned)
    assert len(sch.trace.insts) == before
    hexagon = ready(ScanRule, Target("hexagon"))
    other = schedule(mixed)
    assert hexagon.apply(other, other.get_sblock("scan"))[0].same_as(other)


@pytest.mark.parametrize(
    "plan",
    [
        ScanPlan.of("cpu", "lanes"),
        ScanPlan.of("cuda", "serial_tiles", threads_per_block=512, items_per_thread=2),
        ScanPlan.of("cuda", "serial_tiles", threads_per_block=96, items_per_thread=2),
        ScanPlan.of("cuda", "serial_tiles", threads_per_block=256, items_per_thread=64),
    ],
    ids=str,
)
def test_what_does_not_fit_is_answered_with_false_and_left_alone(plan):
    sch = schedule(library.linear_recurrence(4, 1000, "float64"))
    block = sch.get_child_blocks(sch.get_sblock("root"))[0]
    annotate(sch, block, plan)
    before = sch.mod
    assert ready(ExpandScansPostproc, SMALL_CUDA).apply(sch) is False
    tvm.ir.assert_structural_equal(sch.mod, before)


@pytest.mark.parametrize(
    ("name", "value"), [("algorithm", "spiral"), ("lane_block", 4), ("threads_per_block", "many")]
)
def test_annotations_that_spell_no_plan_are_answered_with_false(name, value):
    sch = schedule(library.linear_recurrence(4, 1000))
    block = sch.get_child_blocks(sch.get_sblock("root"))[0]
    annotate(sch, block, ScanPlan.of("cuda", "lanes", threads_per_block=32))
    if name != "lane_block":
        sch.unannotate(block, PLAN_PREFIX + name)
    sch.annotate(block, PLAN_PREFIX + name, value)
    before = sch.mod
    assert ready(ExpandScansPostproc, SMALL_CUDA).apply(sch) is False
    tvm.ir.assert_structural_equal(sch.mod, before)


def test_a_loop_that_is_no_recurrence_is_answered_with_false():
    sch = schedule(refused)
    annotate(sch, sch.get_sblock("scan"), ScanPlan.of("cpu", "lanes"))
    assert ready(ExpandScansPostproc, CPU).apply(sch) is False


def test_the_mutator_moves_one_decision_by_one():
    mutator = NeighbourMutator(0)
    sampled = spaces_of(library.cumsum(64, 4096), CPU)
    assert mutator.apply(sampled[0].trace) is None, "the sequential plan decides nothing"
    trace = sampled[-1].trace
    reached = set()
    for _ in range(60):
        moved = mutator.apply(trace)
        assert moved is not None
        old = [choice for _, choice, _ in plan_samples(trace)]
        new = [choice for _, choice, _ in plan_samples(moved)]
        assert sorted(abs(a - b) for a, b in zip(old, new, strict=True)) == [0, 1]
        reached.add(tuple(new))
        trace = moved
    assert len(reached) > 10
    twins = [NeighbourMutator(7), NeighbourMutator(7)]
    moves = [[str(m.apply(trace)) for _ in range(5)] for m in twins]
    assert moves[0] == moves[1]


def test_a_mutator_leaves_foreign_samples_alone():
    sch = schedule(mixed)
    value = sch.sample_categorical([1, 2, 4], [0.25, 0.25, 0.5])
    sch.annotate(sch.get_sblock("double"), "pragma_other", value)
    assert plan_samples(sch.trace) == []
    assert NeighbourMutator(0).apply(sch.trace) is None


def context(target, space):
    # TuneContext reads TVM's stock tensor intrinsics, 14 seconds once; this is TVM's own path.
    return ms.TuneContext(
        mod=mixed, target=target, space_generator=space, num_threads=1, rand_state=1
    )


@pytest.mark.parametrize("target", [CPU, CUDA_TARGET], ids=["cpu", "cuda"])
def test_beside_the_default_rules_of_tvm(target):
    if target is CUDA_TARGET and not tvm.cuda(0).exist:
        pytest.skip("no simulated device")
    ctx = context(target, scan_space(target, others=True, marked=False))
    device = tvm.cuda(0) if target is CUDA_TARGET else tvm.cpu()
    built = 0
    for space in ctx.generate_design_space():
        sch = Schedule(ctx.mod)
        space.trace.apply_to_schedule(sch, remove_postproc=True)
        sch.enter_postproc()
        if not all(p.apply(sch) for p in ctx.space_generator.postprocs):
            continue
        built += 1
        assert "double" not in sch.mod.script(), "the producer is inlined by TVM's rule"
        replayed = Schedule(ctx.mod)
        sch.trace.apply_to_schedule(replayed, remove_postproc=False)
        assert expand_checked(replayed, target)
        tvm.ir.assert_structural_equal(replayed.mod, sch.mod)
        x = np.random.default_rng(0).integers(-3, 4, (8, 200)).astype("float32")
        args = [tvm.runtime.tensor(a, device) for a in (x, x, x)]
        named = sch.mod["main"].with_attr("global_symbol", "main")
        compile_cached(named, target=target)["main"](*args)
        np.testing.assert_array_equal(args[2].numpy(), np.cumsum(2 * x, 1) + 1)
    assert built >= 3


@pytest.mark.parametrize("target", [CPU, CUDA_TARGET], ids=["cpu", "cuda"])
def test_the_hook_in_tvms_own_space(target):
    register_hooks()
    hooked = Schedule(tvm.IRModule({"main": mixed}))
    hooked.annotate(hooked.get_sblock("scan"), "schedule_rule", "tvm_scan")
    ctx = ms.TuneContext(
        mod=hooked.mod,
        target=target,
        space_generator="post-order-apply",
        num_threads=1,
        rand_state=1,
    )
    spaces = ctx.generate_design_space()
    plans = [plan for sch in spaces for _, plan in annotated_plans(sch)]
    assert {plan.algorithm for plan in plans} > {"sequential", "three_phase"}
    assert {plan.device for plan in plans} == {"cpu" if target is CPU else "cuda"}
    for sch in spaces:
        keys = [
            str(i.attrs[0]) for i in sch.trace.insts if str(i.kind.name) == "Annotate" and i.attrs
        ]
        assert any(key.startswith(PLAN_PREFIX) for key in keys)
