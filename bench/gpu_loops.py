"""Loops of ``bench.gpu`` that the library does not have, and their float64 results."""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.loops.linear_attention import LinearAttention

__all__ = [
    "affine",
    "affine_steps",
    "gated_delta",
    "gated_delta_steps",
    "rwkv6",
    "rwkv6_steps",
    "selective_halves",
]

Arrays = dict[str, np.ndarray]


def affine(rows: int, length: int, dtype: str) -> tirx.PrimFunc:
    """``H[t] = A[t] H[t-1] + X[t]`` over any float, carried in float32 for halves."""

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((rows, length), dtype),
        X: T.Buffer((rows, length), dtype),
        H: T.Buffer((rows, length), dtype),
    ):
        for r in range(T.int64(rows)):
            for t in range(T.int64(length)):
                H[r, t] = (
                    A[r, t] * T.if_then_else(t > T.int64(0), H[r, t - T.int64(1)], T.cast(0, dtype))
                    + X[r, t]
                )

    return func


def rwkv6(heads: int, length: int, size: int) -> tirx.PrimFunc:
    """RWKV-6: ``y = r (S + u k v)``, then ``S = w S + k v``; a lane is a column of a head."""
    keys = (heads, length, size)

    @T.prim_func(s_tir=True)
    def func(
        R: T.Buffer(keys, "float32"),
        K: T.Buffer(keys, "float32"),
        V: T.Buffer(keys, "float32"),
        W: T.Buffer(keys, "float32"),
        U: T.Buffer((heads, size), "float32"),
        Y: T.Buffer(keys, "float32"),
    ):
        for h, v in T.grid(heads, size):
            S = T.sblock_alloc_buffer((size,), "float32")
            y = T.sblock_alloc_buffer((1,), "float32")
            for k in range(size):
                S[k] = T.float32(0)
            for t in range(length):
                y[0] = T.float32(0)
                for k in range(size):
                    y[0] = y[0] + R[h, t, k] * (S[k] + U[h, k] * K[h, t, k] * V[h, t, v])
                    S[k] = W[h, t, k] * S[k] + K[h, t, k] * V[h, t, v]
                Y[h, t, v] = y[0]

    return func


def affine_steps(inputs: Arrays) -> Arrays:
    """The affine loop in float64."""
    a, x = (inputs[name].astype(np.float64) for name in ("A", "X"))
    h, out = np.zeros(len(a)), np.empty(a.shape)
    for t in range(a.shape[1]):
        h = a[:, t] * h + x[:, t]
        out[:, t] = h
    return {"H": out}


def rwkv6_steps(inputs: Arrays) -> Arrays:
    """The RWKV-6 loop in float64."""
    r, k, v, w, u = (inputs[name].astype(np.float64) for name in "RKVWU")
    state, out = np.zeros((len(r), r.shape[2], r.shape[2])), np.empty(r.shape)
    for t in range(r.shape[1]):
        outer = k[:, t, :, None] * v[:, t, None, :]
        out[:, t] = np.einsum("hk,hkv->hv", r[:, t], state + u[:, :, None] * outer)
        state = w[:, t, :, None] * state + outer
    return {"Y": out}


def gated_delta(heads: int, length: int, size: int) -> tirx.PrimFunc:
    """A gated delta rule as ONNX has it: ``S = exp(g) S + b k (v - exp(g) S . k)``."""
    op = LinearAttention(
        rule="gated_delta",
        query_heads=heads,
        heads=heads,
        keys=size,
        values=size,
        scale=1.0,
        batch=1,
        length=length,
        dtype="float32",
        state_dtype="float32",
        decays=heads,
        betas=heads,
        has_past=True,
    )
    return op.loop()


def gated_delta_steps(inputs: Arrays) -> Arrays:
    """The gated delta rule in float64."""
    names = ("query", "key", "value", "past_state", "decay", "beta")
    q, k, v, state, g, b = (inputs[name][0].astype(np.float64) for name in names)
    q, out = q.reshape(k.shape), np.empty(v.shape)
    for t in range(len(k)):
        state = state * np.exp(g[t].reshape(-1, 1, 1))
        known = np.einsum("hk,hkv->hv", k[t], state)
        state = state + np.einsum("hk,hv->hkv", k[t], b[t].reshape(-1, 1) * (v[t] - known))
        out[t] = np.einsum("hk,hkv->hv", q[t], state)
    return {"output": out.reshape(1, *out.shape[:2], 1, -1), "present_state": state[None]}


def selective_halves(
    batch: int, channels: int, length: int, states: int, dtype: str
) -> tirx.PrimFunc:
    """The selective scan with arrays of halves: all options of the library's, float32 inside."""
    full, small = (batch, channels, length), (batch, states, length)

    @T.prim_func(s_tir=True)
    def func(
        u: T.Buffer(full, dtype),
        delta: T.Buffer(full, dtype),
        A: T.Buffer((channels, states), dtype),
        B: T.Buffer(small, dtype),
        C: T.Buffer(small, dtype),
        D: T.Buffer((channels,), dtype),
        z: T.Buffer(full, dtype),
        delta_bias: T.Buffer((channels,), dtype),
        out: T.Buffer(full, dtype),
    ):
        for b, d in T.grid(batch, channels):
            S = T.sblock_alloc_buffer((states,), "float32")
            dt = T.sblock_alloc_buffer((1,), "float32")
            y = T.sblock_alloc_buffer((1,), "float32")
            for n in range(states):
                S[n] = T.float32(0)
            for t in range(length):
                dt[0] = T.cast(delta[b, d, t], "float32") + T.cast(delta_bias[d], "float32")
                dt[0] = T.if_then_else(dt[0] > T.float32(20), dt[0], T.log1p(T.exp(dt[0])))
                y[0] = T.float32(0)
                for n in range(states):
                    S[n] = T.exp(dt[0] * T.cast(A[d, n], "float32")) * S[n] + dt[0] * T.cast(
                        B[b, n, t], "float32"
                    ) * T.cast(u[b, d, t], "float32")
                    y[0] = y[0] + S[n] * T.cast(C[b, n, t], "float32")
                y[0] = y[0] + T.cast(D[d], "float32") * T.cast(u[b, d, t], "float32")
                out[b, d, t] = T.cast(
                    y[0] * T.cast(z[b, d, t], "float32") * T.sigmoid(T.cast(z[b, d, t], "float32")),
                    dtype,
                )

    return func
