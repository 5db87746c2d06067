"""Arrays of more than 2^32 elements, run: the last blocks of a grid, at the end of the arrays.

The simulated device maps large arrays without taking memory. The blocks of the last lanes then work
at indices beyond 2^32: a number of 32 bits anywhere in their addresses would lead them to the first
lanes, or out of the arrays.
"""

import ctypes
from math import prod

import numpy as np
import pytest
import tvm

from tests.support import cusim
from tests.support.cuda_harness import CUDA_TARGET, compile_cuda
from tvm_scan import ScanPlan, library, parallelize

_TREE = "cuda/{}(threads_per_block=64, items_per_thread=4, block_tree=warp, {})"
#: Plan, rows and steps: a little more than 2^32 elements.
CASES = {
    "lanes": ("cuda/lanes(threads_per_block=32)", (1 << 22) + 3, 1024),
    "vectors": (_TREE.format("serial_tiles", "vector_loads=True"), (1 << 22) + 3, 1024),
    "two buffers": (
        _TREE.format("serial_tiles", "block_load=transposed, stages=2"),
        (1 << 22) + 3,
        1027,
    ),
    "phases": (_TREE.format("three_phase", "block_load=transposed"), (1 << 22) + 3, 1027),
}


def on_device(*shape):
    """An array of zeros on the device, and a view of it."""
    tensor = tvm.runtime.empty(shape, "float32", tvm.cuda(0))
    cells = (ctypes.c_float * prod(shape)).from_address(cusim.bytes_at(tensor.data_ptr()))
    return tensor, np.frombuffer(cells, "float32").reshape(shape)


def require_simulation():
    if not cusim.is_simulated():
        pytest.skip("the device is a real one, whose memory is taken when it is allocated")


@pytest.mark.parametrize("case", CASES)
def test_rows_beyond_32_bits(case):
    require_simulation()
    text, rows, length = CASES[case]
    func = library.linear_recurrence(rows, length)
    run = compile_cuda(parallelize(func, CUDA_TARGET, ScanPlan.parse(text)))
    (a, gates), (x, inputs), (h, states) = (on_device(rows, length) for _ in range(3))
    random = np.random.default_rng(5)
    gates[-1] = random.choice([-1, 0, 1], length)
    inputs[-1] = random.integers(-4, 5, length)
    # What the first lane would have, were the last one's indices taken modulo 2^32.
    states[0] = 77
    with cusim.last_blocks(8):
        run["main"](a, x, h)
    want, state = [], 0.0
    for t in range(length):
        state = float(gates[-1, t]) * state + float(inputs[-1, t])
        want.append(state)
    np.testing.assert_array_equal(states[-1], want)
    assert (states[0] == 77).all() and not states[1].any()


@pytest.mark.parametrize("chunks", [0, 2])
def test_lanes_that_threads_share_beyond_32_bits(chunks):
    require_simulation()
    batch, channels, length, states = (1 << 14) + 1, 1024, 256, 4
    plan = ScanPlan.parse(
        "cuda/lanes(threads_per_block=64, items_per_thread=4, vector_loads=True, "
        "threads_per_lane=4, block_load=transposed, stages=2)"
    ).with_(chunks=chunks)
    without = dict.fromkeys(("softplus", "has_bias", "has_D", "has_z"), False)
    func = library.selective_scan(batch, channels, length, states, **without)
    sequences, tables = (batch, channels, length), (batch, states, length)
    shapes = {"u": sequences, "delta": sequences, "A": (channels, states)}
    shapes |= {"B": tables, "C": tables, "out": sequences}
    arrays = {name: on_device(*shape) for name, shape in shapes.items()}
    random = np.random.default_rng(6)
    # exp is 0 or 1 then: the states are sums since the last reset, which are exact.
    arrays["A"][1][:] = random.choice([0, -1024], (channels, states))
    last = {name: view[-1] for name, (_, view) in arrays.items()}
    for name in ("u", "delta", "B", "C"):
        last[name][:] = random.integers(0, 3, last[name].shape)
    run = compile_cuda(parallelize(func, CUDA_TARGET, plan))
    arrays["out"][1][0, :2] = 77
    with cusim.last_blocks(2):
        run["main"](*(tensor for tensor, _ in arrays.values()))
    # The last blocks have the last chunk of time.
    first = length // 2 if chunks else 0
    state = np.zeros((2, states))
    for t in range(length):
        for row, channel in enumerate((-2, -1)):
            step = last["delta"][channel, t]
            kept = np.exp(step * arrays["A"][1][channel])
            state[row] = kept * state[row] + step * last["u"][channel, t] * last["B"][:, t]
            expected = state[row] @ last["C"][:, t] if t >= first else 0
            assert last["out"][channel, t] == expected
    assert (arrays["out"][1][0, :2] == 77).all()
