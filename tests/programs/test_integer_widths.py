"""Integer steps at every width, with values at the limits of their dtype.

One function has a nest for every dtype of up to 16 bits, and one for those above, so that a
compilation checks several. The oracle is the loop on Python's integers, wrapped at the width of
each operator.
"""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.programs.test_extraction import CPU
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tvm_scan import Recurrence, Refusal, ScanPlan, extract, parallelize
from tvm_scan.extraction import extract_nest, root_nests

ALL = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
UNSIGNED = tuple(d for d in ALL if d.startswith("u"))
NARROW = ALL[:4]
LANES, STEPS = 3, 41
PLANS = (
    ScanPlan.of("cpu", "three_phase", chunks=4),
    ScanPlan.of("cuda", "serial_tiles", threads_per_block=8, items_per_thread=2),
)


def low(dtype):
    return int(np.iinfo(dtype).min)


def high(dtype):
    return int(np.iinfo(dtype).max)


def bits(dtype):
    return np.iinfo(dtype).bits


#: Name -> dtypes, family, step in TVMScript (of h, x, y; D is the dtype), the same in Python.
STEPS_OF = {
    "bits shifted in": (
        ALL,
        "shifted bits",
        "T.bitwise_or(T.shift_left(h, D(1)), T.bitwise_and(x, D(1)))",
        lambda h, x, y, d: (h << 1) | (x & 1),
    ),
    "shifted by an input": (
        ALL,
        "shifted bits",
        "T.bitwise_xor(T.shift_left(h, T.bitwise_and(y, D(3))), x)",
        lambda h, x, y, d: (h << (y & 3)) ^ x,
    ),
    "shifted and masked": (
        ALL,
        "shifted bits",
        "T.bitwise_and(T.bitwise_or(h * D(4), T.bitwise_not(x)), y)",
        lambda h, x, y, d: ((h * 4) | ~x) & y,
    ),
    "shifted or kept": (
        ALL,
        "shifted bits",
        "T.Select(x > y, T.shift_left(T.shift_left(h, D(1)), D(2)), T.bitwise_not(h))",
        lambda h, x, y, d: (h << 3) if x > y else ~h,
    ),
    "shifted to the right": (
        UNSIGNED,
        "shifted bits",
        "T.bitwise_xor(T.shift_right(h, D(1)), x)",
        lambda h, x, y, d: (h >> 1) ^ x,
    ),
    "maximum two steps back": (ALL, "interleaved", None, None),
    "low bits of wider arithmetic": (
        NARROW,
        "affine",
        "T.Cast(N, T.Cast('int32', h) * T.Cast('int32', y) - (T.Cast('int32', x) + 300))",
        lambda h, x, y, d: h * y - (x + 300),
    ),
    "low bits of wider bits": (
        NARROW,
        "shifted bits",
        "T.Cast(N, T.bitwise_or(T.shift_left(T.Cast('int32', h), 3), T.Cast('int32', x)))",
        lambda h, x, y, d: (h << 3) | x,
    ),
    "saturating": (
        ALL[:6],
        "clamp",
        "T.Cast(N, T.min(T.max(T.Cast(W, h) + T.Cast(W, x), T.Cast(W, LOW)), T.Cast(W, HIGH)))",
        lambda h, x, y, d: min(max(h + x, low(d)), high(d)),
    ),
    "saturating by a choice": (
        ("int8", "uint16"),
        "clamp",
        "T.Cast(N, T.min(T.Select(T.Cast(W, h) - T.Cast(W, x) < T.Cast(W, 7), T.Cast(W, 7), "
        "T.Cast(W, h) - T.Cast(W, x)), T.Cast(W, 99)))",
        lambda h, x, y, d: 7 if h - x < 7 else min(h - x, 99),
    ),
}


def wrapped(value, dtype):
    value &= (1 << bits(dtype)) - 1
    return value - (1 << bits(dtype)) if low(dtype) and value > high(dtype) else value


def nest_of(name, dtype, i):
    text = STEPS_OF[name][2]
    if text is None:
        return [
            f"    for b, t in T.grid({LANES}, {STEPS}):",
            f"        H{i}[b, t + 2] = T.max(H{i}[b, t], X{i}[b, t])",
        ]
    wide = "'int32'" if bits(dtype) < 32 else "'int64'"
    for key, value in (
        ("D(", f"T.{dtype}("),
        ("N,", f"'{dtype}',"),
        ("LOW", str(low(dtype))),
        ("HIGH", str(high(dtype))),
        ("(W,", f"({wide},"),
    ):
        text = text.replace(key, value)
    return [
        f"    for b, t in T.grid({LANES}, {STEPS}):",
        f"        h: T.let[T.{dtype}] = H{i}[b, t]",
        f"        x: T.let[T.{dtype}] = X{i}[b, t]",
        f"        y: T.let[T.{dtype}] = Y{i}[b, t]",
        f"        H{i}[b, t + 1] = {text}",
    ]


def function_of(name, dtypes):
    params, lines = [], []
    for i, dtype in enumerate(dtypes):
        for letter, cells in (("X", STEPS), ("Y", STEPS), ("H", STEPS + 2)):
            params.append(f'{letter}{i}: T.Buffer(({LANES}, {cells}), "{dtype}")')
        lines += nest_of(name, dtype, i)
    text = ["@T.prim_func(s_tir=True)", f"def main({', '.join(params)}):", *lines]
    return tvm.script.from_source("\n".join(text), {"T": T})


