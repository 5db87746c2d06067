"""Loops as other people's tools and projects write them."""

from tvm import te, topi
from tvm.script import tirx as T

from tests.programs.suite.program import F32, LANE, B, L, Program, buffer

HEADS, SIZE = 2, 6
TOKENS = buffer("float32", B, L, HEADS, SIZE)
MATRICES = buffer("float32", B, HEADS, SIZE, SIZE)
OF_HEADS = buffer("float32", HEADS, SIZE)


@T.prim_func(s_tir=True)
def rwkv_six_of_a_serving_engine(
    R: TOKENS, K: TOKENS, V: TOKENS, U: OF_HEADS, W: TOKENS, S0: MATRICES, Y: TOKENS, S: MATRICES
):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
    for b in T.thread_binding(B, thread="blockIdx.y"):
        for h in T.thread_binding(HEADS, thread="blockIdx.x"):
            for i in T.thread_binding(SIZE, thread="threadIdx.x"):
                for j in range(SIZE):
                    with T.sblock("state"):
                        vb, vh, vi, vj = T.axis.remap("SSSS", [b, h, i, j])
                        S[vb, vh, vi, vj] = S0[vb, vh, vi, vj]
                for t in range(L):
                    with T.sblock("token"):
                        vb = T.axis.spatial(B, b)
                        vt = T.axis.opaque(L, t)
                        vh = T.axis.spatial(HEADS, h)
                        vi = T.axis.spatial(SIZE, i)
                        Y[vb, vt, vh, vi] = T.float32(0)
                        for j in range(SIZE):
                            new: T.let[T.float32] = K[vb, vt, vh, j] * V[vb, vt, vh, vi]
                            Y[vb, vt, vh, vi] += R[vb, vt, vh, j] * (
                                U[vh, j] * new + S[vb, vh, vi, j]
                            )
                            S[vb, vh, vi, j] = new + W[vb, vt, vh, j] * S[vb, vh, vi, j]


@T.prim_func(s_tir=True)
def rwkv_five_of_a_serving_engine(
    R: TOKENS, K: TOKENS, V: TOKENS, U: OF_HEADS, W: OF_HEADS, S0: MATRICES, Y: TOKENS, S: MATRICES
):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
    for b in T.thread_binding(B, thread="blockIdx.y"):
        for h in T.thread_binding(HEADS, thread="blockIdx.x"):
            for i in T.thread_binding(SIZE, thread="threadIdx.x"):
                for j in range(SIZE):
                    with T.sblock("state"):
                        vb, vh, vi, vj = T.axis.remap("SSSS", [b, h, i, j])
                        S[vb, vh, vi, vj] = S0[vb, vh, vi, vj]
                for t in range(L):
                    with T.sblock("token"):
                        vb = T.axis.spatial(B, b)
                        vt = T.axis.opaque(L, t)
                        vh = T.axis.spatial(HEADS, h)
                        vi = T.axis.spatial(SIZE, i)
                        Y[vb, vt, vh, vi] = T.float32(0)
                        for j in range(SIZE):
                            new: T.let[T.float32] = K[vb, vt, vh, j] * V[vb, vt, vh, vi]
                            Y[vb, vt, vh, vi] += R[vb, vt, vh, j] * (
                                U[vh, j] * new + S[vb, vh, vi, j]
                            )
                            S[vb, vh, vi, j] = S[vb, vh, vi, j] * W[vh, j] + new


@T.prim_func(s_tir=True)
def delta_rule_of_two_cells(
    K: buffer("float32", L, 2),
    V: F32,
    Beta: buffer("float32", L),
    S: buffer("float32", B, 2),
    Y: F32,
):
    for d, t in T.grid(B, L):
        miss: T.let[T.float32] = V[d, t] - (S[d, 0] * K[t, 0] + S[d, 1] * K[t, 1])
        first: T.let[T.float32] = S[d, 0] + Beta[t] * miss * K[t, 0]
        S[d, 1] = S[d, 1] + Beta[t] * miss * K[t, 1]
        S[d, 0] = first
        Y[d, t] = S[d, 0] - S[d, 1]


