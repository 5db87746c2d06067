"""Remainders and bounds of integers: taken where the loop's arithmetic does not wrap before them.

The oracle is NumPy, which wraps at every operator at its width. A module holds all loops, so that
a plan is one compilation.
"""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.programs.suite.running import CPU
from tests.support import cusim
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, compile_cuda
from tvm_scan import Recurrence, Refusal, RefusalKind, ScanPlan, extract, parallelize

ROWS, LENGTH = 3, 130
U8, U16, U32, U64 = "uint8", "uint16", "uint32", "uint64"


def source(dtype, start, step, of=None):
    """The loop of a step over ``h`` and ``x`` (of a dtype ``of``).

    It starts from a number, any number of a range, or any number at all.
    """
    first = f"T.{dtype}({start})" if isinstance(start, int) else "F[b]"
    if isinstance(start, range):
        first += f" % T.{dtype}({len(start)})"
    return tvm.script.from_source(
        f"""
@T.prim_func(s_tir=True)
def main(
    F: T.Buffer(({ROWS},), "{dtype}"),
    X: T.Buffer(({ROWS}, {LENGTH}), "{of or dtype}"),
    H: T.Buffer(({ROWS}, {LENGTH}), "{dtype}"),
):
    for b in range({ROWS}):
        h = T.sblock_alloc_buffer((1,), "{dtype}")
        h[0] = {first}
        for t in range({LENGTH}):
            h[0] = {step.format(h="h[0]", x="X[b, t]")}
            H[b, t] = h[0]
""",
        {"T": T},
    )


def wide(h, a, x, m):
    return ((h.astype(U64) * a + x) % m).astype(h.dtype)


#: Dtype, what it starts from, the step, it in NumPy, and the dtype of x if it is another one.
TAKEN = {
    "a sum of residues": (
        U32,
        1,
        "({h} + T.Cast('uint32', {x})) % T.uint32(65521)",
        lambda h, x: (h + x) % 65521,
        U8,
    ),
    "a rolling hash": (
        U32,
        range(65521),
        "({h} * T.uint32(257) + T.Cast('uint32', {x})) % T.uint32(65521)",
        lambda h, x: (h * 257 + x) % 65521,
        U16,
    ),
    "wide arithmetic": (
        U32,
        None,
        "T.Cast('uint32', (T.Cast('uint64', {h}) * T.uint64(1664525) + T.Cast('uint64', {x}))"
        " % T.uint64(1000003))",
        lambda h, x: wide(h, 1664525, x, 1000003),
    ),
    "a power of two": (
        U8,
        None,
        "({h} * T.uint8(31) + {x}) % T.uint8(64)",
        lambda h, x: (h * 31 + x) % 64,
    ),
    "a power of two, signed": (
        "int16",
        None,
        "T.bitwise_and({h} * T.int16(-1235) - {x}, T.int16(4095))",
        lambda h, x: (h * -1235 - x) & 4095,
    ),
    "64 bits": (
        U64,
        None,
        "({h} * T.uint64(6364136223846793005) + {x}) % T.uint64(65536)",
        lambda h, x: (h * np.uint64(6364136223846793005) + x) % 65536,
    ),
    "inputs of 64 bits": (
        U64,
        5,
        "({h} * T.uint64(31) + {x} % T.uint64(999)) % T.uint64(1000003)",
        lambda h, x: (h * 31 + x % 999) % 1000003,
    ),
    "a residue after resets": (
        U8,
        0,
        "T.if_then_else({x} > T.uint8(240), T.uint8(9),"
        " ({h} * T.uint8(2) + {x} % T.uint8(5)) % T.uint8(101))",
        lambda h, x: np.where(x > 240, 9, (h * 2 + x % 5) % 101).astype(U8),
    ),
    "a saturating counter": (
        "int8",
        2,
        "T.min(T.max({h} + T.if_then_else({x} > T.int8(0), T.int8(1), T.int8(-1)),"
        " T.int8(0)), T.int8(3))",
        lambda h, x: np.clip(h + np.where(x > 0, 1, -1), 0, 3).astype("int8"),
    ),
    "bounds that leave room": (
        "int16",
        0,
        "T.min(T.max({h} + T.Cast('int16', {x}), T.int16(-32000)), T.int16(32000))",
        lambda h, x: np.clip(h + x.astype("int16"), -32000, 32000),
        "int8",
    ),
}
REFUSED = {
    "a product of bytes": (U8, 0, "({h} * T.uint8(31) + {x}) % T.uint8(251)"),
    "a sum of words": (U16, 0, "({h} + {x}) % T.uint16(60000)"),
    "a generator": (
        U32,
        0,
        "({h} * T.uint32(1664525) + {x}) % T.uint32(1000003)",
    ),
    "signed bytes": ("int8", 0, "({h} * T.int8(31) + {x}) % T.int8(101)"),
    "64 bits": (U64, 0, "({h} * T.uint64(31) + {x}) % T.uint64(1000003)"),
    "any first carry": (
        U32,
        None,
        "({h} + T.Cast('uint32', {x})) % T.uint32(65521)",
        U8,
    ),
    "a reset to anything": (
        U8,
        0,
        "T.if_then_else({x} > T.uint8(240), {x},"
        " ({h} * T.uint8(2) + {x} % T.uint8(5)) % T.uint8(101))",
    ),
    "a remainder of what wrapped": (
        U16,
        0,
        "T.Cast('uint16', T.Cast('uint8', {h} + {x} % T.uint16(300))) % T.uint16(300)",
    ),
    "a floor of bytes": ("int8", 0, "T.max({h} + {x}, T.int8(-50))"),
    "a floor of words": ("int16", 0, "T.max({h} + {x}, T.int16(-50))"),
    "bounds without room": (
        "int8",
        0,
        "T.min(T.max({h} + {x} % T.int8(3), T.int8(-50)), T.int8(126))",
    ),
    "bounds of any first carry": (
        "int8",
        None,
        "T.min(T.max({h} + {x} % T.int8(3), T.int8(-50)), T.int8(50))",
    ),
    "a shift after the bound": (
        "int8",
        0,
        "T.min(T.max({h}, T.int8(-90)), T.int8(90)) + {x} % T.int8(64)",
    ),
}
CPU_PLANS = (
    "cpu/lanes(lane_block=2)",
    "cpu/lanes(lane_block=2, vectorize=True)",
    "cpu/three_phase(chunks=4)",
)
CUDA_PLANS = (
    "cuda/lanes(threads_per_block=32)",
    "cuda/serial_tiles(threads_per_block=8, items_per_thread=3)",
)


