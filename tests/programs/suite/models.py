"""Sequence models: state spaces, linear attention, gated networks, online attention."""

from tvm.script import tirx as T

from tests.programs.suite.program import BOOL, F32, LANE, B, L, Program, buffer

N = 4
GATE = (0.5, 1.0)
KEYS, STATES = buffer("float32", L, N), buffer("float32", B, N)
HALF = buffer("float16")


@T.prim_func(s_tir=True)
def selective_scan(U: F32, Delta: F32, A: STATES, Bm: KEYS, C: KEYS, D: LANE, Y: F32):
    for b in range(B):
        h = T.alloc_buffer((N,), "float32")
        for n in range(N):
            h[n] = T.float32(0)
        for t in range(L):
            Y[b, t] = D[b] * U[b, t]
            for n in range(N):
                h[n] = T.exp(Delta[b, t] * A[b, n]) * h[n] + Delta[b, t] * Bm[t, n] * U[b, t]
                Y[b, t] = Y[b, t] + C[t, n] * h[n]


@T.prim_func(s_tir=True)
def selective_scan_of_halves(U: HALF, Delta: HALF, A: STATES, Y: HALF):
    for b, t in T.grid(B, L):
        Y[b, t] = (
            T.if_then_else(t > 0, Y[b, t - 1], T.float16(0))
            * T.Cast("float16", T.exp(T.Cast("float32", Delta[b, t]) * A[b, 0]))
            + Delta[b, t] * U[b, t]
        )


@T.prim_func(s_tir=True)
def diagonal_state_space(U: F32, Are: STATES, Aim: STATES, Bm: STATES, C: STATES, Y: F32):
    for b in range(B):
        re = T.alloc_buffer((N,), "float32")
        im = T.alloc_buffer((N,), "float32")
        for n in range(N):
            re[n] = T.float32(0)
            im[n] = T.float32(0)
        for t in range(L):
            Y[b, t] = T.float32(0)
            for n in range(N):
                old: T.let[T.float32] = re[n]
                re[n] = Are[b, n] * re[n] - Aim[b, n] * im[n] + Bm[b, n] * U[b, t]
                im[n] = Are[b, n] * im[n] + Aim[b, n] * old
                Y[b, t] = Y[b, t] + C[b, n] * re[n]


@T.prim_func(s_tir=True)
def real_gated_linear_unit(X: F32, R: F32, I: F32, Lambda: LANE, Y: F32):
    for b in range(B):
        h = T.alloc_buffer((1,), "float32")
        h[0] = T.float32(0)
        for t in range(L):
            a: T.let[T.float32] = T.exp(
                T.float32(0) - T.float32(8) * Lambda[b] * T.sigmoid(R[b, t])
            )
            h[0] = a * h[0] + T.sqrt(T.float32(1) - a * a) * T.sigmoid(I[b, t]) * X[b, t]
            Y[b, t] = h[0]


@T.prim_func(s_tir=True)
def minimal_gated_unit(Z: F32, X: F32, H: F32):
    for b, t in T.grid(B, L):
        H[b, t] = (T.float32(1) - T.sigmoid(Z[b, t])) * T.if_then_else(
            t > 0, H[b, t - 1], T.float32(0)
        ) + T.sigmoid(Z[b, t]) * X[b, t]


@T.prim_func(s_tir=True)
def minimal_lstm(F: F32, I: F32, X: F32, H: F32):
    for b, t in T.grid(B, L):
        H[b, t] = (
            T.sigmoid(F[b, t])
            / (T.sigmoid(F[b, t]) + T.sigmoid(I[b, t]))
            * T.if_then_else(t > 0, H[b, t - 1], T.float32(0))
            + T.sigmoid(I[b, t]) / (T.sigmoid(F[b, t]) + T.sigmoid(I[b, t])) * X[b, t]
        )


@T.prim_func(s_tir=True)
def quasi_recurrent_pooling(F: F32, Z: F32, O: F32, H: F32):
    for b in range(B):
        c = T.alloc_buffer((1,), "float32")
        c[0] = T.float32(0)
        for t in range(L):
            c[0] = F[b, t] * c[0] + (T.float32(1) - F[b, t]) * Z[b, t]
            H[b, t] = O[b, t] * c[0]


