"""Sweeps of linear algebra, Kalman filters, money, returns of reinforcement learning."""

from tvm.script import tirx as T

from tests.programs.suite.program import BOOL, F32, LANE, LONGER, B, L, Program, buffer

WELL_SET = {"Below": (-0.4, 0.4), "Diagonal": (1.0, 2.0), "Above": (-0.4, 0.4)}


@T.prim_func(s_tir=True)
def thomas_elimination(Below: F32, Diagonal: F32, Above: F32, Right: F32, C: F32, D: F32):
    for b in range(B):
        c = T.alloc_buffer((1,), "float32")
        d = T.alloc_buffer((1,), "float32")
        pivot = T.alloc_buffer((1,), "float32")
        c[0] = T.float32(0)
        d[0] = T.float32(0)
        for t in range(L):
            pivot[0] = Diagonal[b, t] - Below[b, t] * c[0]
            d[0] = (Right[b, t] - Below[b, t] * d[0]) / pivot[0]
            c[0] = Above[b, t] / pivot[0]
            C[b, t] = c[0]
            D[b, t] = d[0]


@T.prim_func(s_tir=True)
def back_substitution(C: F32, D: F32, X: LONGER):
    for b, t in T.grid(B, L):
        X[b, L - 1 - t] = D[b, L - 1 - t] - C[b, L - 1 - t] * X[b, L - t]


@T.prim_func(s_tir=True)
def bidiagonal_solve(Diagonal: F32, Below: F32, Right: F32, X: F32):
    for b, t in T.grid(B, L):
        X[b, t] = (
            Right[b, t] - Below[b, t] * T.if_then_else(t > 0, X[b, t - 1], T.float32(0))
        ) / Diagonal[b, t]


@T.prim_func(s_tir=True)
def pivots_of_a_tridiagonal_matrix(Diagonal: F32, Off: F32, P: F32):
    for b in range(B):
        p = T.alloc_buffer((1,), "float32")
        p[0] = T.float32(1)
        for t in range(L):
            p[0] = Diagonal[b, t] - Off[b, t] * Off[b, t] / p[0]
            P[b, t] = p[0]


@T.prim_func(s_tir=True)
def determinants(Diagonal: F32, Off: F32, D: buffer("float32", B, L + 2)):
    for b, t in T.grid(B, L):
        D[b, t + 2] = Diagonal[b, t] * D[b, t + 1] - Off[b, t] * Off[b, t] * D[b, t]


@T.prim_func(s_tir=True)
def riccati(Q: LANE, R: LANE, P: F32):
    for b in range(B):
        p = T.alloc_buffer((1,), "float32")
        p[0] = T.float32(1)
        for t in range(L):
            p[0] = p[0] * R[b] / (p[0] + R[b]) + Q[b]
            P[b, t] = p[0]


@T.prim_func(s_tir=True)
def kalman(Z: F32, Q: LANE, R: LANE, X: F32):
    for b in range(B):
        x = T.alloc_buffer((1,), "float32")
        p = T.alloc_buffer((1,), "float32")
        k = T.alloc_buffer((1,), "float32")
        x[0] = T.float32(0)
        p[0] = T.float32(1)
        for t in range(L):
            k[0] = (p[0] + Q[b]) / (p[0] + Q[b] + R[b])
            x[0] = x[0] + k[0] * (Z[b, t] - x[0])
            p[0] = (p[0] + Q[b]) * R[b] / (p[0] + Q[b] + R[b])
            X[b, t] = x[0]


@T.prim_func(s_tir=True)
def continued_fraction_from_the_end(A: F32, H: LONGER):
    for b, t in T.grid(B, L):
        H[b, L - 1 - t] = A[b, L - 1 - t] + T.float32(1) / H[b, L - t]


