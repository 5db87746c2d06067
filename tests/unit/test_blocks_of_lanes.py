"""Blocks of lanes on a CPU: where their arrays lie, and which parts of a step run apart."""

from math import prod

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock
from tvm.script import from_source
from tvm.script import tirx as T
from tvm.target import Target

from tvm_scan import ScanPlan, extract, library, parallelize, tir
from tvm_scan.schedules.common.ir import Kernel, loop
from tvm_scan.schedules.common.stack import on_stack
from tvm_scan.schedules.cpu.lane_tiles import LaneTiles

CPU = Target.from_device("cpu")
#: What the plan needs, whatever machine the tests run on.
AVX512 = Target({"kind": "llvm", "mcpu": "emeraldrapids"})
TILES = ScanPlan.of("cpu", "lanes", lane_block=16, vectorize=True, transpose=True, ldexp=True)


def bytes_of(buffer):
    return prod(map(int, tir.shape_of(buffer))) * tir.byte_size(tir.dtype_of(buffer))


def test_all_arrays_of_a_block_are_one_buffer():
    """Buffers of their own begin at pages, and their loads wait for one another's stores."""
    func = parallelize(library.selective_scan(1, 32, 64, 16), AVX512, TILES)
    blocks = []
    tvm_ffi.structural_walk(func.body, [(SBlock, blocks.append)])
    large = [b for block in blocks for b in block.alloc_buffers if bytes_of(b) > 1024]
    assert len(large) == 1 and bytes_of(large[0]) >= 6 * 1024


@pytest.mark.parametrize("dtype", ["int8", "float32", "float64"])
def test_arrays_begin_at_lines_and_do_not_overlap(dtype):
    out = tirx.decl_buffer([3, 7], dtype, "out", layout=None)
    arrays = [tirx.decl_buffer([7], dtype, f"a{i}", scope="local", layout=None) for i in range(3)]
    square = tirx.decl_buffer([2, 7], dtype, "square", scope="local", layout=None)

    def fill(array, i):
        return loop("c", 7, lambda c: tirx.BufferStore(array, (c + 10 * i).astype(dtype), [c]))

    row = [tirx.IntImm("int32", 1), tirx.Ramp(tirx.IntImm("int32", 0), 1, 7)]
    body = [fill(array, i) for i, array in enumerate(arrays)]
    body.append(
        loop("c", 7, lambda c: tirx.BufferStore(square, tirx.BufferLoad(arrays[2], [c]), [1, c]))
    )
    body += [
        tirx.BufferStore(out, tirx.BufferLoad(array, [row[1]]), [i, row[1]])
        for i, array in enumerate(arrays[:2])
    ]
    body.append(tirx.BufferStore(out, tirx.BufferLoad(square, row), [2, row[1]]))
    every = [*arrays, square]
    kernel = on_stack(Kernel("arrays", [], [out], tir.seq(body), every), every)
    assert len(kernel.allocs) == 1 and bytes_of(kernel.allocs[0]) > 1024
    func = tirx.PrimFunc([out], kernel.block([])).with_attr(
        {"global_symbol": "main", "s_tir": True}
    )
    filled = tvm.runtime.tensor(np.zeros((3, 7), dtype))
    tvm.compile(tvm.IRModule({"main": func}), CPU)["main"](filled)
    assert (filled.numpy() == np.arange(7) + 10 * np.arange(3)[:, None]).all()


def parts_of(func):
    return LaneTiles(extract(func), 16).parts


def test_exponentials_before_and_after_the_carries_run_apart():
    recurrence = extract(library.selective_scan(1, 32, 64, 16))
    state = recurrence.carries[0].state
    parts = LaneTiles(recurrence, 16).parts
    before, core, after = parts.bodies
    assert [r.local.name for r in parts.registers] == ["dt_reg_of_steps", "y_reg_of_steps"]
    assert not tir.contains_var(after, [state])
    assert not tir.contains_var(before, [state]) and tir.contains_var(core, [state])


def test_a_step_without_is_one_part():
    assert len(parts_of(library.linear_recurrence(4, 64)).bodies) == 1


@T.prim_func(s_tir=True)
def kept(X: T.Buffer((4, 64), "float32"), H: T.Buffer((4, 64), "float32")):
    g = T.alloc_buffer((1,), "float32")
    for r in range(4):
        g[0] = T.float32(0)
        for t in range(64):
            H[r, t] = T.if_then_else(t > 0, H[r, t - 1], T.float32(0)) * g[0] + X[r, t]
            g[0] = T.exp(X[r, t])


def test_a_value_that_the_next_step_reads_stays_with_the_carries():
    parts = parts_of(kept)
    assert len(parts.bodies) == 1 and not parts.registers


