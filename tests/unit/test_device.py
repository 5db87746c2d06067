"""A device is a row: checks, spaces and defaults read what it offers, not what it is called."""

import json
import re
from dataclasses import replace

import pytest
import tvm
from tvm.ir import Op
from tvm.script import tirx as T
from tvm.target import Target

from tests.support.cuda_harness import CUDA_TARGET
from tvm_scan import ScanPlan, default_plan, extract, library, parallelize
from tvm_scan.arguments import as_target
from tvm_scan.errors import PlanError
from tvm_scan.meta.space.decisions import enumerate_plans
from tvm_scan.schedules.gpu.lanes import Lanes
from tvm_scan.schedules.gpu.serial_tiles import SerialTiles
from tvm_scan.schedules.gpu.single_pass import SinglePass
from tvm_scan.schedules.gpu.three_phase import ThreePhase
from tvm_scan.schedules.machine.device import DEVICES, Device, device_of
from tvm_scan.schedules.machine.machine import Machine

CUDA = Machine.of(CUDA_TARGET)
AFFINE = extract(library.linear_recurrence(4, 4096))
STATES = extract(library.selective_scan(2, 64, 128, 16))
LONG = extract(library.linear_recurrence(1, 1 << 27))
TREE = SerialTiles(threads_per_block=128, items_per_thread=4)
SHARED = Lanes(threads_per_block=128, items_per_thread=4, threads_per_lane=4)
STAGED = TREE.with_(items_per_thread=8, vector_loads=True, block_load="transposed", stages=2)
OTHERS = [row.name for row in DEVICES.values() if row.is_gpu and row.is_served]
OTHERS.remove("cuda")


def lacking(**facts):
    """A machine with CUDA's row but for some facts, under another name."""
    return replace(CUDA, device=replace(CUDA.device, name="other", **facts))


@T.prim_func(s_tir=True)
def long_time(X: T.Buffer((1,), "float32"), H: T.Buffer((1,), "float32")):
    for _ in range(T.int64((1 << 31) - (1 << 24) + 1)):
        H[0] = H[0] + X[0]


@T.prim_func(s_tir=True)
def long_rows(X: T.Buffer((1 << 20, 1 << 11), "float32"), H: T.Buffer((1 << 20,), "float32")):
    for b, t in T.grid(T.int64(1 << 20), T.int64(1 << 11)):
        H[b] = H[b] + X[b, t]


NOTHING = frozenset()
LACKS = {
    "warp tree": (TREE.with_(block_tree="warp"), AFFINE, {"shuffles": NOTHING}, "with shuffles of"),
    "one shuffle": (
        TREE.with_(block_tree="warp"),
        AFFINE,
        {"shuffles": frozenset({""})},
        "tvm_warp_shuffle_up",
    ),
    "words": (
        TREE.with_(block_tree="warp"),
        extract(library.cumsum(4, 4096, "int64")),
        {"shuffle_bits": 32},
        "elements that shuffles of other move, of at most 32 bits, got int64",
    ),
    "shared lanes": (SHARED, STATES, {"shuffles": frozenset({"", "_up"})}, "shuffle_xor"),
    "exponentials": (SHARED, STATES, {"fast_exp": False}, "instruction for powers of two"),
    "stages": (STAGED, AFFINE, {"async_copies": False}, "asynchronous copies"),
    "vectors": (TREE.with_(vector_loads=True), AFFINE, {"vector_bits": 32}, "128 bits at once"),
    "single pass": (
        SinglePass(threads_per_block=128, items_per_thread=4),
        AFFINE,
        {"ordered_memory": False},
        "stores release",
    ),
    "dtype": (TREE, AFFINE, {"lacks": frozenset({"float32"})}, "dtypes that other has"),
    "index": (
        TREE,
        extract(long_time),
        {"lacks": frozenset({"int64"})},
        "at most 2130706432 steps",
    ),
    "elements": (
        TREE,
        extract(long_rows),
        {"lacks": frozenset({"int64"})},
        "whose indices have 32",
    ),
    "buffers": (TREE, AFFINE, {"buffers": 2}, "at most 2 buffers in a kernel of other, got 3"),
    "buffers of phases": (
        ThreePhase(threads_per_block=32, items_per_thread=4),
        AFFINE,
        {"buffers": 4},
        "2 between kernels.*use an algorithm of one kernel",
    ),
    "grid": (
        ThreePhase(threads_per_block=32, items_per_thread=1),
        LONG,
        {"blocks": (1 << 16) - 1},
        "at most 65535 blocks",
    ),
}


@pytest.mark.parametrize("case", LACKS)
def test_what_a_device_lacks_is_refused_with_the_reason(case):
    plan, recurrence, facts, said = LACKS[case]
    plan.check_on(CUDA, recurrence)
    plan.check_on(lacking(), recurrence)  # the name alone decides nothing
    with pytest.raises(PlanError, match=said):
        plan.check_on(lacking(**facts), recurrence)


def test_shuffles_are_of_32_threads():
    tree = TREE.with_(block_tree="warp")
    tree.check_on(replace(CUDA, warp=64), AFFINE)
    for machine in (replace(lacking(parts_of_warps=False), warp=64), replace(CUDA, warp=16)):
        with pytest.raises(PlanError, match=f"shuffles of 32 threads .*in warps of {machine.warp}"):
            tree.check_on(machine, AFFINE)


