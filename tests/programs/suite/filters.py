"""Digital filters: recursive filters of order one to four, combs, cascades."""

from tvm.script import tirx as T

from tests.programs.suite.program import F32, I32, LANE, B, L, Program, buffer

PADDED = buffer("float32", B, L + 4)
SMALL = (-0.4, 0.4)


@T.prim_func(s_tir=True)
def one_pole(X: F32, A: LANE, Y: F32):
    for b, t in T.grid(B, L):
        Y[b, t] = A[b] * T.if_then_else(t > 0, Y[b, t - 1], T.float32(0)) + X[b, t]


@T.prim_func(s_tir=True)
def direct_current_blocker(X: F32, Y: F32):
    for b, t in T.grid(B, L):
        Y[b, t] = (
            X[b, t]
            - T.if_then_else(t > 0, X[b, t - 1], T.float32(0))
            + T.float32(0.5) * T.if_then_else(t > 0, Y[b, t - 1], T.float32(0))
        )


@T.prim_func(s_tir=True)
def all_pass(X: F32, C: LANE, Y: F32):
    for b in range(B):
        state = T.alloc_buffer((1,), "float32")
        state[0] = T.float32(0)
        for t in range(L):
            Y[b, t] = C[b] * X[b, t] + state[0]
            state[0] = X[b, t] - C[b] * Y[b, t]


@T.prim_func(s_tir=True)
def second_order_section(X: PADDED, C: buffer("float32", B, 5), Y: PADDED):
    for b, t in T.grid(B, L):
        Y[b, t + 2] = (
            C[b, 0] * X[b, t + 2]
            + C[b, 1] * X[b, t + 1]
            + C[b, 2] * X[b, t]
            - C[b, 3] * Y[b, t + 1]
            - C[b, 4] * Y[b, t]
        )


@T.prim_func(s_tir=True)
def transposed_direct_form(X: F32, C: buffer("float32", B, 5), Y: F32):
    for b in range(B):
        one = T.alloc_buffer((1,), "float32")
        two = T.alloc_buffer((1,), "float32")
        one[0] = T.float32(0)
        two[0] = T.float32(0)
        for t in range(L):
            y: T.let[T.float32] = C[b, 0] * X[b, t] + one[0]
            one[0] = C[b, 1] * X[b, t] - C[b, 3] * y + two[0]
            two[0] = C[b, 2] * X[b, t] - C[b, 4] * y
            Y[b, t] = y


@T.prim_func(s_tir=True)
def third_order(X: F32, C: buffer("float32", 3), Y: buffer("float32", B, L + 3)):
    for b, t in T.grid(B, L):
        Y[b, t + 3] = X[b, t] - C[0] * Y[b, t + 2] - C[1] * Y[b, t + 1] - C[2] * Y[b, t]


@T.prim_func(s_tir=True)
def fourth_order_filter(X: F32, C: buffer("float32", 4), Y: PADDED):
    for b, t in T.grid(B, L):
        Y[b, t + 4] = (
            X[b, t] - C[0] * Y[b, t + 3] - C[1] * Y[b, t + 2] - C[2] * Y[b, t + 1] - C[3] * Y[b, t]
        )


@T.prim_func(s_tir=True)
def time_varying_second_order(X: F32, P: F32, Q: F32, Y: buffer("float32", B, L + 2)):
    for b, t in T.grid(B, L):
        Y[b, t + 2] = X[b, t] + P[b, t] * Y[b, t + 1] + Q[b, t] * Y[b, t]


@T.prim_func(s_tir=True)
def resonator(X: F32, Cos: LANE, R: LANE, Y: buffer("float32", B, L + 2)):
    for b, t in T.grid(B, L):
        Y[b, t + 2] = X[b, t] + T.float32(2) * R[b] * Cos[b] * Y[b, t + 1] - R[b] * R[b] * Y[b, t]


@T.prim_func(s_tir=True)
def goertzel(X: F32, Coefficient: LANE, Power: LANE):
    for b in range(B):
        one = T.alloc_buffer((1,), "float32")
        two = T.alloc_buffer((1,), "float32")
        new = T.alloc_buffer((1,), "float32")
        one[0] = T.float32(0)
        two[0] = T.float32(0)
        for t in range(L):
            new[0] = X[b, t] + Coefficient[b] * one[0] - two[0]
            two[0] = one[0]
            one[0] = new[0]
        Power[b] = one[0] * one[0] + two[0] * two[0] - Coefficient[b] * one[0] * two[0]


@T.prim_func(s_tir=True)
def comb_of_two_steps(X: F32, Y: buffer("float32", B, L + 2)):
    for b, t in T.grid(B, L):
        Y[b, t + 2] = X[b, t] + T.float32(0.5) * Y[b, t]


@T.prim_func(s_tir=True)
def echo_of_four_steps(X: F32, Y: PADDED):
    for b, t in T.grid(B, L):
        Y[b, t + 4] = X[b, t] - Y[b, t]


@T.prim_func(s_tir=True)
def moving_sum(X: PADDED, Y: F32):
    for b in range(B):
        window = T.alloc_buffer((1,), "float32")
        window[0] = X[b, 0] + X[b, 1] + X[b, 2] + X[b, 3]
        for t in range(L):
            Y[b, t] = window[0]
            window[0] = window[0] + X[b, t + 4] - X[b, t]