@T.prim_func(s_tir=True)
def simple_recurrent_unit(X: F32, Wx: F32, Fx: F32, Rx: F32, H: F32):
    for b in range(B):
        c = T.alloc_buffer((1,), "float32")
        f = T.alloc_buffer((1,), "float32")
        r = T.alloc_buffer((1,), "float32")
        c[0] = T.float32(0)
        for t in range(L):
            f[0] = T.sigmoid(Fx[b, t])
            r[0] = T.sigmoid(Rx[b, t])
            c[0] = f[0] * c[0] + (T.float32(1) - f[0]) * Wx[b, t]
            H[b, t] = r[0] * T.tanh(c[0]) + (T.float32(1) - r[0]) * X[b, t]


@T.prim_func(s_tir=True)
def hierarchical_gate(X: F32, F: F32, Low: LANE, H: F32):
    for b, t in T.grid(B, L):
        H[b, t] = (Low[b] + (T.float32(1) - Low[b]) * T.sigmoid(F[b, t])) * T.if_then_else(
            t > 0, H[b, t - 1], T.float32(0)
        ) + (T.float32(1) - Low[b]) * (T.float32(1) - T.sigmoid(F[b, t])) * X[b, t]


@T.prim_func(s_tir=True)
def linear_attention(Q: KEYS, K: KEYS, V: buffer("float32", L, B), Y: buffer("float32", L, B)):
    for d in range(B):
        s = T.alloc_buffer((N,), "float32")
        for n in range(N):
            s[n] = T.float32(0)
        for t in range(L):
            Y[t, d] = T.float32(0)
            for n in range(N):
                s[n] = s[n] + K[t, n] * V[t, d]
                Y[t, d] = Y[t, d] + Q[t, n] * s[n]


@T.prim_func(s_tir=True)
def normalised_linear_attention(Q: KEYS, K: KEYS, V: F32, Y: F32):
    for d in range(B):
        s = T.alloc_buffer((N,), "float32")
        z = T.alloc_buffer((N,), "float32")
        below = T.alloc_buffer((1,), "float32")
        for n in range(N):
            s[n] = T.float32(0)
            z[n] = T.float32(0)
        for t in range(L):
            Y[d, t] = T.float32(0)
            below[0] = T.float32(0.001)
            for n in range(N):
                s[n] = s[n] + K[t, n] * V[d, t]
                z[n] = z[n] + K[t, n]
                Y[d, t] = Y[d, t] + Q[t, n] * s[n]
                below[0] = below[0] + Q[t, n] * z[n]
            Y[d, t] = Y[d, t] / below[0]


@T.prim_func(s_tir=True)
def retention(Q: KEYS, K: KEYS, V: F32, Decay: LANE, S: STATES, Y: F32):
    for d, t in T.grid(B, L):
        Y[d, t] = T.float32(0)
        for n in range(N):
            S[d, n] = Decay[d] * S[d, n] + K[t, n] * V[d, t]
            Y[d, t] = Y[d, t] + Q[t, n] * S[d, n]


@T.prim_func(s_tir=True)
def gated_linear_attention(Q: KEYS, K: KEYS, G: KEYS, V: F32, S: STATES, Y: F32):
    for d, t in T.grid(B, L):
        Y[d, t] = T.float32(0)
        for n in range(N):
            S[d, n] = G[t, n] * S[d, n] + K[t, n] * V[d, t]
            Y[d, t] = Y[d, t] + Q[t, n] * S[d, n]


@T.prim_func(s_tir=True)
def state_space_duality(
    Q: KEYS, K: KEYS, X: F32, Dt: buffer("float32", L), A: buffer("float32", 1), S: STATES, Y: F32
):
    for d, t in T.grid(B, L):
        Y[d, t] = T.float32(0)
        for n in range(N):
            S[d, n] = T.exp(Dt[t] * A[0]) * S[d, n] + Dt[t] * K[t, n] * X[d, t]
            Y[d, t] = Y[d, t] + Q[t, n] * S[d, n]


@T.prim_func(s_tir=True)
def rwkv_five(
    R: KEYS, K: KEYS, V: F32, W: buffer("float32", N), U: buffer("float32", N), S: STATES, Y: F32
):
    for d, t in T.grid(B, L):
        Y[d, t] = T.float32(0)
        for n in range(N):
            at: T.let[T.float32] = K[t, n] * V[d, t]
            Y[d, t] = Y[d, t] + R[t, n] * (U[n] * at + S[d, n])
            S[d, n] = S[d, n] * W[n] + at


