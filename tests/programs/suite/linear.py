"""First-order linear recurrences: sums, products, gates, generators."""

from tvm.script import tirx as T

from tests.programs.suite.program import F32, I8, I32, LANE, LONGER, U32, B, L, Program, buffer


@T.prim_func(s_tir=True)
def prefix_sum(X: F32, H: F32):
    for b, t in T.grid(B, L):
        H[b, t] = T.if_then_else(t > 0, H[b, t - 1], T.float32(0)) + X[b, t]


@T.prim_func(s_tir=True)
def exclusive_sum(X: F32, Y: F32):
    for b in range(B):
        s = T.alloc_buffer((1,), "float32")
        s[0] = T.float32(0)
        for t in range(L):
            Y[b, t] = s[0]
            s[0] = s[0] + X[b, t]


@T.prim_func(s_tir=True)
def suffix_sum(X: F32, H: F32):
    for b, t in T.grid(B, L):
        H[b, L - 1 - t] = T.if_then_else(t > 0, H[b, L - t], T.float32(0)) + X[b, L - 1 - t]


@T.prim_func(s_tir=True)
def prefix_product(X: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = X[b, t] * S[b]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def alternating_sum(X: F32, H: LONGER):
    for b, t in T.grid(B, L):
        H[b, t + 1] = X[b, t] - H[b, t]


@T.prim_func(s_tir=True)
def sum_of_bytes(X: I8, H: I32):
    for b, t in T.grid(B, L):
        H[b, t] = T.if_then_else(t > 0, H[b, t - 1], 0) + T.Cast("int32", X[b, t])


@T.prim_func(s_tir=True)
def count_of_positives(X: F32, N: I32):
    for b in range(B):
        n = T.alloc_buffer((1,), "int32")
        n[0] = 0
        for t in range(L):
            if X[b, t] > T.float32(0):
                n[0] = n[0] + 1
            N[b, t] = n[0]


@T.prim_func(s_tir=True)
def dot_product(X: F32, W: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = S[b] + X[b, t] * W[b, t]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def horner(C: F32, Z: LANE, P: LANE):
    for b in range(B):
        P[b] = T.float32(0)
        for t in range(L):
            P[b] = P[b] * Z[b] + C[b, t]


@T.prim_func(s_tir=True)
def geometric_series(Q: LANE, H: LONGER):
    for b in range(B):
        H[b, 0] = T.float32(1)
        for t in range(L):
            H[b, t + 1] = T.float32(1) + Q[b] * H[b, t]


@T.prim_func(s_tir=True)
def linear_congruential_generator(Seed: buffer("int64", B), R: buffer("int64")):
    for b in range(B):
        for t in range(L):
            Seed[b] = (Seed[b] * T.int64(16807) + T.int64(12345)) % T.int64(2147483647)
            R[b, t] = Seed[b]


@T.prim_func(s_tir=True)
def rolling_hash(X: I32, H: I32):
    for b, t in T.grid(B, L):
        H[b, t] = (T.if_then_else(t > 0, H[b, t - 1], 5381) * 257 + X[b, t]) % 65521


@T.prim_func(s_tir=True)
def masked_hash(X: U32, S: buffer("uint32", B), H: U32):
    for b, t in T.grid(B, L):
        S[b] = T.bitwise_and(S[b] * T.uint32(33) + X[b, t], T.uint32(0xFFFFFF))
        H[b, t] = S[b]


@T.prim_func(s_tir=True)
def adler(X: I32, Y: I32):
    for b in range(B):
        low = T.alloc_buffer((1,), "int32")
        high = T.alloc_buffer((1,), "int32")
        low[0] = 1
        high[0] = 0
        for t in range(L):
            low[0] = (low[0] + X[b, t]) % 65521
            high[0] = (high[0] + low[0]) % 65521
            Y[b, t] = low[0] + high[0]


@T.prim_func(s_tir=True)
def exponential_average(X: F32, H: F32):
    for b, t in T.grid(B, L):
        H[b, t] = T.if_then_else(
            t > 0, H[b, t - 1] * T.float32(0.9) + X[b, t] * T.float32(0.1), X[b, t]
        )


@T.prim_func(s_tir=True)
def corrected_average(X: F32, Y: F32):
    for b in range(B):
        m = T.alloc_buffer((1,), "float32")
        power = T.alloc_buffer((1,), "float32")
        m[0] = T.float32(0)
        power[0] = T.float32(1)
        for t in range(L):
            m[0] = T.float32(0.75) * m[0] + T.float32(0.25) * X[b, t]
            power[0] = power[0] * T.float32(0.75)
            Y[b, t] = m[0] / (T.float32(1) - power[0])


@T.prim_func(s_tir=True)
def leaky_integrator(Decay: LANE, X: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = S[b] - Decay[b] * S[b] + X[b, t]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def interpolation(G: F32, X: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = S[b] + G[b, t] * (X[b, t] - S[b])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def gate_and_complement(G: F32, X: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = G[b, t] * S[b] + (T.float32(1) - G[b, t]) * X[b, t]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def coefficient_of_time(X: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = S[b] * T.Cast("float32", t % 3 - 1) + X[b, t]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def even_steps_only(X: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        if t % 2 == 0:
            S[b] = X[b, t] - S[b]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def shared_gate(A: T.Buffer((L,), "float32"), X: F32, S: LANE, Y: F32):
    for t in range(L):
        for b in range(B):
            S[b] = A[t] * S[b] + X[b, t]
        for b in range(B):
            Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def fused_multiply_add(A: F32, X: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = T.fma(A[b, t], S[b], X[b, t])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def distributed_twice(A: F32, C: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = S[b] * A[b, t] + S[b] * C[b, t] - (S[b] - T.float32(1))
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def divided_by_an_input(X: F32, D: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = (S[b] + X[b, t]) / D[b, t]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def negated(X: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = T.float32(0) - (S[b] - X[b, t])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def doubled_by_shift(X: I32, H: I32):
    for b, t in T.grid(B, L):
        H[b, t] = T.shift_left(T.if_then_else(t > 2, H[b, t - 1], 1), 1) + X[b, t]


PROGRAMS = [
    Program(prefix_sum, "reduce add", {"X": (-9, 10)}),
    Program(exclusive_sum, "reduce add", {"X": (-9, 10)}),
    Program(suffix_sum, "reduce add", {"X": (-9, 10)}),
    Program(prefix_product, "reduce mul"),
    Program(alternating_sum, "affine", {"X": (-9, 10)}),
    Program(sum_of_bytes, "reduce add", {"X": (-128, 128)}),
    Program(count_of_positives, "reduce add"),
    Program(dot_product, "reduce add"),
    Program(horner, "affine"),
    Program(geometric_series, "affine"),
    Program(linear_congruential_generator, "modular affine", {"Seed": (0, 1 << 33)}),
    Program(rolling_hash, "modular affine", {"X": (-256, 256)}),
    Program(masked_hash, "modular affine", {"X": (0, 256), "S": (0, 1 << 26)}),
    Program(adler, "modular affine, modular affine", {"X": (0, 256)}),
    Program(exponential_average, "affine", {"X": (-1.0, 1.0)}, rounds=True),
    Program(corrected_average, "affine, reduce mul", {"X": (-1.0, 1.0)}, rounds=True),
    Program(leaky_integrator, "affine", {"Decay": (0, 3)}),
    Program(interpolation, "affine", {"G": (0, 3)}),
    Program(gate_and_complement, "affine", {"G": (0.0, 1.0)}, rounds=True),
    Program(coefficient_of_time, "affine"),
    Program(even_steps_only, "affine"),
    Program(shared_gate, "affine"),
    Program(fused_multiply_add, "affine"),
    Program(distributed_twice, "affine", {"C": (0, 2)}),
    Program(divided_by_an_input, "affine", {"D": (1.0, 2.0)}, rounds=True),
    Program(negated, "affine"),
    Program(doubled_by_shift, "affine", {"X": (0, 2)}),
]