@pytest.mark.parametrize("kind", ["nvptx", "hexagon"])
def test_kinds_that_are_not_served_are_refused(kind):
    target = Target(kind, host="llvm")
    for ask in (device_of, Machine.of, lambda t: default_plan(t, AFFINE)):
        with pytest.raises(PlanError, match=f"or webgpu, got {kind}; choose one of them"):
            ask(target)


def test_a_kind_without_a_generator_has_the_kernels_of_another(monkeypatch):
    target = Target("vulkan", host="llvm")
    row = device_of(target)
    assert (row.name, row.language, row.is_generated) == ("vulkan", "webgpu", False)
    assert row.lacks == DEVICES["webgpu"].lacks and row.shared_bytes == 16 << 10
    monkeypatch.setitem(DEVICES, "vulkan", replace(DEVICES["vulkan"], instead=""))
    with pytest.raises(PlanError, match="vulkan, which this build of TVM has no code generator"):
        device_of(target)


@pytest.mark.parametrize("kind", OTHERS)
def test_plans_are_chosen_and_searched_for_every_row(kind):
    target = Target(kind, host="llvm")
    row = device_of(target)
    for recurrence in (AFFINE, STATES, extract(library.cumsum(None, None))):
        if len(recurrence.inputs) + len(recurrence.outputs) > row.buffers:
            with pytest.raises(PlanError, match=f"at most 8 buffers in a kernel of {kind}, got 9"):
                default_plan(target, recurrence)
            continue
        plan = default_plan(target, recurrence)
        plan.check(target, recurrence)
        found = enumerate_plans(target, recurrence)
        assert found
        for one in (plan, *found):
            assert getattr(one, "block_tree", "blelloch") != "warp" or row.warp >= 32, one
            assert getattr(one, "threads_per_lane", 1) == getattr(one, "stages", 1) == 1, one
            assert row.vector_bits == 128 or not getattr(one, "vector_loads", False), one
            assert ScanPlan.parse(str(one)) == one


def test_the_name_of_webgpu_stands_for_what_every_implementation_has():
    def limit(target):
        return Machine.of(as_target(target, "a test")).shared_bytes

    assert limit("webgpu") == limit({"kind": "webgpu", "supports_subgroups": True}) == 16 << 10
    for bytes_of in (8 << 10, 32 << 10):
        said = {"kind": "webgpu", "max_shared_memory_per_block": bytes_of}
        assert limit(said) == limit(json.dumps(said)) == bytes_of
    assert limit("cuda") == limit({"kind": "cuda", "arch": "sm_90"}) == 48 << 10
    big = TREE.with_(threads_per_block=256, items_per_thread=8, block_load="transposed")
    assert 16 << 10 < big.smem_bytes(AFFINE) <= 32 << 10
    big.check(Target("webgpu"), AFFINE)  # as TVM's own target says
    with pytest.raises(PlanError, match="at most 16384 bytes of shared memory"):
        big.check("webgpu", AFFINE)


def test_a_device_is_a_row_and_nothing_else(monkeypatch):
    """One that nobody heard of: small blocks, barriers of the block alone, few buffers."""
    monkeypatch.setitem(DEVICES, "nvptx", Device("nvptx", shared_bytes=4 << 10, buffers=3))
    target = Target({"kind": "nvptx", "max_num_threads": 64}, host="llvm")
    plan = default_plan(target, AFFINE)
    found = enumerate_plans(target, AFFINE)
    assert all(p.threads_per_block <= 64 and p.algorithm != "three_phase" for p in (plan, *found))
    with pytest.raises(
        PlanError, match=r"at most 3 buffers in a kernel of nvptx, got 5 \(3 of the"
    ):
        ThreePhase(threads_per_block=32, items_per_thread=4).check(target, AFFINE)
    blelloch = SerialTiles(threads_per_block=64, items_per_thread=4)
    text = parallelize(library.linear_recurrence(4, 4096), target, blelloch).script()
    assert "tvm_storage_sync" in text and "warp_sync" not in text


# ---- the rows are what TVM 0.27 has -------------------------------------------------------------
@pytest.mark.parametrize("kind", [row.name for row in DEVICES.values() if row.is_gpu])
def test_rows_say_what_tvm_says(kind):
    row, attrs = DEVICES[kind], dict(Target(kind).attrs)
    assert row.threads == attrs["max_num_threads"]
    assert row.warp == attrs["thread_warp_size"]
    assert row.shared_bytes == attrs.get("max_shared_memory_per_block", row.shared_bytes)
    names = {f"tirx.tvm_warp_shuffle{kind}": kind for kind in ("", "_up", "_xor")}
    if kind not in ("vulkan", "webgpu"):  # one has no generator here, the other needs subgroups
        has = {k for name, k in names.items() if Op.get(name).get_attr(f"{kind}.FLowerIntrinsic")}
        assert row.shuffles == has


@pytest.mark.parametrize(
    ("kind", "dtype"), [(k, d) for k in DEVICES for d in sorted(DEVICES[k].lacks)]
)
def test_dtypes_that_a_row_lacks_have_no_code(kind, dtype):
    def copy(dtype):
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), dtype), B: T.Buffer((64,), dtype)):
            for i in T.thread_binding(64, thread="threadIdx.x"):
                B[i] = A[i]

        return main

    target = Target(kind, host="llvm")
    tvm.compile(copy("float32"), target=target)
    try:
        text = tvm.compile(copy(dtype), target=target).mod.imports[0].inspect_source()
    except Exception as error:
        text = str(error)
    # No generator, or a type that WGSL has not.
    assert re.search(r"do not support [iu]64|float64|f16 or f32|array<[iu](8|16)>", text), text
