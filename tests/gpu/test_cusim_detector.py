"""Each thing that the simulated device reports, in the smallest kernel that does it.

And the same kernel with what mends it, of which nothing is reported: a detector that reports too
much would be switched off.
"""

import numpy as np
import pytest
import tvm

from tests.gpu.test_cusim import THREADS, LaunchError, elementwise, with_body
from tests.gpu.test_cusim_waiting import BLOCKS, chain
from tests.support import cusim
from tests.support.cuda_harness import compile_cuda

pytestmark = [
    pytest.mark.skipif(not cusim.is_simulated(), reason="tests of the simulator itself"),
]

#: What one part of a block does, what orders it, what another part does; and what is reported
#: where nothing orders them.
UNORDERED = {
    "words": ("if (t == 0) y_ptr[0] = 1;", "if (t == 40) y_ptr[0] = 2;", "global"),
    "lanes of two warps": ("cell[t] = t;", "y_ptr[t] = cell[t ^ 32];", "shared"),
    "lanes of one warp": ("cell[t] = t;", "y_ptr[t] = cell[t ^ 1];", "shared"),
    "a read, then a write": ("y_ptr[t] = cell[t ^ 32];", "cell[t] = t;", "shared"),
    "an atomic after a write": ("if (t == 0) y_ptr[0] = 1;", "atomicAdd(y_ptr, 1);", "global"),
    "an atomic after a read": (
        "if (t == 0) y_ptr[1] = y_ptr[0];",
        "if (t == 40) atomicAdd(y_ptr, 1);",
        "global",
    ),
    "a read after an atomic": ("atomicAdd(cell, 1);", "y_ptr[t] = cell[0];", "shared"),
    "a write after an atomic": ("atomicAdd(cell, 1);", "if (t == 40) cell[0] = 1;", "shared"),
    "a read after a volatile write": (
        "if (t == 0) *(volatile int*)y_ptr = 1;",
        "if (t == 40) y_ptr[1] = y_ptr[0];",
        "global",
    ),
    "a volatile write after a read": (
        "if (t == 0) y_ptr[1] = y_ptr[0];",
        "if (t == 40) *(volatile int*)y_ptr = 1;",
        "global",
    ),
    "bytes": ("if (t == 0) bytes[3] = 1;", "if (t == 40) bytes[3] = 2;", "global"),
    "a byte of a word": ("if (t == 0) y_ptr[5] = 1;", "if (t == 40) bytes[22] = 1;", "global"),
    "a word of a byte": ("if (t == 0) bytes[22] = 1;", "if (t == 40) y_ptr[5] = 1;", "global"),
    "a half of a word": (
        "if (t == 0) y_ptr[5] = 1;",
        "if (t == 40) ((short*)y_ptr)[11] = 1;",
        "global",
    ),
    "a word of a vector": (
        "if (t == 0) *(int4*)y_ptr = make_int4(1, 1, 1, 1);",
        "if (t == 40) y_ptr[1] = y_ptr[3];",
        "global",
    ),
    "a vector of a word": (
        "if (t == 0) y_ptr[3] = 1;",
        "if (t == 40) *(int4*)y_ptr = make_int4(1, 1, 1, 1);",
        "global",
    ),
    "a word of 64 bits": (
        "if (t == 0) *(long long*)(y_ptr + 2) = 1;",
        "if (t == 40) y_ptr[3] = 1;",
        "global",
    ),
    "a structure": (
        "if (t == 0) *(Row*)y_ptr = *(Row*)(x_ptr + 64);",
        "if (t == 40) y_ptr[15] = 1;",
        "global",
    ),
}
#: Nothing orders these either, and nothing has to.
APART = {
    "atomics": ("atomicAdd(y_ptr, 1);", "atomicMax(y_ptr, 2);"),
    "volatile words": ("*(volatile int*)y_ptr = t;", "*(volatile int*)y_ptr = t + 1;"),
    "an atomic and a volatile word": ("atomicAdd(y_ptr, 1);", "*(volatile int*)y_ptr = 1;"),
    "an atomic after its own write": (
        "if (t == 0) y_ptr[0] = 1;",
        "if (t == 0) atomicAdd(y_ptr, 1);",
    ),
    "reads": ("y_ptr[t] = cell[0];", "y_ptr[t] += cell[0];"),
    "neighbouring bytes": ("bytes[t] = 1;", "bytes[t] = 2;"),
    "neighbouring halves": ("((short*)y_ptr)[t] = 1;", "((short*)y_ptr)[t] = 2;"),
    "a vector beside a word": (
        "if (t == 0) *(int4*)y_ptr = make_int4(1, 1, 1, 1);",
        "if (t == 40) y_ptr[4] = 1;",
    ),
}
#: Reads of several threads, before a write that only some of them are ordered with.
READERS = {
    "of two warps": "if (t == 1 || t == 63) y_ptr[t] = cell[0];",
    "of a warp and another": "if (t == 1 || t == 2 || t == 63) y_ptr[t] = cell[0];",
    "of one warp": "if (t == 1 || t == 2 || t == 3 || t == 9) y_ptr[t] = cell[0];",
    "twice": "if (t == 1 || t == 63) { y_ptr[t] = cell[0]; y_ptr[t] += cell[0]; }",
}
#: The same of atomics, before a plain read.
ATOMICS = {
    "of two warps": "if (t == 1 || t == 63) atomicAdd(cell, 1);",
    "of a warp and another": "if (t == 1 || t == 2 || t == 63) atomicAdd(cell, 1);",
    "of one warp": "if (t == 1 || t == 2 || t == 3 || t == 9) atomicAdd(cell, 1);",
    "of the reader, too": "if (t == 0 || t == 9) atomicAdd(cell, 1);",
}
READER = "if (t < 4) __syncwarp(15); if (t == 0) y_ptr[0] = cell[0];"
WRITER = "if (t < 4) __syncwarp(15); if (t == 0) cell[0] = 1;"
HEAD = [
    "__shared__ __align__(16) int cell[64];",
    "struct Row { int v[32]; };",
    "int t = threadIdx.x; char* bytes = (char*)y_ptr; (void)bytes;",
    "switch (x_ptr[0]) {",
]
BLOCK_1 = "if (blockIdx.x == 0) return;"