@T.prim_func(s_tir=True)
def rwkv_six(R: KEYS, K: KEYS, W: KEYS, V: F32, U: buffer("float32", N), S: STATES, Y: F32):
    for d, t in T.grid(B, L):
        Y[d, t] = T.float32(0)
        for n in range(N):
            at: T.let[T.float32] = K[t, n] * V[d, t]
            Y[d, t] = Y[d, t] + R[t, n] * (U[n] * at + S[d, n])
            S[d, n] = S[d, n] * T.exp(T.float32(0) - T.exp(W[t, n])) + at


@T.prim_func(s_tir=True)
def rwkv_four(K: F32, V: F32, W: LANE, U: LANE, Y: F32):
    for b in range(B):
        above = T.alloc_buffer((1,), "float32")
        below = T.alloc_buffer((1,), "float32")
        top = T.alloc_buffer((1,), "float32")
        new = T.alloc_buffer((1,), "float32")
        above[0] = T.float32(0)
        below[0] = T.float32(0)
        top[0] = T.float32(-1e30)
        for t in range(L):
            new[0] = T.max(top[0], U[b] + K[b, t])
            Y[b, t] = (
                T.exp(top[0] - new[0]) * above[0] + T.exp(U[b] + K[b, t] - new[0]) * V[b, t]
            ) / (T.exp(top[0] - new[0]) * below[0] + T.exp(U[b] + K[b, t] - new[0]))
            new[0] = T.max(top[0] - W[b], K[b, t])
            above[0] = T.exp(top[0] - W[b] - new[0]) * above[0] + T.exp(K[b, t] - new[0]) * V[b, t]
            below[0] = T.exp(top[0] - W[b] - new[0]) * below[0] + T.exp(K[b, t] - new[0])
            top[0] = new[0]


@T.prim_func(s_tir=True)
def matrix_lstm(Q: KEYS, K: KEYS, V: F32, I: buffer("float32", L), F: buffer("float32", L), Y: F32):
    for d in range(B):
        c = T.alloc_buffer((N,), "float32")
        n = T.alloc_buffer((N,), "float32")
        m = T.alloc_buffer((1,), "float32")
        new = T.alloc_buffer((1,), "float32")
        below = T.alloc_buffer((1,), "float32")
        m[0] = T.float32(0)
        for j in range(N):
            c[j] = T.float32(0)
            n[j] = T.float32(0)
        for t in range(L):
            new[0] = T.max(F[t] + m[0], I[t])
            Y[d, t] = T.float32(0)
            below[0] = T.float32(0)
            for j in range(N):
                c[j] = T.exp(F[t] + m[0] - new[0]) * c[j] + T.exp(I[t] - new[0]) * K[t, j] * V[d, t]
                n[j] = T.exp(F[t] + m[0] - new[0]) * n[j] + T.exp(I[t] - new[0]) * K[t, j]
                Y[d, t] = Y[d, t] + Q[t, j] * c[j]
                below[0] = below[0] + Q[t, j] * n[j]
            m[0] = new[0]
            Y[d, t] = Y[d, t] / T.max(T.abs(below[0]), T.float32(1))


@T.prim_func(s_tir=True)
def attention_of_one_query(S: F32, V: buffer("float32", L, N), Y: buffer("float32", B, N)):
    for b in range(B):
        m = T.alloc_buffer((1,), "float32")
        new = T.alloc_buffer((1,), "float32")
        z = T.alloc_buffer((1,), "float32")
        acc = T.alloc_buffer((N,), "float32")
        m[0] = T.float32(-30)
        z[0] = T.float32(0)
        for j in range(N):
            acc[j] = T.float32(0)
        for t in range(L):
            new[0] = T.max(m[0], S[b, t])
            z[0] = z[0] * T.exp(m[0] - new[0]) + T.exp(S[b, t] - new[0])
            for j in range(N):
                acc[j] = acc[j] * T.exp(m[0] - new[0]) + T.exp(S[b, t] - new[0]) * V[t, j]
            m[0] = new[0]
        for j in range(N):
            Y[b, j] = acc[j] / z[0]


@T.prim_func(s_tir=True)
def linear_recurrent_unit(Nu: LANE, Theta: LANE, Xr: F32, Xi: F32, Yr: F32):
    for b in range(B):
        re = T.alloc_buffer((1,), "float32")
        im = T.alloc_buffer((1,), "float32")
        old = T.alloc_buffer((1,), "float32")
        re[0] = T.float32(0)
        im[0] = T.float32(0)
        for t in range(L):
            old[0] = re[0]
            re[0] = Nu[b] * T.cos(Theta[b]) * re[0] - Nu[b] * T.sin(Theta[b]) * im[0] + Xr[b, t]
            im[0] = Nu[b] * T.sin(Theta[b]) * old[0] + Nu[b] * T.cos(Theta[b]) * im[0] + Xi[b, t]
            Yr[b, t] = re[0]