@T.prim_func(s_tir=True)
def unrolled_steps(X: F32, S: LANE, Y: F32):
    for b in range(B):
        for t in T.unroll(L):
            S[b] = S[b] + X[b, t]
            Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def lanes_in_parallel(A: F32, X: F32, H: F32):
    for b in T.parallel(B):
        for t in T.serial(L):
            H[b, t] = A[b, t] * T.if_then_else(t > 0, H[b, t - 1], T.float32(0)) + X[b, t]


@T.prim_func(s_tir=True)
def lanes_in_a_vector(
    A: buffer("float32", L, 4), X: buffer("float32", L, 4), H: buffer("float32", L, 4)
):
    for t in T.serial(L):
        for b in T.vectorized(4):
            H[t, b] = A[t, b] * T.if_then_else(t > 0, H[t - 1, b], T.float32(0)) + X[t, b]


@T.prim_func(s_tir=True)
def init_and_update_blocks(X: buffer("float32", L, B), H: buffer("float32", L, B)):
    for b in range(B):
        with T.sblock("init"):
            vb = T.axis.spatial(B, b)
            H[0, vb] = X[0, vb]
    for t, b in T.grid(L - 1, B):
        with T.sblock("update"):
            vt = T.axis.scan(L - 1, t)
            vb = T.axis.spatial(B, b)
            H[vt + 1, vb] = H[vt, vb] + X[vt + 1, vb]


@T.prim_func(s_tir=True)
def tiled_lanes(X: buffer("float32", 6, L), H: buffer("float32", 6, L)):
    for outer, t, inner in T.grid(2, L, 3):
        with T.sblock("scan"):
            vb = T.axis.spatial(6, outer * 3 + inner)
            vt = T.axis.opaque(L, t)
            H[vb, vt] = T.if_then_else(vt > 0, H[vb, vt - 1], T.float32(0)) + X[vb, vt]


@T.prim_func(s_tir=True)
def flat_buffers(X: buffer("float32", B * L), H: buffer("float32", B * L)):
    for b, t in T.grid(B, L):
        H[b * L + t] = T.if_then_else(t > 0, H[b * L + t - 1], T.float32(0)) + X[b * L + t]


@T.prim_func(s_tir=True)
def output_is_scratch(X: F32, W: F32, Y: F32):
    for b in range(B):
        for t in range(L):
            with T.sblock("load"):
                vb, vt = T.axis.remap("SS", [b, t])
                Y[vb, vt] = X[vb, vt] * W[vb, vt]
            with T.sblock("add"):
                vb = T.axis.spatial(B, b)
                vt = T.axis.opaque(L, t)
                Y[vb, vt] = Y[vb, vt] + T.if_then_else(vt > 0, Y[vb, vt - 1], T.float32(0))


def _operator(name, compute):
    x = te.placeholder((B, L), "float32", name="X")
    return te.create_prim_func([x, compute(x)]).with_attr("global_symbol", name)


topi_cumsum = _operator("topi_cumsum", lambda x: topi.cumsum(x, axis=1))
topi_cumsum_of_rows = _operator("topi_cumsum_of_rows", lambda x: topi.cumsum(x, axis=0))
topi_cumsum_exclusive = _operator(
    "topi_cumsum_exclusive", lambda x: topi.cumsum(x, axis=1, exclusive=True)
)
topi_cumprod = _operator("topi_cumprod", lambda x: topi.cumprod(x, axis=1))
topi_cumsum_flat = _operator("topi_cumsum_flat", lambda x: topi.cumsum(x))


PROGRAMS = [
    Program(rwkv_six_of_a_serving_engine, "affine"),
    Program(rwkv_five_of_a_serving_engine, "affine"),
    Program(delta_rule_of_two_cells, "matrix affine", {"Beta": (0.0, 1.0)}, rounds=True),
    Program(unrolled_steps, "reduce add"),
    Program(lanes_in_parallel, "affine"),
    Program(lanes_in_a_vector, "affine"),
    Program(init_and_update_blocks, "reduce add"),
    Program(tiled_lanes, "reduce add"),
    Program(flat_buffers, "reduce add"),
    Program(output_is_scratch, "reduce add"),
    Program(topi_cumsum, "reduce add"),
    Program(topi_cumsum_of_rows, "reduce add"),
    Program(topi_cumsum_exclusive, "reduce add"),
    Program(topi_cumprod, "reduce mul"),
    Program(topi_cumsum_flat, "reduce add"),
]
