"""A loop of every family with the law of its rounding errors, for any length and dtype.

The law is ``|scan - exact| <= k (t + c) u M`` (docs/numerics.md). Every case has its own ``M`` as a
second recurrence over the same inputs, computed in float64.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm.script import tirx as T

__all__ = ["CASES", "GATES", "Case", "inputs_of", "longest_product", "source_of"]

#: Distributions of the gates, by the name that docs/numerics.md gives them.
GATES: Mapping[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "U(0.9, 1)": lambda rng, n: rng.uniform(0.9, 1.0, n),
    "U(0.99, 1.01)": lambda rng, n: rng.uniform(0.99, 1.01, n),
    "exp N(0, 0.05)": lambda rng, n: np.exp(rng.normal(0, 0.05, n)),
    "U(-1, 1)": lambda rng, n: rng.uniform(-1.0, 1.0, n),
}


@dataclass(frozen=True)
class Case:
    """A loop, its law and its inputs.

    Attributes
    ----------
    family : str
        As ``explain`` names it.
    steps : tuple of str
        Every carry after the step, over ``h0, h1, ..`` (before it) and the inputs.
    magnitude : str
        ``M`` after the step, over ``m`` (before it), ``h`` (the first carry after it), inputs.
    k : int
        Roundings of a step; 0 where the scan is exact.
    inputs : mapping
        Name -> ``gate`` (``half gate``, ``turned`` into a part of a complex gate, its logarithm
        ``shift``), ``value`` (normal), ``positive`` (0.5 to 2), ``flag`` (one in fifty) or
        ``small`` (integers below a hundred).
    start : float
        Every carry, and ``M``, before the first step.
    dtype : str
        ``float32``, or the integers of an exact family.
    one_sign : bool
        Whether roundings tend to one side, so that they grow like t and not like its root.
    """

    family: str
    steps: tuple[str, ...]
    magnitude: str
    k: int
    inputs: Mapping[str, str]
    start: float = 1.0
    dtype: str = "float32"
    one_sign: bool = False


_GATED = {"g": "gate", "x": "value"}

CASES = {
    "sum": Case("reduce add", ("h0 + x",), "m + T.abs(x)", 1, {"x": "value"}),
    "sum of one sign": Case(
        "reduce add", ("h0 + x",), "m + x", 1, {"x": "positive"}, one_sign=True
    ),
    "product": Case("reduce mul", ("h0 * g",), "T.abs(h)", 1, {"g": "gate"}),
    "maximum": Case("reduce max", ("T.max(h0, x)",), "m", 0, {"x": "value"}),
    "affine": Case("affine", ("g * h0 + x",), "T.abs(g) * m + T.abs(x)", 2, _GATED),
    "segmented": Case(
        "segmented",
        ("T.if_then_else(r > ZERO, x, h0 + x)",),
        "T.if_then_else(r > ZERO, T.abs(x), m + T.abs(x))",
        1,
        {"r": "flag", "x": "value"},
    ),
    "clamp": Case(
        "clamp",
        ("T.min(T.max(h0 + x, CONST(-3)), CONST(4))",),
        "m + T.abs(x)",
        2,
        {"x": "value"},
        start=4.0,
    ),
    "bounded affine": Case(
        "bounded affine",
        ("T.min(T.max(g * h0 + x, CONST(-3)), CONST(4))",),
        "T.abs(g) * T.max(m, CONST(4)) + T.abs(x)",
        2,
        _GATED,
        start=4.0,
    ),
    "logsumexp": Case(
        "logsumexp affine",
        (
            "T.max(h0 + g, x) + T.log(T.exp(h0 + g - T.max(h0 + g, x))"
            " + T.exp(x - T.max(h0 + g, x)))",
        ),
        "T.max(m, CONST(7)) + T.abs(g)",
        8,
        {"g": "shift", "x": "value"},
        start=7.0,
    ),
    "linear fractional": Case(
        "linear fractional",
        ("(p * h0 + x) / (q * h0 + y)",),
        "T.abs(h)",
        10,
        dict.fromkeys("pqxy", "positive"),
    ),
    "complex": Case(
        "complex affine",
        ("p * h0 - q * h1 + x", "q * h0 + p * h1 + y"),
        "T.sqrt(p * p + q * q) * m + T.sqrt(x * x + y * y)",
        6,
        {"p": "turned", "q": "turned", "x": "value", "y": "value"},
        start=2.0,
    ),
    "matrix": Case(
        "matrix affine",
        ("p * h0 + g * h1 + x", "g * h0 - p * h1 + y"),
        "(T.abs(p) + T.abs(g)) * m + T.max(T.abs(x), T.abs(y))",
        4,
        {"p": "half gate", "g": "half gate", "x": "value", "y": "value"},
    ),
    "integers": Case("reduce add", ("h0 + x",), "m", 0, {"x": "small"}, 1, "int32"),
    "residues": Case(
        "modular affine",
        ("(g * h0 + x) % 65521",),
        "m",
        0,
        dict.fromkeys("gx", "small"),
        1,
        "int32",
    ),
    "bits": Case(
        "bitwise affine",
        ("T.bitwise_xor(T.bitwise_and(h0, g), x)",),
        "m",
        0,
        dict.fromkeys("gx", "small"),
        1,
        "int32",
    ),
    "shifted": Case(
        "shifted bits",
        ("T.bitwise_xor(T.shift_left(h0, T.int32(1)), x)",),
        "m",
        0,
        {"x": "small"},
        1,
        "int32",
    ),
    "bounded integers": Case(
        "clamp", ("T.max(h0 + x - 50, g)",), "m", 0, dict.fromkeys("gx", "small"), 1, "int32"
    ),
}


def inputs_of(
    case: Case, gates: str, length: int, dtype: str, seed: int = 0
) -> dict[str, np.ndarray]:
    """One row of every input, rounded to ``dtype`` (and kept in it)."""
    rng = np.random.default_rng(seed)
    draw = GATES[gates]
    made = {
        "gate": lambda: draw(rng, length),
        "half gate": lambda: draw(rng, length) / 2,
        # The modulus of p + iq is the gate, where the angle is an eighth of a turn.
        "turned": lambda: draw(rng, length) * np.sqrt(0.5),
        "shift": lambda: np.log(np.abs(draw(rng, length)) + 1e-6),
        "value": lambda: rng.standard_normal(length),
        "positive": lambda: rng.uniform(0.5, 2.0, length),
        "flag": lambda: rng.random(length) < 0.02,
        "small": lambda: rng.integers(0, 100, length),
    }
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return {name: made[what]().astype(kind)[None] for name, what in case.inputs.items()}


def longest_product(case: Case, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Largest product of consecutive gates up to every step (1 where there are no gates)."""
    if case.family not in ("affine", "reduce mul", "complex affine", "matrix affine"):
        return np.ones(next(iter(inputs.values())).shape[1])
    wide = {name: np.abs(array[0].astype("float64")) for name, array in inputs.items()}
    if case.family == "complex affine":
        gate = np.hypot(wide["p"], wide["q"])
    elif case.family == "matrix affine":
        gate = wide["p"] + wide["g"]
    else:
        gate = wide["g"]
    with np.errstate(divide="ignore"):
        total = np.concatenate([[0.0], np.cumsum(np.log(gate))])
    rise = np.maximum.accumulate(total - np.minimum.accumulate(total))[1:]
    return np.exp(np.minimum(rise, 700.0))