@T.prim_func(s_tir=True)
def documents_in_one_row(X: F32, A: F32, Start: BOOL, H: F32):
    for b, t in T.grid(B, L):
        H[b, t] = (
            T.Select(Start[b, t], T.float32(0), A[b, t])
            * T.if_then_else(t > 0, H[b, t - 1], T.float32(0))
            + X[b, t]
        )


@T.prim_func(s_tir=True)
def leaky_neuron_without_reset(X: F32, V: LANE, Spike: BOOL):
    for b, t in T.grid(B, L):
        V[b] = T.float32(0.5) * V[b] + X[b, t]
        Spike[b, t] = V[b] > T.float32(0.75)


@T.prim_func(s_tir=True)
def damped_average_of_heads(X: F32, Alpha: STATES, Delta: STATES, Eta: STATES, Y: F32):
    for b in range(B):
        u = T.alloc_buffer((N,), "float32")
        for n in range(N):
            u[n] = T.float32(0)
        for t in range(L):
            Y[b, t] = T.float32(0)
            for n in range(N):
                u[n] = Alpha[b, n] * X[b, t] + (T.float32(1) - Alpha[b, n] * Delta[b, n]) * u[n]
                Y[b, t] = Y[b, t] + Eta[b, n] * u[n]


@T.prim_func(s_tir=True)
def positions_of_unmasked_tokens(Mask: BOOL, P: buffer("int64")):
    for b, t in T.grid(B, L):
        P[b, t] = T.if_then_else(t > 0, P[b, t - 1], T.int64(-1)) + T.Cast("int64", Mask[b, t])


PROGRAMS = [
    Program(selective_scan, "affine", {"A": (-1.0, 0.0), "Delta": (0.0, 1.0)}, rounds=True),
    Program(
        selective_scan_of_halves, "affine", {"A": (-1.0, 0.0), "Delta": (0.0, 1.0)}, rounds=True
    ),
    Program(
        diagonal_state_space,
        "complex affine",
        {"Are": (-0.7, 0.7), "Aim": (-0.7, 0.7)},
        rounds=True,
    ),
    Program(real_gated_linear_unit, "affine", {"Lambda": (0.1, 1.0)}, rounds=True),
    Program(minimal_gated_unit, "affine", rounds=True),
    Program(minimal_lstm, "affine", rounds=True),
    Program(quasi_recurrent_pooling, "affine", {"F": GATE}, rounds=True),
    Program(simple_recurrent_unit, "affine", rounds=True),
    Program(hierarchical_gate, "affine", {"Low": (0.0, 1.0)}, rounds=True),
    Program(linear_attention, "reduce add"),
    Program(
        normalised_linear_attention,
        "reduce add, reduce add",
        {"Q": (0.0, 1.0), "K": (0.0, 1.0)},
        rounds=True,
    ),
    Program(retention, "affine", {"Decay": GATE}, rounds=True),
    Program(gated_linear_attention, "affine", {"G": GATE}, rounds=True),
    Program(state_space_duality, "affine", {"A": (-1.0, 0.0), "Dt": (0.0, 1.0)}, rounds=True),
    Program(rwkv_five, "affine", {"W": GATE}, rounds=True),
    Program(rwkv_six, "affine", {"W": (-2.0, 0.0)}, rounds=True),
    Program(rwkv_four, "clamp, affine, affine", {"W": (0.0, 1.0)}, rounds=True),
    Program(matrix_lstm, "clamp, affine, affine", {"F": (-1.0, 0.0)}, rounds=True),
    Program(attention_of_one_query, "reduce max, affine, affine", {"S": (-4, 5)}, rounds=True),
    Program(linear_recurrent_unit, "complex affine", {"Nu": GATE, "Theta": GATE}, rounds=True),
    Program(documents_in_one_row, "affine"),
    Program(leaky_neuron_without_reset, "affine", rounds=True),
    Program(damped_average_of_heads, "affine", {"Alpha": GATE, "Delta": (0.0, 1.0)}, rounds=True),
    Program(positions_of_unmasked_tokens, "reduce add"),
]
