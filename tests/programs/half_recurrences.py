"""Recurrences over float16 and bfloat16, which the library does not have."""

import ml_dtypes
import numpy as np
from tvm import tirx
from tvm.script import tirx as T

from tests.support.library_runs import Arrays

HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def affine_history(rows: int, length: int, dtype: str) -> tirx.PrimFunc:
    """``H[t] = A[t] H[t-1] + X[t]``, the state read back from the output."""

    @T.prim_func(s_tir=True)
    def affine(
        A: T.Buffer((rows, length), dtype),
        X: T.Buffer((rows, length), dtype),
        H: T.Buffer((rows, length), dtype),
    ):
        for r, t in T.grid(rows, length):
            with T.sblock("scan"):
                vr = T.axis.spatial(rows, r)
                vt = T.axis.scan(length, t)
                H[vr, vt] = (
                    A[vr, vt] * T.if_then_else(vt > 0, H[vr, vt - 1], tirx.const(0, dtype))
                    + X[vr, vt]
                )

    return affine


def affine_state(rows: int, length: int, dtype: str) -> tirx.PrimFunc:
    """The same in place, from an initial state to a final one, emitted before the update."""

    @T.prim_func(s_tir=True)
    def affine(
        A: T.Buffer((rows, length), dtype),
        X: T.Buffer((rows, length), dtype),
        H0: T.Buffer((rows,), dtype),
        H: T.Buffer((rows, length), dtype),
        HN: T.Buffer((rows,), dtype),
    ):
        for r in range(rows):
            with T.sblock("init"):
                vr = T.axis.spatial(rows, r)
                HN[vr] = H0[vr]
            for t in range(length):
                with T.sblock("scan"):
                    vr = T.axis.spatial(rows, r)
                    vt = T.axis.scan(length, t)
                    H[vr, vt] = HN[vr]
                    HN[vr] = A[vr, vt] * HN[vr] + X[vr, vt]

    return affine


def bound_values(rows: int, length: int, dtype: str) -> tirx.PrimFunc:
    """The history again, every half of the step bound to a name."""
    kind = getattr(T, dtype)

    @T.prim_func(s_tir=True)
    def affine(
        A: T.Buffer((rows, length), dtype),
        X: T.Buffer((rows, length), dtype),
        H: T.Buffer((rows, length), dtype),
    ):
        for r, t in T.grid(rows, length):
            before: T.let[kind] = T.if_then_else(t > 0, H[r, t - 1], tirx.const(0, dtype))
            moved: T.let[kind] = A[r, t] * before
            H[r, t] = moved + X[r, t]

    return affine


def running_max(rows: int, length: int, dtype: str) -> tirx.PrimFunc:
    """``H[t] = max(H[t-1], X[t])``, from the first element."""

    @T.prim_func(s_tir=True)
    def maximum(X: T.Buffer((rows, length), dtype), H: T.Buffer((rows, length), dtype)):
        for r, t in T.grid(rows, length):
            with T.sblock("scan"):
                vr = T.axis.spatial(rows, r)
                vt = T.axis.scan(length, t)
                H[vr, vt] = T.max(T.if_then_else(vt > 0, H[vr, vt - 1], X[vr, vt]), X[vr, vt])

    return maximum


FUNCTIONS = {
    "history": affine_history,
    "state": affine_state,
    "bound": bound_values,
    "max": running_max,
}


def half_inputs(name: str, rng: np.random.Generator, rows: int, length: int, dtype: str) -> Arrays:
    """Gates of -1 and 1, so that every rounding of the carry lasts; normal values."""
    values = {"X": rng.standard_normal((rows, length))}
    if name != "max":
        values = {"A": rng.choice([-1.0, 1.0], (rows, length)), **values}
    if name == "state":
        values["H0"] = rng.standard_normal(rows)
    return {key: value.astype(HALVES[dtype]) for key, value in values.items()}


def half_expected(name: str, inputs: Arrays) -> Arrays:
    """The same recurrences step by step in float64."""
    wide = {key: value.astype(np.float64) for key, value in inputs.items()}
    x = wide["X"]
    if name == "max":
        return {"H": np.maximum.accumulate(x, axis=1)}
    h = wide.get("H0", np.zeros(len(x)))
    states = [h]
    for t in range(x.shape[1]):
        h = wide["A"][:, t] * h + x[:, t]
        states.append(h)
    history = np.stack(states, axis=1)
    return {"H": history[:, :-1], "HN": h} if name == "state" else {"H": history[:, 1:]}