def programs():
    """All kernels as the branches of one, by their numbers in it."""
    found = {}
    for name, (first, second, _) in UNORDERED.items():
        found[name, "unordered"] = f"{BLOCK_1} {first} {second}"
        found[name, "ordered"] = f"{BLOCK_1} {first} __syncthreads(); {second}"
    for name, (first, second) in APART.items():
        found[name, "apart"] = f"{BLOCK_1} {first} {second}"
    for name, readers in READERS.items():
        found[name, "readers"] = f"{BLOCK_1} {readers} {WRITER}"
    for name, atomics in ATOMICS.items():
        found[name, "atomics"] = f"{BLOCK_1} {atomics} {READER}"
    found["warps", "warp"] = f"{BLOCK_1} cell[t] = t; __syncwarp(); y_ptr[t] = cell[t ^ 32];"
    found["blocks", "read"] = (
        "if (t == 0) { if (blockIdx.x) y_ptr[5] = 1; else y_ptr[6] = *y_ptr; }"
    )
    found["blocks", "write"] = "if (t == 0) { if (blockIdx.x) *y_ptr = 1; else y_ptr[6] = *y_ptr; }"
    found["shared", "fresh"] = "if (blockIdx.x == 0) cell[t] = 7; else y_ptr[t] = cell[t];"
    found["past", "row"] = "*(Row*)(y_ptr + 97) = *(Row*)(x_ptr + 64);"
    found["before", "row"] = "*(Row*)y_ptr = *(Row*)(x_ptr - 1);"
    return found


PROGRAMS = programs()


@pytest.fixture(scope="module")
def run():
    """Run one of the kernels: all are one module, and one run of the compiler."""
    cases = [f"case {at}: {{ {text} }} break;" for at, text in enumerate(PROGRAMS.values())]
    with cusim.rewritten_source(with_body(*HEAD, *cases, "}")):
        function = compile_cuda(elementwise("int32", lambda v: v))["main"]

    def call(name, kind, seed=0):
        given = np.zeros(2 * THREADS, "int32")
        given[0] = list(PROGRAMS).index((name, kind))
        x, y = (tvm.runtime.tensor(a, tvm.cuda(0)) for a in (given, np.zeros_like(given)))
        with cusim.settings(seed=seed, race=True):
            function(x, y)
        return y.numpy()

    return call