def loop_of(name):
    dtype, start, step, _, *of = TAKEN[name]
    return source(dtype, start, step, *of)


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name):
    found = extract(loop_of(name))
    assert isinstance(found, Recurrence), found.message()


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    found = extract(source(*REFUSED[name]))
    assert isinstance(found, Refusal)
    assert found.kind is RefusalKind.UNSUPPORTED_STEP
    assert "may wrap in" in found.message()


def inputs(name):
    dtype, *_, of = (*TAKEN[name], None)[:5]
    rng = np.random.default_rng(len(name))

    def anything(dtype, shape):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)

    return anything(dtype, ROWS), anything(of or dtype, (ROWS, LENGTH))


def wanted(name):
    first, xs = inputs(name)
    dtype, start, _, step, *_ = TAKEN[name]
    h = np.full(ROWS, start, dtype) if isinstance(start, int) else first
    h = h % len(start) if isinstance(start, range) else h
    out = np.zeros((ROWS, LENGTH), dtype)
    for t in range(LENGTH):
        h = step(h, xs[:, t])
        assert h.dtype == dtype
        out[:, t] = h
    return out


def differing(plan, target, build, device):
    chosen, funcs = ScanPlan.parse(plan), {}
    for i, name in enumerate(TAKEN):
        func = parallelize(loop_of(name), target, chosen)
        funcs[f"loop{i}"] = func.with_attr("global_symbol", f"loop{i}")
    executable, found = build(tvm.IRModule(funcs)), []
    for i, name in enumerate(TAKEN):
        want = wanted(name)
        arrays = (*inputs(name), np.zeros_like(want))
        tensors = [tvm.runtime.tensor(array, device) for array in arrays]
        executable[f"loop{i}"](*tensors)
        if not np.array_equal(tensors[-1].numpy(), want):
            found.append(name)
    return found


@pytest.mark.parametrize("plan", CPU_PLANS)
def test_cpu(plan):
    assert differing(plan, CPU, lambda mod: compile_cached(mod, target=CPU), tvm.cpu()) == []


@pytest.mark.parametrize("plan", CUDA_PLANS)
def test_cuda(plan):
    with cusim.settings(seed=0, race=False):
        assert differing(plan, CUDA_TARGET, compile_cuda, tvm.cuda()) == []