def read_out(time_first):
    """A state that is added to and read in every step, of arrays with time first, or last."""
    keys, lanes = ("t, n", "t, c") if time_first else ("n, t", "c, t")
    sizes = {"t": 40, "n": 8, "c": 64}
    of_keys, of_lanes = (tuple(sizes[v] for v in i.split(", ")) for i in (keys, lanes))
    return from_source(
        f"""
@T.prim_func(s_tir=True)
def read_out(
    K: T.Buffer({of_keys}, "float32"), V: T.Buffer({of_lanes}, "float32"),
    Y: T.Buffer({of_lanes}, "float32"),
):
    for c in range(64):
        S = T.alloc_buffer((8,), "float32")
        for n in range(8):
            S[n] = T.float32(0)
        for t in range(40):
            y = T.alloc_buffer((1,), "float32")
            y[0] = T.float32(0)
            for n in range(8):
                S[n] = T.float32(0.5) * S[n] + K[{keys}] * V[{lanes}]
                y[0] = y[0] + K[{keys}] * S[n]
            Y[{lanes}] = y[0]
""",
        {"T": T},
    )


def test_sums_over_a_state_stay_in_registers():
    """In a strip of several vectors, too: what is added to is no array of all lanes."""
    loop_of_steps = read_out(time_first=True)
    plan = ScanPlan.of("cpu", "lanes", lane_block=64, vectorize=True)
    func = parallelize(loop_of_steps, CPU, plan)
    loops = []
    tvm_ffi.structural_walk(func.body, [(tirx.For, loops.append)])
    sums = 0
    for each in loops:
        stores = []
        tvm_ffi.structural_walk(each.body, [(tirx.BufferStore, stores.append)])
        if len(stores) == 2 and int(each.extent) == 8:
            sizes = sorted(prod(map(int, tir.shape_of(store.buffer))) for store in stores)
            # The state is of all lanes, the sum is of the lanes of a vector.
            assert sizes[0] == 32
            sums += 1
    assert sums == 1

    rng = np.random.default_rng(0)
    K, V = rng.random((40, 8)).astype("float32"), rng.random((40, 64)).astype("float32")
    got = {}
    for width in (32, 64):
        plan = ScanPlan.of("cpu", "lanes", lane_block=width, vectorize=True)
        tensors = [tvm.runtime.tensor(a) for a in (K, V, np.zeros((40, 64), "float32"))]
        tvm.compile(parallelize(loop_of_steps, CPU, plan), target=CPU)(*tensors)
        got[width] = tensors[2].numpy()
    np.testing.assert_array_equal(got[32], got[64])
    state, want = np.zeros((8, 64)), np.zeros((40, 64))
    for t in range(40):
        state = 0.5 * state + np.outer(K[t], V[t])
        want[t] = K[t].astype("float64") @ state
    np.testing.assert_allclose(got[64], want, rtol=1e-5)


def test_what_two_statements_read_for_all_lanes_has_one_tile():
    (shared,) = LaneTiles(extract(read_out(time_first=False)), 16).shared
    assert shared.load.source.name == "K"


@pytest.mark.parametrize(
    ("rows", "options", "tasks"),
    [
        (7, {"lane_block": 4}, 2),
        (31, {"lane_block": 16, "vectorize": True}, 2),
        (100, {"lane_block": 16, "vectorize": True, "transpose": True}, 7),
        (119, {"lane_block": 64, "vectorize": True, "transpose": True}, 2),
        (15, {"lane_block": 16, "vectorize": True}, 1),
        (3, {"lane_block": 8}, 1),
    ],
)
def test_lanes_beyond_full_blocks_are_the_first_task_of_the_same_loop(rows, options, tasks):
    """As nests of their own they were done one after another, on one core, by passes of their own.

    Sums of 1276 columns of 1540 steps in strips of 640 took a Zen 4 310 us, and take 161; of 31
    rows of 5000 steps in vectors of 16 rows 50 and 25.
    """
    func = parallelize(library.cumsum(rows, 100), CPU, ScanPlan.of("cpu", "lanes", **options))
    loops, blocks = [], []
    tvm_ffi.structural_walk(func.body, [(tirx.For, loops.append), (SBlock, blocks.append)])
    assert len([b for b in blocks if b.name_hint == "scan_lanes"]) == 1
    outer = [loop for loop in loops if loop.kind == tirx.ForKind.PARALLEL]
    assert [int(loop.extent) for loop in outer] == [tasks]
    # The first core has most tasks: it is given the narrower one.
    choices = tir.nodes(func.body, tirx.IfThenElse)
    assert bool(choices) == (tasks > 1)
    assert all(tir.as_int(choice.condition.b) == 1 for choice in choices[:1])
