"""Linear recurrences of order two to four, and small linear systems."""

from tvm.script import tirx as T

from tests.programs.suite.program import F32, I32, LANE, B, L, Program, buffer

TWO_LONGER = buffer("float32", B, L + 2)


@T.prim_func(s_tir=True)
def fibonacci(H: buffer("uint32", B, L + 2)):
    for b, t in T.grid(B, L):
        H[b, t + 2] = H[b, t + 1] + H[b, t]


@T.prim_func(s_tir=True)
def tribonacci(H: buffer("uint32", B, L + 3)):
    for b, t in T.grid(B, L):
        H[b, t + 3] = H[b, t + 2] + H[b, t + 1] + H[b, t]


@T.prim_func(s_tir=True)
def lucas_sequence(P: LANE, Q: LANE, H: TWO_LONGER):
    for b, t in T.grid(B, L):
        H[b, t + 2] = P[b] * H[b, t + 1] - Q[b] * H[b, t]


@T.prim_func(s_tir=True)
def chebyshev_polynomials(Z: LANE, P: TWO_LONGER):
    for b in range(B):
        P[b, 0] = T.float32(1)
        P[b, 1] = Z[b]
        for t in range(L):
            P[b, t + 2] = T.float32(2) * Z[b] * P[b, t + 1] - P[b, t]


@T.prim_func(s_tir=True)
def legendre_polynomials(Z: LANE, P: TWO_LONGER):
    for b in range(B):
        P[b, 0] = T.float32(1)
        P[b, 1] = Z[b]
        for t in range(L):
            P[b, t + 2] = (
                T.Cast("float32", 2 * t + 3) * Z[b] * P[b, t + 1]
                - T.Cast("float32", t + 1) * P[b, t]
            ) / T.Cast("float32", t + 2)


@T.prim_func(s_tir=True)
def clenshaw(C: F32, Z: LANE, Y: F32):
    for b in range(B):
        one = T.alloc_buffer((1,), "float32")
        two = T.alloc_buffer((1,), "float32")
        new = T.alloc_buffer((1,), "float32")
        one[0] = T.float32(0)
        two[0] = T.float32(0)
        for t in range(L):
            new[0] = C[b, L - 1 - t] + Z[b] * one[0] - two[0]
            two[0] = one[0]
            one[0] = new[0]
            Y[b, L - 1 - t] = one[0]


@T.prim_func(s_tir=True)
def rotation(C: F32, S: F32, X: F32, Y: F32):
    for b in range(B):
        x = T.alloc_buffer((1,), "float32")
        y = T.alloc_buffer((1,), "float32")
        old = T.alloc_buffer((1,), "float32")
        x[0] = T.float32(1)
        y[0] = T.float32(0)
        for t in range(L):
            old[0] = x[0]
            x[0] = C[b, t] * x[0] - S[b, t] * y[0]
            y[0] = S[b, t] * old[0] + C[b, t] * y[0]
            X[b, t] = x[0]
            Y[b, t] = y[0]


@T.prim_func(s_tir=True)
def symplectic_oscillator(K: LANE, Force: F32, Q: F32, P: F32):
    for b in range(B):
        q = T.alloc_buffer((1,), "float32")
        p = T.alloc_buffer((1,), "float32")
        q[0] = T.float32(1)
        p[0] = T.float32(0)
        for t in range(L):
            p[0] = p[0] - K[b] * q[0] + Force[b, t]
            q[0] = q[0] + T.float32(0.25) * p[0]
            Q[b, t] = q[0]
            P[b, t] = p[0]


@T.prim_func(s_tir=True)
def verlet(K: LANE, Force: F32, Q: TWO_LONGER):
    for b, t in T.grid(B, L):
        Q[b, t + 2] = (
            T.float32(2) * Q[b, t + 1]
            - Q[b, t]
            + (Force[b, t] - K[b] * Q[b, t + 1]) * T.float32(0.125)
        )


@T.prim_func(s_tir=True)
def linear_trend(X: F32, Level: F32, Slope: F32):
    for b in range(B):
        level = T.alloc_buffer((1,), "float32")
        slope = T.alloc_buffer((1,), "float32")
        new = T.alloc_buffer((1,), "float32")
        level[0] = T.float32(0)
        slope[0] = T.float32(0)
        for t in range(L):
            new[0] = T.float32(0.5) * X[b, t] + T.float32(0.5) * (level[0] + slope[0])
            slope[0] = T.float32(0.25) * (new[0] - level[0]) + T.float32(0.75) * slope[0]
            level[0] = new[0]
            Level[b, t] = level[0]
            Slope[b, t] = slope[0]