@T.prim_func(s_tir=True)
def parallel_resistors(R: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = S[b] * R[b, t] / (S[b] + R[b, t])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def savings(Rate: F32, Deposit: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = S[b] * (T.float32(1) + Rate[b, t]) + Deposit[b, t]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def loan(Rate: LANE, Payment: LANE, H: LONGER):
    for b, t in T.grid(B, L):
        H[b, t + 1] = H[b, t] + H[b, t] * Rate[b] - Payment[b]


@T.prim_func(s_tir=True)
def discount_factors(Rate: F32, D: F32):
    for b in range(B):
        d = T.alloc_buffer((1,), "float32")
        d[0] = T.float32(1)
        for t in range(L):
            d[0] = d[0] / (T.float32(1) + Rate[b, t])
            D[b, t] = d[0]


@T.prim_func(s_tir=True)
def conditional_variance(Shock: F32, W: LANE, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = W[b] + T.float32(0.1) * Shock[b, t] * Shock[b, t] + T.float32(0.8) * S[b]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def inventory_with_a_floor(Delivered: F32, Sold: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = T.max(S[b] + Delivered[b, t] - Sold[b, t], T.float32(0))
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def trailing_stop(Price: F32, Entry: BOOL, Y: F32):
    for b in range(B):
        top = T.alloc_buffer((1,), "float32")
        top[0] = T.float32(0)
        for t in range(L):
            if Entry[b, t]:
                top[0] = Price[b, t]
            else:
                top[0] = T.max(top[0], Price[b, t])
            Y[b, t] = top[0] - T.float32(2)


@T.prim_func(s_tir=True)
def discounted_return(R: F32, G: LONGER):
    for b, t in T.grid(B, L):
        G[b, L - 1 - t] = R[b, L - 1 - t] + T.float32(0.99) * G[b, L - t]


@T.prim_func(s_tir=True)
def return_of_episodes(R: F32, Done: BOOL, G: F32):
    for b in range(B):
        g = T.alloc_buffer((1,), "float32")
        g[0] = T.float32(0)
        for t in range(L):
            g[0] = R[b, L - 1 - t] + T.float32(0.5) * g[0] * T.Select(
                Done[b, L - 1 - t], T.float32(0), T.float32(1)
            )
            G[b, L - 1 - t] = g[0]


@T.prim_func(s_tir=True)
def generalised_advantage(R: F32, V: LONGER, Mask: F32, A: F32):
    for b in range(B):
        a = T.alloc_buffer((1,), "float32")
        a[0] = T.float32(0)
        for t in range(L):
            a[0] = (
                R[b, L - 1 - t]
                + T.float32(0.99) * V[b, L - t] * Mask[b, L - 1 - t]
                - V[b, L - 1 - t]
                + T.float32(0.95) * T.float32(0.99) * Mask[b, L - 1 - t] * a[0]
            )
            A[b, L - 1 - t] = a[0]


@T.prim_func(s_tir=True)
def v_trace(R: F32, V: LONGER, Rho: F32, A: F32):
    for b in range(B):
        a = T.alloc_buffer((1,), "float32")
        a[0] = T.float32(0)
        for t in range(L):
            clipped: T.let[T.float32] = T.min(Rho[b, L - 1 - t], T.float32(1))
            a[0] = clipped * (
                R[b, L - 1 - t]
                + T.float32(0.9) * V[b, L - t]
                - V[b, L - 1 - t]
                + T.float32(0.9) * a[0]
            )
            A[b, L - 1 - t] = V[b, L - 1 - t] + a[0]


@T.prim_func(s_tir=True)
def eligibility_trace(Feature: buffer("float32", B, L, 5), E: buffer("float32", B, L, 5)):
    for b in range(B):
        e = T.alloc_buffer((5,), "float32")
        for i in range(5):
            e[i] = T.float32(0)
        for t in range(L):
            for i in range(5):
                e[i] = T.float32(0.9) * e[i] + Feature[b, t, i]
                E[b, t, i] = e[i]


@T.prim_func(s_tir=True)
def momentum_descent(Gradient: F32, P: LANE, Y: F32):
    for b in range(B):
        v = T.alloc_buffer((1,), "float32")
        v[0] = T.float32(0)
        for t in range(L):
            v[0] = T.float32(0.9) * v[0] + Gradient[b, t]
            P[b] = P[b] - T.float32(0.1) * v[0]
            Y[b, t] = P[b]


@T.prim_func(s_tir=True)
def adam_moments(Gradient: F32, P: LANE, Y: F32):
    for b in range(B):
        m = T.alloc_buffer((1,), "float32")
        v = T.alloc_buffer((1,), "float32")
        m[0] = T.float32(0)
        v[0] = T.float32(0)
        for t in range(L):
            m[0] = T.float32(0.9) * m[0] + T.float32(0.1) * Gradient[b, t]
            v[0] = T.float32(0.99) * v[0] + T.float32(0.01) * Gradient[b, t] * Gradient[b, t]
            P[b] = P[b] - m[0] / (T.sqrt(v[0]) + T.float32(0.001))
            Y[b, t] = P[b]


PROGRAMS = [
    Program(thomas_elimination, "linear fractional, affine", WELL_SET, rounds=True),
    Program(back_substitution, "affine"),
    Program(bidiagonal_solve, "affine", {"Diagonal": (1.0, 2.0)}, rounds=True),
    Program(
        pivots_of_a_tridiagonal_matrix,
        "linear fractional",
        {"Diagonal": (2.0, 3.0), "Off": (-0.9, 0.9)},
        rounds=True,
    ),
    Program(determinants, "matrix affine"),
    Program(riccati, "linear fractional", {"Q": (0.5, 1.0), "R": (0.5, 1.0)}, rounds=True),
    Program(kalman, "linear fractional, affine", {"Q": (0.5, 1.0), "R": (0.5, 1.0)}, rounds=True),
    Program(
        continued_fraction_from_the_end,
        "linear fractional",
        {"A": (1, 5), "H": (1, 5)},
        rounds=True,
    ),
    Program(parallel_resistors, "linear fractional", {"R": (1, 5), "S": (1, 5)}, rounds=True),
    Program(savings, "affine", {"Rate": (0.0, 0.1)}, rounds=True),
    Program(loan, "affine", {"Rate": (0.0, 0.1), "H": (90, 99)}, rounds=True),
    Program(discount_factors, "reduce mul", {"Rate": (0.0, 0.1)}, rounds=True),
    Program(conditional_variance, "affine", rounds=True),
    Program(inventory_with_a_floor, "clamp", {"Delivered": (0, 9), "Sold": (0, 9)}),
    Program(trailing_stop, "segmented", {"Price": (1, 99)}),
    Program(discounted_return, "affine", rounds=True),
    Program(return_of_episodes, "affine", rounds=True),
    Program(generalised_advantage, "affine", {"Mask": (0, 2)}, rounds=True),
    Program(v_trace, "affine", {"Rho": (0.5, 1.5)}, rounds=True),
    Program(eligibility_trace, "affine", rounds=True),
    Program(momentum_descent, "affine, reduce add", rounds=True),
    Program(adam_moments, "affine, affine, reduce add", {"Gradient": (0.5, 1.0)}, rounds=True),
]