@T.prim_func(s_tir=True)
def cascaded_integrators(X: I32, Y: I32):
    for b in range(B):
        one = T.alloc_buffer((1,), "int32")
        two = T.alloc_buffer((1,), "int32")
        three = T.alloc_buffer((1,), "int32")
        one[0] = 0
        two[0] = 0
        three[0] = 0
        for t in range(L):
            one[0] = one[0] + X[b, t]
            two[0] = two[0] + one[0]
            three[0] = three[0] + two[0]
            Y[b, t] = three[0]


@T.prim_func(s_tir=True)
def cascaded_one_poles(X: F32, A: LANE, C: LANE, Y: F32):
    for b in range(B):
        one = T.alloc_buffer((1,), "float32")
        two = T.alloc_buffer((1,), "float32")
        one[0] = T.float32(0)
        two[0] = T.float32(0)
        for t in range(L):
            one[0] = A[b] * one[0] + X[b, t]
            two[0] = C[b] * two[0] + one[0]
            Y[b, t] = two[0]


@T.prim_func(s_tir=True)
def ladder_of_four(X: F32, G: LANE, Y: F32):
    for b in range(B):
        s = T.alloc_buffer((4,), "float32")
        for i in range(4):
            s[i] = T.float32(0)
        for t in range(L):
            s[0] = s[0] + G[b] * (X[b, t] - s[0])
            s[1] = s[1] + G[b] * (s[0] - s[1])
            s[2] = s[2] + G[b] * (s[1] - s[2])
            s[3] = s[3] + G[b] * (s[2] - s[3])
            Y[b, t] = s[3]


@T.prim_func(s_tir=True)
def alpha_beta_tracker(X: F32, Y: F32):
    for b in range(B):
        x = T.alloc_buffer((1,), "float32")
        v = T.alloc_buffer((1,), "float32")
        x[0] = T.float32(0)
        v[0] = T.float32(0)
        for t in range(L):
            miss: T.let[T.float32] = X[b, t] - (x[0] + v[0])
            x[0] = x[0] + v[0] + T.float32(0.5) * miss
            v[0] = v[0] + T.float32(0.25) * miss
            Y[b, t] = x[0]


@T.prim_func(s_tir=True)
def envelope(X: F32, Y: F32):
    for b in range(B):
        e = T.alloc_buffer((1,), "float32")
        e[0] = T.float32(0)
        for t in range(L):
            e[0] = T.max(e[0] - T.float32(1), T.abs(X[b, t]))
            Y[b, t] = e[0]


@T.prim_func(s_tir=True)
def accumulate_backwards(X: F32, A: LANE, Y: F32):
    for b, t in T.grid(B, L):
        Y[b, L - 1 - t] = A[b] * T.if_then_else(t > 0, Y[b, L - t], T.float32(0)) + X[b, L - 1 - t]


@T.prim_func(s_tir=True)
def complex_one_pole(Xr: F32, Xi: F32, Ar: LANE, Ai: LANE, Yr: F32, Yi: F32):
    for b in range(B):
        re = T.alloc_buffer((1,), "float32")
        im = T.alloc_buffer((1,), "float32")
        re[0] = T.float32(0)
        im[0] = T.float32(0)
        for t in range(L):
            old: T.let[T.float32] = re[0]
            re[0] = Ar[b] * re[0] - Ai[b] * im[0] + Xr[b, t]
            im[0] = Ar[b] * im[0] + Ai[b] * old + Xi[b, t]
            Yr[b, t] = re[0]
            Yi[b, t] = im[0]


PROGRAMS = [
    Program(one_pole, "affine"),
    Program(direct_current_blocker, "affine", rounds=True),
    Program(all_pass, "affine", {"C": (-1.0, 1.0)}, rounds=True),
    Program(second_order_section, "matrix affine", {"C": SMALL}, rounds=True),
    Program(transposed_direct_form, "matrix affine", {"C": SMALL}, rounds=True),
    Program(third_order, "matrix affine", {"C": SMALL}, rounds=True),
    Program(fourth_order_filter, "matrix affine", {"C": SMALL}, rounds=True),
    Program(time_varying_second_order, "matrix affine", {"P": SMALL, "Q": SMALL}, rounds=True),
    Program(resonator, "matrix affine", {"Cos": (-1.0, 1.0), "R": (0.5, 0.9)}, rounds=True),
    Program(goertzel, "matrix affine", {"Coefficient": (-1.0, 1.0)}, rounds=True),
    Program(comb_of_two_steps, "matrix affine", rounds=True),
    Program(echo_of_four_steps, "matrix affine"),
    Program(moving_sum, "reduce add"),
    Program(cascaded_integrators, "reduce add, reduce add, reduce add", {"X": (-9, 10)}),
    Program(cascaded_one_poles, "affine, affine", {"A": SMALL, "C": SMALL}, rounds=True),
    Program(ladder_of_four, "affine, affine, affine, affine", {"G": (0.0, 1.0)}, rounds=True),
    Program(alpha_beta_tracker, "matrix affine", {"X": (-1.0, 1.0)}, rounds=True),
    Program(envelope, "clamp", {"X": (-9, 10)}),
    Program(accumulate_backwards, "affine"),
    Program(
        complex_one_pole, "complex affine", {"Ar": (-0.7, 0.7), "Ai": (-0.7, 0.7)}, rounds=True
    ),
]
