"""Plans: one string form, defaults that pass their own check, messages with the numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.script import tirx as T
from tvm.target import Target

from tests.programs.accepted_programs import PROGRAMS
from tests.support.cuda_harness import CUDA_TARGET
from tests.support.tiers import one_of
from tvm_scan import ScanPlan, default_plan, extract, library
from tvm_scan.arguments import host_target
from tvm_scan.errors import PlanError
from tvm_scan.library import LIBRARY
from tvm_scan.meta.space.decisions import enumerate_plans
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.registry import SCHEDULES

CPU = host_target()
AVX512 = Target({"kind": "llvm", "mcpu": "skylake-avx512"})
SMALL_CUDA = Target(
    {
        "kind": "cuda",
        "arch": "sm_90",
        "max_threads_per_block": 256,
        "max_shared_memory_per_block": 2048,
    },
    host={"kind": "llvm"},
)

VALUES = {bool: st.booleans(), int: st.integers(0, 4096), str: st.sampled_from(["warp", "oak"])}
plans = st.one_of(
    [
        st.builds(schedule, **{n: VALUES[kind] for n, kind in schedule.decisions().items()})
        for schedule in SCHEDULES
    ]
)


@settings(max_examples=200, deadline=None)
@given(plans)
def test_the_string_form_is_the_plan(plan):
    assert ScanPlan.parse(str(plan)) == plan
    assert hash(ScanPlan.parse(str(plan))) == hash(plan)


@settings(max_examples=200, deadline=None)
@given(plans)
def test_the_annotations_are_the_plan(plan):
    assert ScanPlan.from_annotations(plan.annotations()) == plan


#: Every decision of every schedule, as plans with all of them wrote them into records.
FLAT = {
    "threads_per_block": 0, "items_per_thread": 0, "block_tree": "blelloch", "lane_block": 1,
    "vectorize": 0, "chunks": 0, "time_vector": 0, "time_runs": 0, "cache_steps": 0,
    "transpose": 0, "prefetch": 0, "nontemporal": 0, "ldexp": 0, "library_math": 0,
    "vector_loads": 0, "threads_per_lane": 1, "block_load": "direct", "stages": 1,
    "lanes_per_block": 1, "exp_share": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "schedule",
    [schedule for schedule in SCHEDULES if Recurrence in schedule.takes],  # there were no others
    ids=lambda s: f"{s.device}-{s.algorithm}",
)
def test_annotations_of_flat_plans_are_read(schedule):
    name = {"device": schedule.device, "algorithm": schedule.algorithm}
    assert ScanPlan.from_annotations({**FLAT, **name}) == schedule()
    for decision, kind in {**FLAT, "width": 0}.items():
        if decision not in schedule.decisions():
            wrong = {**name, decision: 3 if isinstance(kind, int) else "oak"}
            with pytest.raises(PlanError, match=f"got the field '{decision}'"):
                ScanPlan.from_annotations(wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lanes", r"expected device/algorithm\(field=value, ...\), got 'lanes'"),
        ("cpu/lanes(width=3)", "expected one of .*, got the field 'width'"),
        ("cpu/lanes(lane_block=wide)", "expected int for lane_block, got 'wide'"),
        ("cpu/lanes(chunks=4)", "expected one of .*, got the field 'chunks'"),
        (
            "cpu/serial_tiles()",
            "three_phase, delta_walk on cpu, got algorithm=ser",
        ),
        ("cuda/spiral()", "expected one of sequential, lanes, .*, got algorithm=spiral"),
        ("tpu/lanes()", "expected one of cpu, cuda, got device=tpu"),
        ("tpu/warp()", "expected one of cpu, cuda, got device=tpu"),
        *(
            (f"cpu/lanes(vectorize={word})", f"expected True or False for vectorize, got '{word}'")
            for word in ("true", "1", "banana", "TRUE", "")
        ),
        *(
            (f"cpu/lanes(time_vector={word})", "expected int for time_vector, got")
            for word in ("1e3", "0x10", "1_6", "+8", "\u0663", "True", "", "9" * 5000)
        ),
        ("cpu/lanes(lane_block=8, lane_block=8)", "each field once, got lane_block twice"),
        ("cpu/lanes(device=cuda)", "expected one of .*, got the field 'device'"),
        ("cpu/lanes(algorithm=three_phase)", "expected one of .*, got the field 'algorithm'"),
        *((f"cpu/lanes({text})", "expected field=value") for text in (",", "a", ")")),
        (None, "got None"),
    ],
)
def test_text_that_is_no_plan(text, message):
    with pytest.raises(PlanError, match=message):
        ScanPlan.parse(text)


SIZES = (1, 16, 1000, 1 << 16)


@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_defaults_pass_their_own_check(name):
    entry = LIBRARY[name]
    count = len(entry.size_names)
    shapes = [(None,) * (count - 1) + (8 if name == "selective_scan" else None,)]
    for length in SIZES:
        sizes = {"length": length, "states": 16}
        shapes += [
            tuple(sizes.get(size, rows) for size in entry.size_names) for rows in (0, 1, 7, 3000)
        ]
    for number, shape in enumerate(shapes):
        for dtype in one_of(("float32", "float64"), number):
            found = extract(entry.factory(*shape, dtype))
            for target in (CPU, CUDA_TARGET, SMALL_CUDA):
                default_plan(target, found).check(target, found)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_defaults_of_other_loops_pass_their_check(name):
    found = extract(PROGRAMS[name][0])
    for target in (CPU, CUDA_TARGET, SMALL_CUDA):
        default_plan(target, found).check(target, found)


LINEAR = extract(library.linear_recurrence(4, 1000))

WRONG = {
    "cuda/lanes(threads_per_block=2048)": "expected 1 to 1024 threads, got threads_per_block=2048",
    "cuda/serial_tiles(threads_per_block=96, items_per_thread=1)": "power of two .* got "
    "threads_per_block=96; use 64",
    "cuda/serial_tiles(threads_per_block=1, items_per_thread=1)": "2 to 1024 threads per block",
    "cuda/serial_tiles(threads_per_block=32, items_per_thread=65)": "1 to 64 items .* got "
    "items_per_thread=65",
    "cuda/serial_tiles(threads_per_block=32, items_per_thread=1, block_tree=oak)": "one of "
    "blelloch, .*, got block_tree=oak",
    "cpu/lanes()": "expected a plan for cuda, got device=cpu",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_plan_that_does_not_fit_the_gpu(text):
    with pytest.raises(PlanError, match=WRONG[text]):
        ScanPlan.parse(text).check(CUDA_TARGET, LINEAR)


def test_shared_memory_is_named_in_bytes():
    plan = ScanPlan.of("cuda", "serial_tiles", threads_per_block=256, items_per_thread=1)
    found = extract(library.linear_recurrence(4, 1000, "float64"))
    message = r"at most 2048 bytes of shared memory, got 4480 bytes \(16 per thread"
    with pytest.raises(PlanError, match=message):
        plan.check(SMALL_CUDA, found)


WRONG_CPU = {
    "cpu/lanes(lane_block=128)": "1 to 64 lanes per block, got lane_block=128",
    "cpu/lanes(lane_block=48, vectorize=True)": "a multiple of 32 lanes .* got lane_block=48",
    "cpu/three_phase(chunks=1)": "2 to 4096 chunks, got chunks=1",
    "cpu/three_phase(chunks=6, lane_block=4)": "chunks divisible by lane_block, got chunks=6",
    "cuda/lanes(threads_per_block=32)": "expected a plan for cpu, got device=cuda",
}


@pytest.mark.parametrize("text", WRONG_CPU)
def test_a_plan_that_does_not_fit_the_cpu(text):
    with pytest.raises(PlanError, match=WRONG_CPU[text]):
        ScanPlan.parse(text).check(CPU, LINEAR)


def test_a_target_that_is_neither():
    with pytest.raises(
        PlanError, match=r"expected a target of kind llvm, .* or webgpu, got hexagon"
    ):
        default_plan(Target("hexagon"), LINEAR)


@T.prim_func(s_tir=True)
def brain_sum(X: T.Buffer((4, 1024), "bfloat16"), Y: T.Buffer((4, 1024), "bfloat16")):
    for b in range(4):
        for t in range(1024):
            Y[b, t] = T.if_then_else(t > 0, Y[b, t - 1], T.bfloat16(0)) + X[b, t]


def test_no_line_of_bfloat16_is_stored_past_the_caches():
    """TVM keeps it in registers as float32: the call of a line store had no function."""
    found = extract(brain_sum)
    plan = ScanPlan.parse("cpu/lanes(time_vector=64, nontemporal=True)")
    with pytest.raises(PlanError, match="outputs whose vectors are neighbours in memory"):
        plan.check(AVX512, found)
    assert not any(p.nontemporal for p in enumerate_plans(AVX512, found))
    assert not default_plan(AVX512, found).nontemporal