@T.prim_func(s_tir=True)
def constant_velocity(A: F32, X: F32, V: F32):
    for b in range(B):
        x = T.alloc_buffer((1,), "float32")
        v = T.alloc_buffer((1,), "float32")
        x[0] = T.float32(0)
        v[0] = T.float32(0)
        for t in range(L):
            x[0] = x[0] + v[0]
            v[0] = v[0] + A[b, t]
            X[b, t] = x[0]
            V[b, t] = v[0]


@T.prim_func(s_tir=True)
def convergents(A: I32, P: buffer("int32", B, L + 2), Q: buffer("int32", B, L + 2)):
    for b in range(B):
        P[b, 0] = 0
        P[b, 1] = 1
        Q[b, 0] = 1
        Q[b, 1] = 0
        for t in range(L):
            P[b, t + 2] = A[b, t] * P[b, t + 1] + P[b, t]
            Q[b, t + 2] = A[b, t] * Q[b, t + 1] + Q[b, t]


@T.prim_func(s_tir=True)
def two_state_markov_chain(
    M: T.Buffer((B, 2, 2), "float32"),
    P0: T.Buffer((B, 2), "float32"),
    P: T.Buffer((B, L, 2), "float32"),
):
    for b in range(B):
        p = T.alloc_buffer((2,), "float32")
        n = T.alloc_buffer((2,), "float32")
        for i in range(2):
            p[i] = P0[b, i]
        for t in range(L):
            for j in range(2):
                n[j] = p[0] * M[b, 0, j] + p[1] * M[b, 1, j]
            for j in range(2):
                p[j] = n[j]
                P[b, t, j] = p[j]


@T.prim_func(s_tir=True)
def coupled_populations(X: F32, Y: F32, Prey: F32, Hunter: F32):
    for b in range(B):
        prey = T.alloc_buffer((1,), "float32")
        hunter = T.alloc_buffer((1,), "float32")
        prey[0] = T.float32(2)
        hunter[0] = T.float32(1)
        for t in range(L):
            change: T.let[T.float32] = X[b, t] * hunter[0]
            hunter[0] = hunter[0] + Y[b, t] * prey[0]
            prey[0] = prey[0] - change
            Prey[b, t] = prey[0]
            Hunter[b, t] = hunter[0]


@T.prim_func(s_tir=True)
def fourth_order(X: I32, H: buffer("int32", B, L + 4)):
    for b, t in T.grid(B, L):
        H[b, t + 4] = H[b, t] * X[b, t] - H[b, t + 2] + H[b, t + 3] + 11


@T.prim_func(s_tir=True)
def quaternion_like_flow(W: T.Buffer((B, L, 3), "float32"), Y: T.Buffer((B, L, 4), "float32")):
    for b in range(B):
        q = T.alloc_buffer((4,), "float32")
        n = T.alloc_buffer((4,), "float32")
        for i in range(4):
            q[i] = T.float32(1)
        for t in range(L):
            n[0] = q[0] - W[b, t, 0] * q[1] - W[b, t, 1] * q[2] - W[b, t, 2] * q[3]
            n[1] = q[1] + W[b, t, 0] * q[0]
            n[2] = q[2] + W[b, t, 1] * q[0]
            n[3] = q[3] + W[b, t, 2] * q[0]
            for i in range(4):
                q[i] = n[i]
                Y[b, t, i] = q[i]


PROGRAMS = [
    Program(fibonacci, "matrix affine", {"H": (0, 2)}),
    Program(tribonacci, "matrix affine", {"H": (0, 2)}),
    Program(lucas_sequence, "matrix affine"),
    Program(chebyshev_polynomials, "matrix affine"),
    Program(legendre_polynomials, "matrix affine", {"Z": (-1.0, 1.0)}, rounds=True),
    Program(clenshaw, "matrix affine"),
    Program(rotation, "complex affine"),
    Program(symplectic_oscillator, "matrix affine", {"K": (0.0, 1.0)}, rounds=True),
    Program(verlet, "matrix affine", {"K": (0.0, 1.0)}, rounds=True, growth=L),
    Program(linear_trend, "matrix affine", {"X": (-1.0, 1.0)}, rounds=True),
    Program(constant_velocity, "reduce add, reduce add"),
    Program(convergents, "matrix affine, matrix affine"),
    Program(
        two_state_markov_chain, "matrix affine", {"M": (0.0, 0.5), "P0": (0.0, 1.0)}, rounds=True
    ),
    Program(coupled_populations, "matrix affine", {"X": (0.0, 0.1), "Y": (0.0, 0.1)}, rounds=True),
    Program(fourth_order, "matrix affine", {"H": (0, 9)}),
    Program(quaternion_like_flow, "matrix affine", {"W": (-0.1, 0.1)}, rounds=True),
]
