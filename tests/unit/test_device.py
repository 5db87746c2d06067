"""A device is a row: checks, spaces and defaults read what it offers, not what it is called."""

from dataclasses import replace

import pytest
import tvm
from tvm.ir import Op
from tvm.script import tirx as T
from tvm.target import Target

from tests.support.cuda_harness import CUDA_TARGET
from tvm_scan import ScanPlan, default_plan, extract, library, parallelize, tir
from tvm_scan.errors import PlanError
from tvm_scan.meta.space.decisions import enumerate_plans
from tvm_scan.schedules.gpu.lanes import Lanes
from tvm_scan.schedules.gpu.serial_tiles import SerialTiles
from tvm_scan.schedules.gpu.single_pass import SinglePass
from tvm_scan.schedules.gpu.three_phase import ThreePhase
from tvm_scan.schedules.machine.device import DEVICES, device_of
from tvm_scan.schedules.machine.machine import Machine

CUDA = Machine.of(CUDA_TARGET)
AFFINE = extract(library.linear_recurrence(4, 4096))
STATES = extract(library.selective_scan(2, 64, 128, 16))
LONG = extract(library.linear_recurrence(1, 1 << 27))
TREE = SerialTiles(threads_per_block=128, items_per_thread=4)
SHARED = Lanes(threads_per_block=128, items_per_thread=4, threads_per_lane=4)
STAGED = TREE.with_(items_per_thread=8, vector_loads=True, block_load="transposed", stages=2)
UNSERVED = [row.name for row in DEVICES.values() if not row.is_served]


def lacking(**facts):
    """A machine with CUDA's row but for some facts, under another name."""
    return replace(CUDA, device=replace(CUDA.device, name="other", **facts))


@T.prim_func(s_tir=True)
def long_indices(X: T.Buffer((64,), "float32"), H: T.Buffer((64,), "float32")):
    for t in range(T.int64(64)):
        H[t] = T.if_then_else(t == T.int64(0), T.float32(0), H[t - T.int64(1)]) + X[t]


NOTHING = frozenset()
LACKS = {
    "warp tree": (TREE.with_(block_tree="warp"), AFFINE, {"shuffles": NOTHING}, "with shuffles in"),
    "one shuffle": (
        TREE.with_(block_tree="warp"),
        AFFINE,
        {"shuffles": frozenset({""})},
        "tvm_warp_shuffle_up",
    ),
    "shared lanes": (SHARED, STATES, {"shuffles": frozenset({"", "_up"})}, "shuffle_xor"),
    "exponentials": (SHARED, STATES, {"fast_exp": False}, "instruction for powers of two"),
    "blelloch": (TREE, AFFINE, {"warp_barrier": False}, "barriers of warps"),
    "a warp of kogge_stone": (
        TREE.with_(block_tree="kogge_stone", threads_per_block=32),
        AFFINE,
        {"warp_barrier": False},
        "barriers of warps",
    ),
    "stages": (STAGED, AFFINE, {"async_copies": False}, "asynchronous copies"),
    "vectors": (TREE.with_(vector_loads=True), AFFINE, {"vector_bits": 32}, "128 bits at once"),
    "single pass": (
        SinglePass(threads_per_block=128, items_per_thread=4),
        AFFINE,
        {"ordered_memory": False},
        "stores release",
    ),
    "dtype": (TREE, AFFINE, {"lacks": frozenset({"float32"})}, "dtypes that other has"),
    "index": (TREE, extract(long_indices), {"lacks": frozenset({"int64"})}, "int64 for"),
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


@pytest.mark.parametrize("tree", ["blelloch", "warp"])
def test_warps_of_another_width_have_neither_barriers_nor_shuffles(tree):
    with pytest.raises(PlanError, match="warps of 64"):
        TREE.with_(block_tree=tree).check_on(replace(CUDA, warp=64), AFFINE)


@pytest.mark.parametrize("kind", UNSERVED)
def test_kinds_that_are_not_served_are_refused(kind):
    target = Target(kind, host="llvm")
    for ask in (device_of, Machine.of, lambda t: default_plan(t, AFFINE)):
        with pytest.raises(PlanError, match=f"of kind llvm, c or cuda, got {kind}"):
            ask(target)


@pytest.mark.parametrize("kind", UNSERVED)
def test_a_row_that_is_served_is_chosen_for_and_searched(kind, monkeypatch):
    row = replace(DEVICES[kind], is_served=True)
    monkeypatch.setitem(DEVICES, kind, row)
    target = Target(kind, host="llvm")
    for recurrence in (AFFINE, STATES, extract(library.cumsum(None, None))):
        if tir.dtype_of(recurrence.time.var) in row.lacks:
            with pytest.raises(PlanError, match="got int64 for"):
                default_plan(target, recurrence)
            continue
        plan = default_plan(target, recurrence)
        plan.check(target, recurrence)
        found = enumerate_plans(target, recurrence)
        assert found
        for one in (plan, *found):
            assert getattr(one, "block_tree", "kogge_stone") == "kogge_stone", one
            assert getattr(one, "threads_per_lane", 1) == getattr(one, "stages", 1) == 1, one
            assert row.vector_bits == 128 or not getattr(one, "vector_loads", False), one
            assert ScanPlan.parse(str(one)) == one


def test_a_row_is_all_that_a_kernel_needs(monkeypatch):
    """OpenCL's text, with barriers of the block alone: nothing but the row knows the kind."""
    monkeypatch.setitem(DEVICES, "opencl", replace(DEVICES["opencl"], is_served=True))
    target = Target("opencl", host="llvm")
    func = parallelize(library.linear_recurrence(4, 4096), target)
    plan = default_plan(target, AFFINE)
    assert "kogge_stone" in str(plan), plan
    module = tvm.compile(func, target=target).mod
    source = module.imports[0].inspect_source()
    assert "barrier(CLK_LOCAL_MEM_FENCE)" in source
    assert "shuffle" not in source and "syncwarp" not in source


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
    with pytest.raises(Exception, match=r"float64|i64|u64|f16 or f32"):
        tvm.compile(copy(dtype), target=target)
