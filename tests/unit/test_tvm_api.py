"""The TVM API that tvm_scan relies on; a TVM upgrade fails here first.

Each test holds one thing and says what leans on it. Nothing here tests tvm_scan.
"""

import inspect
import json
import pickle

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad, TensorRegion, Var
from tvm.s_tir import SBlock, SBlockRealize, ScheduleError
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord
from tvm.s_tir.schedule import ScheduleState, Trace
from tvm.script import tirx as T
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, BufferType, For, ForKind, SeqStmt

ROWS, LENGTH = 3, 5


@T.prim_func(s_tir=True)
def scan(
    x: T.Buffer((ROWS, LENGTH), "float32"),
    y: T.Buffer((ROWS, LENGTH), "float32"),
    h: T.Buffer((ROWS, LENGTH), "float32"),
):
    for i, t in T.grid(ROWS, LENGTH):
        with T.sblock("double"):
            vi, vt = T.axis.remap("SS", [i, t])
            y[vi, vt] = x[vi, vt] * T.float32(2)
    for i in range(ROWS):
        for t in range(LENGTH):
            with T.sblock("scan"):
                vi = T.axis.spatial(ROWS, i)
                vt = T.axis.scan(LENGTH, t)
                T.reads(h[vi, vt - 1], y[vi, vt])
                T.writes(h[vi, vt])
                h[vi, vt] = T.if_then_else(vt > 0, h[vi, vt - 1], T.float32(0)) + y[vi, vt]


@pytest.fixture
def sch():
    return s_tir.Schedule(scan, debug_mask="all")