def source_of(case: Case, dtype: str, *, magnitude: bool = False) -> Any:
    """The loop as a function of inputs, states and histories, of symbolic length.

    Parameters
    ----------
    case : Case
        What to compute.
    dtype : str
        Of every buffer.
    magnitude : bool
        Whether ``M`` walks along: one more state and one more history.
    """
    states = [f"h{i}" for i in range(len(case.steps))]
    kept = [*states, "m"] if magnitude else states
    buffers = [*case.inputs, *kept, *(f"Y_{s}" for s in kept)]
    lines = [
        "@T.prim_func(s_tir=True)",
        f"def main({', '.join(f'a_{b}: T.handle' for b in buffers)}):",
    ]
    lines.append("    L = T.int64()")
    for b in buffers:
        shape = "(T.int64(1),)" if b in kept else "(T.int64(1), L)"
        lines.append(f"    b_{b} = T.match_buffer(a_{b}, {shape}, D)")
    lines.append("    for b, t in T.grid(T.int64(1), L):")
    for name in case.inputs:
        lines.append(f"        {name}: T.let[T.{dtype}] = b_{name}[b, t]")
    for state in kept:
        lines.append(f"        {state}: T.let[T.{dtype}] = b_{state}[b]")
    filled = [_constants(step, dtype) for step in case.steps]
    for number, step in enumerate(filled):
        lines.append(f"        n{number}: T.let[T.{dtype}] = {step}")
    if magnitude:
        text = re.sub(r"(?<![\w.])h(?!\w)", "n0", _constants(case.magnitude, dtype))
        lines.append(f"        nm: T.let[T.{dtype}] = {text}")
    for number, state in enumerate(kept):
        value = "nm" if state == "m" else f"n{number}"
        lines += [f"        b_{state}[b] = {value}", f"        b_Y_{state}[b, t] = {value}"]
    return tvm.script.from_source("\n".join(lines), {"T": T, "D": dtype})


def _constants(text: str, dtype: str) -> str:
    return text.replace("ZERO", f"T.{dtype}(0)").replace("CONST", f"T.{dtype}")