@pytest.mark.parametrize("name", UNORDERED)
def test_what_a_barrier_orders_is_a_race_without_it(run, name):
    run(name, "ordered")
    for seed in range(3):
        with pytest.raises(LaunchError, match=f"race on {UNORDERED[name][2]} memory"):
            run(name, "unordered", seed)


@pytest.mark.parametrize("name", APART)
def test_what_needs_no_order_is_no_race(run, name):
    for seed in range(3):
        run(name, "apart", seed)


@pytest.mark.parametrize("name", READERS)
def test_a_write_is_held_against_every_read(run, name):
    """Only some of the readers are ordered before it, in whatever order they read."""
    for seed in range(6):
        with pytest.raises(LaunchError, match="race on shared memory"):
            run(name, "readers", seed)


@pytest.mark.parametrize("name", ATOMICS)
def test_a_read_is_held_against_every_atomic(run, name):
    for seed in range(6):
        with pytest.raises(LaunchError, match="race on shared memory"):
            run(name, "atomics", seed)


def test_a_barrier_of_a_warp_orders_no_other(run):
    with pytest.raises(LaunchError, match="write-read race on shared memory"):
        run("warps", "warp")


def test_blocks(run):
    run("blocks", "read")
    for seed in range(3):
        with pytest.raises(LaunchError, match="race on global memory"):
            run("blocks", "write", seed)


@pytest.mark.parametrize(("name", "kind"), [("past", "write"), ("before", "read")])
def test_structures_that_are_partly_out_of_bounds(run, name, kind):
    with pytest.raises(LaunchError, match=f"out-of-bounds {kind} of 128 bytes"):
        run(name, "row")


# ---- what nobody wrote ----------------------------------------------------------------------


def test_shared_memory_does_not_outlive_its_block(run):
    assert not (run("shared", "fresh") == 7).any()


# ---- what is handed from block to block -----------------------------------------------------

HANDED = [
    "int t = threadIdx.x, seen = 0;",
    "if (blockIdx.x == 0) {",
    "  if (t == 1) y_ptr[0] = 5;",
    "  if (t < 2) y_ptr[50 + t] = y_ptr[1];",
    "  __syncthreads();  // before",
    "  if (t == 0) tvm_builtin_ptx_st_release_gpu_global_s32(&state_ptr[0], 1);",
    "} else if (blockIdx.x == 1) {",
    "  if (t == 0)",
    "    while (seen == 0) tvm_builtin_ptx_ld_acquire_gpu_global_s32(seen, &state_ptr[0]);",
    "  __syncthreads();  // after",
    "  if (t == 2) y_ptr[40] = y_ptr[0];",
    "  if (t == 3) y_ptr[1] = 1;",
    "}",
]


NO_WRITE = ("if (t == 1) y_ptr[0] = 5;", "")
NO_BARRIER = ("__syncthreads();  // before", "")
#: Changes of that, and whether it is still right.
CHANGES = {
    "as it is": ([], True),
    "no barrier before": ([NO_BARRIER], False),
    "no barrier after": ([("__syncthreads();  // after", "")], False),
    "no release": ([("st_release", "st_relaxed")], False),
    "no acquire": ([("ld_acquire", "ld_relaxed")], False),
    "reads": ([NO_WRITE], True),
    "reads without a barrier": ([NO_WRITE, NO_BARRIER], False),
    "its own read": ([NO_WRITE, NO_BARRIER, ("t < 2", "t < 1")], True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_release_hands_over_what_was_done_before_it(name):
    text, (changes, right) = "\n".join(HANDED), CHANGES[name]
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    with cusim.rewritten_source(with_body(text)):
        executable = compile_cuda(chain(True))
    given = [np.zeros((BLOCKS, 32), "int32"), np.zeros(2 * BLOCKS + 1, "int32")]
    for seed in range(4):
        args = [tvm.runtime.tensor(a, tvm.cuda(0)) for a in (*given, given[0])]
        with cusim.settings(seed=seed, race=True):
            if right:
                executable["main"](*args)
                continue
            with pytest.raises(LaunchError, match="race on global memory"):
                executable["main"](*args)
