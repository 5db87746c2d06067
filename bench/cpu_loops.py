"""The workloads of ``bench.cpu`` as plain loops, and their inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script import from_source
from tvm.script import tirx as T

from tvm_scan import library

__all__ = ["KINDS", "inputs_of", "loop_of"]

_BEFORE = "T.if_then_else(t > 0, H[b, t - 1], T.float32(0))"
_STEPS = {
    "segmented": f"T.if_then_else(A[b, t] > T.float32(0.99), T.float32(0), {_BEFORE}) + X[b, t]",
    "order 2": (
        f"X[b, t] + T.float32(1.6) * {_BEFORE}"
        " + T.float32(-0.7) * T.if_then_else(t > 1, H[b, t - 2], T.float32(0))"
    ),
    "logsumexp": (
        "T.if_then_else(t > 0, T.max(H[b, t - 1], X[b, t]) + T.log1p(T.exp("
        "T.float32(0) - T.abs(H[b, t - 1] - X[b, t]))), X[b, t])"
    ),
}
#: What each workload computes; ``rows`` walks down the first axis, ``middle`` the second of three.
KINDS = (
    *("cumsum", "cumsum rows", "affine", "affine middle", "cummax"),
    *(*_STEPS, "selective scan", "selective scan bfloat16"),
)

_LOOP = """
@T.prim_func(s_tir=True)
def scan({gates}X: T.Buffer(({lanes}, {length}), "float32"),
         H: T.Buffer(({lanes}, {length}), "float32")):
    for b in range({lanes}):
        for t in range({length}):
            H[b, t] = {step}
"""
_MIDDLE = """
@T.prim_func(s_tir=True)
def scan(A: T.Buffer(({batch}, {length}, {lanes}), "float32"),
         X: T.Buffer(({batch}, {length}, {lanes}), "float32"),
         H: T.Buffer(({batch}, {length}, {lanes}), "float32")):
    for b in range({batch}):
        for t in range({length}):
            for c in range({lanes}):
                H[b, t, c] = A[b, t, c] * T.if_then_else(
                    t > 0, H[b, t - 1, c], T.float32(0)) + X[b, t, c]
"""


def loop_of(kind: str, shape: tuple[int, ...]) -> Any:
    """The sequential PrimFunc.

    Parameters
    ----------
    kind : str
        One of ``KINDS``.
    shape : tuple of int
        (lanes, steps), (batch, steps, lanes) for ``affine middle``, and (batch, channels, steps)
        for the selective scans, which have 16 states.
    """
    if kind.startswith("selective scan"):
        return library.selective_scan(*shape, 16, dtype=_sequence_dtype(kind))
    if kind == "affine middle":
        batch, length, lanes = shape
        return from_source(_MIDDLE.format(batch=batch, length=length, lanes=lanes), {"T": T})
    lanes, length = shape
    if kind == "affine":
        return library.linear_recurrence(lanes, length)
    if kind == "cummax":
        return library.cummax(lanes, length)
    if kind.startswith("cumsum"):
        return library.cumsum(lanes, length, axis=0 if kind.endswith("rows") else -1)
    gates = f'A: T.Buffer(({lanes}, {length}), "float32"), ' if kind == "segmented" else ""
    text = _LOOP.format(gates=gates, lanes=lanes, length=length, step=_STEPS[kind])
    return from_source(text, {"T": T})


def inputs_of(kind: str, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Arrays by the names of the loop's parameters, and ``out``, where the peers write."""
    rng = np.random.default_rng(0)
    if kind.startswith("selective scan"):
        entry = library.LIBRARY["selective_scan"]
        made = dict(entry.example_inputs(rng, *shape, 16, dtype=_sequence_dtype(kind)))
        return {**made, "out": np.zeros_like(made["u"])}
    if kind == "cumsum rows":
        shape = shape[::-1]
    found = {"X": rng.standard_normal(shape, dtype="float32")}
    if kind.startswith("affine") or kind == "segmented":
        low = 0.0 if kind == "segmented" else 0.9
        found["A"] = rng.uniform(low, 1.0, shape).astype("float32")
    return {**found, "out": np.zeros(shape, "float32")}


def _sequence_dtype(kind: str) -> str:
    return "bfloat16" if kind.endswith("bfloat16") else "float32"