def parameters(function):
    return [p for p in inspect.signature(function).parameters if p != "self"]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (BufferStore.__init__, ["buffer", "value", "indices"]),
        (SeqStmt.__init__, ["seq"]),
        (SBlockRealize.__init__, ["iter_values", "predicate", "block"]),
        (
            For.__init__,
            [
                "loop_var",
                "min",
                "extent",
                "kind",
                "body",
                "thread_binding",
                "annotations",
                "step",
            ],
        ),
        (
            SBlock.__init__,
            [
                "iter_vars",
                "reads",
                "writes",
                "name_hint",
                "body",
                "init",
                "alloc_buffers",
                "match_buffers",
                "annotations",
            ],
        ),
        (tirx.IterVar.__init__, ["dom", "var", "iter_type", "thread_tag"]),
        (ScheduleState.replace, ["src_sref", "tgt_stmt", "block_sref_reuse"]),
        (Trace.pop, []),
        (s_tir.renew_defs, ["func"]),
        (tvm_ffi.structural_map, ["root", "callbacks"]),
        (tvm_ffi.structural_walk, ["root", "callbacks"]),
        (TuningRecord.__init__, ["trace", "workload", "run_secs", "target", "args_info"]),
        (JSONDatabase.__init__, ["path_workload", "path_tuning_record"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_leading_parameters(function, expected):
    name = getattr(function, "__qualname__", str(function))
    assert parameters(function)[: len(expected)] == expected, f"{name} changed its parameters"


def test_buffers_are_variables_of_buffer_type():
    """Extraction and the builders: identity is by the variable, shape and dtype by its type."""
    buffer = scan.params[0]
    assert isinstance(buffer, Var)
    assert buffer.name == "x"
    assert isinstance(buffer.ty, BufferType)
    assert [int(extent) for extent in buffer.ty.shape] == [ROWS, LENGTH]
    assert str(buffer.ty.dtype) == "float32"
    assert buffer.ty.storage_scope == "global"
    # The same three, through the variable itself.
    assert [int(extent) for extent in buffer.shape] == [ROWS, LENGTH]
    assert str(buffer.dtype) == "float32"


def test_regions_name_their_source(sch):
    block = sch.get(sch.get_sblock("scan"))
    assert all(isinstance(region, TensorRegion) for region in [*block.reads, *block.writes])
    assert block.writes[0].source.same_as(scan.params[2])
    assert int(block.writes[0].region[0].extent) == 1


def test_time_axis_keeps_its_kind(sch):
    kinds = [iter_var.iter_type for iter_var in sch.get(sch.get_sblock("scan")).iter_vars]
    assert kinds == [tirx.IterVar.DataPar, tirx.IterVar.Ordered]


def test_walk_and_map_reach_every_node():
    """The spine of every analysis and of every substitution."""
    stores, loads = [], []
    tvm_ffi.structural_walk(
        scan.body,
        [(BufferStore, lambda n: stores.append(n)), (TensorLoad, lambda n: loads.append(n))],
    )
    assert len(stores) == 2
    assert len(loads) == 3
    assert loads[0].source.same_as(scan.params[0])
    assert len(loads[0].indices) == 2
    x, y = scan.params[:2]
    swapped = tvm_ffi.structural_map(scan.body, (Var, lambda v: y if v.same_as(x) else v))
    sources = []
    tvm_ffi.structural_walk(swapped, (Var, lambda v: sources.append(v)))
    assert not any(v.same_as(x) for v in sources)
    assert any(v.same_as(y) for v in sources)


def test_renew_defs_gives_new_variables():
    """A cached template may be spliced in twice only if its definitions are new each time."""
    copy = s_tir.renew_defs(scan)
    assert not copy.params[0].same_as(scan.params[0])
    tvm.ir.assert_structural_equal(copy, scan)


def test_nodes_can_be_built_by_hand():
    buffer = tirx.decl_buffer((4,), "int32", name="b")
    assert isinstance(buffer, Var)
    loop_var, axis = Var("i", "int32"), Var("vi", "int32")
    iter_var = tirx.IterVar(tvm.ir.Range(0, 4), axis, tirx.IterVar.DataPar)
    region = tirx.BufferRegion(buffer, [tvm.ir.Range.from_min_extent(axis, 1)])
    store = BufferStore(buffer, tirx.const(7, "int32"), [axis])
    block = SBlock([iter_var], [], [region], "seven", store)
    loop = For(loop_var, 0, 4, ForKind.SERIAL, SBlockRealize([loop_var], True, block))
    func = tvm.tirx.PrimFunc([buffer], loop).with_attr({"global_symbol": "main", "s_tir": True})
    out = tvm.runtime.tensor(np.zeros(4, "int32"))
    tvm.compile(func, target="llvm")(out)
    assert out.numpy().tolist() == [7] * 4


def blocks_by_name(stmt):
    found = {}
    tvm_ffi.structural_walk(stmt, (SBlock, lambda block: found.update({block.name_hint: block})))
    return found


def test_replace_keeps_random_variables_and_needs_a_flag_refresh(sch):
    """The primitive: replace, then recompute the cached flags through blockize."""
    block = sch.get_sblock("scan")
    root = sch.get_sref(sch.get_sblock("root"))

    def renamed(old):
        if old.name_hint != "scan":
            return old
        return SBlock(old.iter_vars, old.reads, old.writes, "renamed", old.body)

    new_root = tvm_ffi.structural_map(root.stmt, (SBlock, renamed))
    reuse = {root.stmt: new_root, sch.get(block): blocks_by_name(new_root)["renamed"]}
    sch.state.replace(root, new_root, reuse)
    assert sch.get(block).name_hint == "renamed"
    flags = sch.state._get_cached_flags(sch.get_sref(block))
    assert hasattr(flags, "affine_binding")
    assert hasattr(flags, "region_cover")
    assert hasattr(flags, "stage_pipeline")
    sch.blockize(sch.get_loops(sch.get_sblock("renamed"))[-1])
    flags = sch.state._get_cached_flags(sch.get_sref(block))
    assert flags.affine_binding
    assert flags.region_cover


def test_trace_pops_what_was_recorded(sch):
    """A silent expansion takes back what stock primitives recorded."""
    before = len(sch.trace.insts)
    sch.get_loops(sch.get_sblock("scan"))
    assert len(sch.trace.insts) == before + 2
    sch.trace.pop()
    popped = sch.trace.pop()
    assert popped.kind.name == "GetSBlock"
    assert len(sch.trace.insts) == before


def annotated_schedule():
    sch = s_tir.Schedule(scan)
    block = sch.get_sblock("scan")
    items = sch.sample_categorical([2, 4, 8], [0.25, 0.5, 0.25], decision=1)
    sch.annotate(block, "tvm_scan.test.items", items)
    sch.annotate(block, "tvm_scan.test.grid", "serial_tiles")
    sch.annotate(block, "tvm_scan.test.threads", 128)
    return sch


def test_scalar_annotations_survive_the_trace_as_json():
    """A plan is stored as scalar annotations; a sampled one is replayed with its decision."""
    sch = annotated_schedule()
    # A list-valued annotation would lose its sampling instruction in `simplified`.
    trace = sch.trace.simplified(remove_postproc=True)
    replayed = s_tir.Schedule(scan)
    Trace.apply_json_to_schedule(json.loads(json.dumps(_plain(trace.as_json()))), replayed)
    tvm.ir.assert_structural_equal(replayed.mod, sch.mod)
    found = replayed.get(replayed.get_sblock("scan")).annotations
    assert int(found["tvm_scan.test.items"]) == 4
    assert str(found["tvm_scan.test.grid"]) == "serial_tiles"
    assert int(found["tvm_scan.test.threads"]) == 128
    replayed.unannotate(replayed.get_sblock("scan"), "tvm_scan.test.grid")
    assert "tvm_scan.test.grid" not in replayed.get(replayed.get_sblock("scan")).annotations


def _plain(value):
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    if isinstance(value, int | float) or value is None:
        return value
    return [_plain(item) for item in value]


def test_stock_database_keeps_annotated_traces(tmp_path):
    paths = str(tmp_path / "workload.json"), str(tmp_path / "records.json")
    sch = annotated_schedule()
    mod = tvm.IRModule({"main": scan})
    database = JSONDatabase(*paths)
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    record = TuningRecord(
        sch.trace, database.commit_workload(mod), [1e-3], target, ArgInfo.from_prim_func(scan)
    )
    database.commit_tuning_record(record)

    loaded = JSONDatabase(*paths)
    assert len(loaded) == 1
    assert loaded.has_workload(mod)
    found = loaded.query_schedule(mod, target, "main")
    assert found is not None
    tvm.ir.assert_structural_equal(found.mod, sch.mod)


def test_modules_are_serialised():
    """What crashes the process with tvm-ffi 0.1.15; MetaSchedule does it for every candidate."""
    mod = tvm.IRModule({"main": scan})
    tvm.ir.assert_structural_equal(tvm.ir.load_json(tvm.ir.save_json(mod)), mod)
    tvm.ir.assert_structural_equal(pickle.loads(pickle.dumps(mod)), mod)


def test_scripts_round_trip_and_underline():
    """Refusals show the offending expression underlined."""
    mod = tvm.IRModule({"main": scan})
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)
    stores = []
    tvm_ffi.structural_walk(scan.body, (BufferStore, lambda n: stores.append(n)))
    text = mod.script(obj_to_underline=[stores[1].value])
    assert "^^^^" in text


def test_schedule_error_is_the_base_of_what_primitives_raise(sch):
    assert issubclass(ScheduleError, Exception)
    loop = sch.get_loops(sch.get_sblock("scan"))[-1]
    with pytest.raises(ScheduleError, match="parallel"):
        sch.parallel(loop)


def test_simplifier_proves_bounds():
    analyzer = Analyzer()
    i = Var("i", "int32")
    analyzer.bind(i, tvm.ir.Range(0, 8))
    assert analyzer.can_prove(i < 8)
    assert not analyzer.can_prove(i < 7)
    assert analyzer.can_prove_equal((i + 1) * 2, i * 2 + 2)


def test_cuda_source_is_emitted_without_a_device():
    """Kernels are compiled by nvcc and run on the CPU from this source."""

    @T.prim_func(s_tir=True)
    def double(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("y"):
                vt = T.axis.spatial(64, t)
                y[vt] = x[vt] * T.float32(2)

    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host={"kind": "llvm"})
    source = tvm.compile(double, target=target).mod.imports[0].inspect_source()
    assert "__global__" in source
    assert "threadIdx.x" in source


def aligned_to(alignment, offset=0):
    """Six floats that start `offset` bytes after a multiple of `alignment`."""
    raw = np.zeros(6 * 4 + 2 * alignment, "uint8")
    start = -raw.ctypes.data % alignment + offset
    return raw[start : start + 6 * 4].view("float32")


def test_aligned_arrays_pass_without_a_copy():
    x = aligned_to(64)
    tensor = tvm.runtime.from_dlpack(x)
    x[0] = 9
    assert np.from_dlpack(tensor)[0] == 9


def test_misaligned_arrays_are_refused_not_misread():
    """NumPy aligns to 16 bytes only, so whoever takes arrays of users copies these."""
    with pytest.raises(RuntimeError, match="not aligned to 64 bytes"):
        tvm.runtime.from_dlpack(aligned_to(64, offset=16))
