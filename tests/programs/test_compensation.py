"""Steps that mean their roundings are refused; those that merely look alike are taken."""

import pytest
import tvm
from tvm.script import tirx as T

from tvm_scan import Recurrence, Refusal, extract

#: Statements of a step over S, C and X; h, c and x are read before.
ON_PURPOSE = {
    "kahan": ("y = x - c", "s = h + y", "C = (s - h) - y", "S = s"),
    "kahan of products": ("y = x * x - c", "s = h + y", "C = (s - h) - y", "S = s"),
    "kahan, decaying": ("y = x - c", "s = 0.5 * h + y", "C = (s - 0.5 * h) - y", "S = s"),
    "neumaier": (
        "s = h + x",
        "C = c + T.if_then_else(T.abs(h) >= T.abs(x), (h - s) + x, (x - s) + h)",
        "S = s",
    ),
    "two sum": ("s = h + x", "z = s - h", "C = c + ((h - (s - z)) + (x - z))", "S = s"),
    "fast two sum": ("s = x + h", "C = c + (h - (s - x))", "S = s"),
    "what a sum loses": ("C = c", "S = (h + x) - h"),
    "a sum below an operator": ("C = c", "S = T.max(h, T.exp((h + x) - h))"),
    "rounded to a grid": ("C = c", "S = ((h + GRID) - GRID) + x"),
    "split in two": ("s = h * SPLIT", "C = c", "S = (s - (s - h)) + x"),
    "kahan, restarted": (
        "y = x - c",
        "s = T.Select(x > x * x, x, h + y)",
        "C = T.Select(x > x * x, x - x, (s - h) - y)",
        "S = s",
    ),
    "kahan, masked": (
        "y = x - c",
        "s = T.if_then_else(x > x * x, h + y, h)",
        "C = T.if_then_else(x > x * x, (s - h) - y, c)",
        "S = s",
    ),
    "neumaier, restarted": (
        "s = T.Select(x > x * x, x, h + x)",
        "C = T.Select(x > x * x, x - x, c + ((x - s) + h))",
        "S = s",
    ),
    "split by a quotient": ("C = c", "S = (h / x - h / x) + x"),
}
TAKEN = {
    "moving average": ("C = c", "S = h + 0.125 * (x - h)"),
    "gated": ("C = c", "S = (1.0 - x) * h + x * c"),
    "difference of inputs": ("C = c", "S = h + (x - x)"),
    "welford": (
        "d = x - h",
        "m = h + d / T.Cast(D, t + 1)",
        "C = c + d * (x - m)",
        "S = m",
    ),
    "two taps": ("C = h", "S = (1.5 * h - 0.75 * c) + x"),
    "in and out": (
        "s = T.Select(x > x * x, h + x, h)",
        "C = c",
        "S = T.Select(x > x * x * x, s - x, s)",
    ),
    "towards what is chosen": ("C = c", "S = h + 0.125 * (T.Select(x > x * x, x, h) - h)"),
    "of an integer": ("C = c", "S = h + T.Cast(D, (t + 3) - t)"),
}


def loop(dtype, statements):
    """A loop over the sum S and the compensation C."""
    bits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[dtype]
    lines = [
        "@T.prim_func(s_tir=True)",
        f'def main(X: T.Buffer((3, 9), "{dtype}"), S: T.Buffer((3, 10), "{dtype}"),',
        f'         C: T.Buffer((3, 10), "{dtype}")):',
        "    for b, t in T.grid(3, 9):",
    ]
    reads = ("h = S[b, t]", "c = C[b, t]", "x = X[b, t]")
    for name, value in (statement.split(" = ", 1) for statement in (*reads, *statements)):
        value = value.replace("(D,", f'("{dtype}",')
        value = value.replace("GRID", f'T.Cast("{dtype}", {3 * 2 ** (bits - 2)})')
        value = value.replace("SPLIT", f'T.Cast("{dtype}", {2 ** (bits - bits // 2) + 1})')
        for number in ("0.125", "0.5", "1.0", "1.5", "0.75"):
            value = value.replace(number, f'T.Cast("{dtype}", T.float32({number}))')
        left = f"{name}[b, t + 1]" if name.isupper() else f"{name}: T.let[T.{dtype}]"
        lines.append(f"        {left} = {value}")
    return tvm.script.from_source("\n".join(lines), {"T": T})


@pytest.mark.parametrize("name", ON_PURPOSE)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_roundings_on_purpose_are_refused(dtype, name):
    found = extract(loop(dtype, ON_PURPOSE[name]))
    assert isinstance(found, Refusal), [algebra.name for algebra in found.algebras]
    assert "in which terms cancel" in found.message()


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sums_that_keep_their_terms_are_taken(dtype, name):
    found = extract(loop(dtype, TAKEN[name]))
    assert isinstance(found, Recurrence), found.message()


def test_integers_have_no_roundings():
    statements = [s.replace("y = x - c", "y = x") for s in ON_PURPOSE["what a sum loses"]]
    func = loop("float32", statements).script().replace("float32", "int32")
    found = extract(tvm.script.from_source(func, {"T": T}))
    assert not isinstance(found, Refusal) or "in which terms cancel" not in found.message()