def inputs_of(name, dtypes):
    rng = np.random.default_rng(len(name))
    out = []
    for dtype in dtypes:
        limits = [low(dtype), low(dtype) + 1, high(dtype) - 1, high(dtype), 0, 1]
        for cells in (STEPS, STEPS, STEPS + 2):
            values = rng.integers(low(dtype), high(dtype), (LANES, cells), dtype, endpoint=True)
            at = rng.random(values.shape) < 0.3
            values[at] = rng.choice(np.array(limits, dtype), int(at.sum()))
            out.append(values)
    return out


def expected(name, dtypes, arrays):
    _, _, text, step = STEPS_OF[name]
    out = [a.copy() for a in arrays]
    for i, dtype in enumerate(dtypes):
        x, y, h = out[3 * i : 3 * i + 3]
        for b in range(LANES):
            for t in range(STEPS):
                if text is None:
                    h[b, t + 2] = max(h[b, t], x[b, t])
                    continue
                value = step(int(h[b, t]), int(x[b, t]), int(y[b, t]), dtype)
                h[b, t + 1] = wrapped(value, dtype)
    return out


def parts_of(name):
    narrow = tuple(d for d in STEPS_OF[name][0] if d in NARROW)
    return [part for part in (narrow, STEPS_OF[name][0][len(narrow) :]) if part]


def test_the_parts_are_all_widths():
    assert all(sum(parts_of(name), ()) == dtypes for name, (dtypes, *_) in STEPS_OF.items())


@pytest.mark.parametrize(
    ("name", "dtypes"), [(name, part) for name in STEPS_OF for part in parts_of(name)], ids=str
)
def test_every_width_is_taken_and_right(name, dtypes):
    func = function_of(name, dtypes)
    for nest in root_nests(func):
        found = extract_nest(func, nest)
        assert isinstance(found, Recurrence), found.message()
        assert [algebra.name for algebra in found.algebras] == [STEPS_OF[name][1]]
    arrays = inputs_of(name, dtypes)
    want = expected(name, dtypes, arrays)
    on_cpu, on_cuda = PLANS
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    compile_cached(parallelize(func, CPU, on_cpu), target=CPU)(*tensors)
    made = run_cuda(parallelize(func, CUDA_TARGET, on_cuda), arrays, seeds=(0,))
    for i, (tensor, cuda, right) in enumerate(zip(tensors, made, want, strict=True)):
        dtype = dtypes[i // 3]
        np.testing.assert_array_equal(tensor.numpy(), right, f"{dtype} on a CPU")
        np.testing.assert_array_equal(cuda, right, f"{dtype} on CUDA")


def refused(dtype, step):
    text = [
        "@T.prim_func(s_tir=True)",
        f'def main(X: T.Buffer((3, 9), "{dtype}"), H: T.Buffer((3, 10), "{dtype}")):',
        "    for b, t in T.grid(3, 9):",
        f"        H[b, t + 1] = {step}",
    ]
    found = extract(tvm.script.from_source("\n".join(text), {"T": T}))
    assert isinstance(found, Refusal), f"taken as {found.algebras}"
    assert "\nfix: " in found.message()
    return found


H, X = "H[b, t]", "X[b, t]"


@pytest.mark.parametrize("dtype", NARROW)
def test_what_wraps_before_its_bound_is_refused(dtype):
    for step in (
        f"T.max({H} + {X}, T.{dtype}(3))",
        f"T.Cast('{dtype}', T.max(T.Cast('int32', {H}) + T.Cast('int32', {X}), 0))",
        f"T.Cast('{dtype}', T.min(T.max(T.Cast('int32', {H}) + 1, 0), {high(dtype) + 1}))",
        f"T.min(T.max(T.Cast('{dtype}', T.Cast('int32', {H}) + 9), T.{dtype}(1)), T.{dtype}(8))",
    ):
        found = refused(dtype, step)
        assert "wrap" in found.detail
        assert "T.Cast(" in found.fix


def test_the_fix_of_a_refusal_is_taken():
    """What the message says to write is written, and taken."""
    found = refused("uint32", f"T.max({H} - {X}, T.uint32(0))")
    assert "T.Cast('int64', h)" in found.fix
    step = found.fix.split(": ", 1)[1].split("; or")[0].replace("(h)", f"({H})")
    for name, value in (("h)", f"{H})"), ("x)", f"{X})")):
        step = step.replace(f", {name}", f", {value}")
    text = [
        "@T.prim_func(s_tir=True)",
        'def main(X: T.Buffer((3, 9), "uint32"), H: T.Buffer((3, 10), "uint32")):',
        "    for b, t in T.grid(3, 9):",
        f"        H[b, t + 1] = {step}",
    ]
    taken = extract(tvm.script.from_source("\n".join(text), {"T": T}))
    assert isinstance(taken, Recurrence), taken.message()


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_a_bound_around_a_gate_needs_floats(dtype):
    found = refused(dtype, f"T.max({H} * T.{dtype}(2), {X})")
    assert "gate on an integer under a bound" in found.detail


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_bounds_of_64_bits_are_refused(dtype):
    refused(dtype, f"T.max({H} + {X}, T.{dtype}(3))")
    refused(dtype, f"{H} + {X} - T.min({H}, T.{dtype}(3))")
