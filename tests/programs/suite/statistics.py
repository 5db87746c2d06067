"""Running statistics: moments, weights, last events, positions of extrema, stabilised sums."""

from tvm.script import tirx as T

from tests.programs.suite.program import BOOL, F32, I32, LANE, LANE_I32, B, L, Program, buffer

X_UNIT = {"X": (-1.0, 1.0)}


@T.prim_func(s_tir=True)
def running_mean(X: F32, M: F32):
    for b in range(B):
        m = T.alloc_buffer((1,), "float32")
        m[0] = T.float32(0)
        for t in range(L):
            m[0] = m[0] + (X[b, t] - m[0]) / T.Cast("float32", t + 1)
            M[b, t] = m[0]


@T.prim_func(s_tir=True)
def welford(X: F32, V: F32):
    for b in range(B):
        mean = T.alloc_buffer((1,), "float32")
        m2 = T.alloc_buffer((1,), "float32")
        d = T.alloc_buffer((1,), "float32")
        mean[0] = T.float32(0)
        m2[0] = T.float32(0)
        for t in range(L):
            d[0] = X[b, t] - mean[0]
            mean[0] = mean[0] + d[0] / T.Cast("float32", t + 1)
            m2[0] = m2[0] + d[0] * (X[b, t] - mean[0])
            V[b, t] = m2[0] / T.Cast("float32", t + 1)


@T.prim_func(s_tir=True)
def sums_of_powers(X: F32, Y: buffer("float32", B, L, 3)):
    for b in range(B):
        s = T.alloc_buffer((3,), "float32")
        for i in range(3):
            s[i] = T.float32(0)
        for t in range(L):
            s[0] = s[0] + X[b, t]
            s[1] = s[1] + X[b, t] * X[b, t]
            s[2] = s[2] + X[b, t] * X[b, t] * X[b, t]
            for i in range(3):
                Y[b, t, i] = s[i]


@T.prim_func(s_tir=True)
def running_covariance(X: F32, Z: F32, C: F32):
    for b in range(B):
        mx = T.alloc_buffer((1,), "float32")
        mz = T.alloc_buffer((1,), "float32")
        c = T.alloc_buffer((1,), "float32")
        mx[0] = T.float32(0)
        mz[0] = T.float32(0)
        c[0] = T.float32(0)
        for t in range(L):
            d: T.let[T.float32] = X[b, t] - mx[0]
            mx[0] = mx[0] + d / T.Cast("float32", t + 1)
            mz[0] = mz[0] + (Z[b, t] - mz[0]) / T.Cast("float32", t + 1)
            c[0] = c[0] + d * (Z[b, t] - mz[0])
            C[b, t] = c[0]


@T.prim_func(s_tir=True)
def weighted_mean(X: F32, W: F32, M: F32):
    for b in range(B):
        total = T.alloc_buffer((1,), "float32")
        m = T.alloc_buffer((1,), "float32")
        total[0] = T.float32(0)
        m[0] = T.float32(0)
        for t in range(L):
            total[0] = total[0] + W[b, t]
            m[0] = m[0] + (X[b, t] - m[0]) * (W[b, t] / total[0])
            M[b, t] = m[0]


@T.prim_func(s_tir=True)
def decayed_mean_and_variance(X: F32, V: F32):
    for b in range(B):
        mean = T.alloc_buffer((1,), "float32")
        var = T.alloc_buffer((1,), "float32")
        mean[0] = T.float32(0)
        var[0] = T.float32(0)
        for t in range(L):
            d: T.let[T.float32] = X[b, t] - mean[0]
            mean[0] = mean[0] + T.float32(0.25) * d
            var[0] = T.float32(0.75) * (var[0] + T.float32(0.25) * d * d)
            V[b, t] = var[0]


@T.prim_func(s_tir=True)
def geometric_mean(X: F32, Y: F32):
    for b in range(B):
        s = T.alloc_buffer((1,), "float32")
        s[0] = T.float32(0)
        for t in range(L):
            s[0] = s[0] + T.log(X[b, t])
            Y[b, t] = T.exp(s[0] / T.Cast("float32", t + 1))


@T.prim_func(s_tir=True)
def steps_since_the_last_event(Event: BOOL, Y: I32):
    for b in range(B):
        n = T.alloc_buffer((1,), "int32")
        n[0] = 0
        for t in range(L):
            n[0] = T.Select(Event[b, t], 0, n[0] + 1)
            Y[b, t] = n[0]


@T.prim_func(s_tir=True)
def last_valid_value(X: F32, Valid: BOOL, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        if Valid[b, t]:
            S[b] = X[b, t]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def sum_within_segments(X: F32, Start: BOOL, Y: F32):
    for b, t in T.grid(B, L):
        Y[b, t] = (
            T.if_then_else(
                Start[b, t], T.float32(0), T.if_then_else(t > 0, Y[b, t - 1], T.float32(0))
            )
            + X[b, t]
        )


@T.prim_func(s_tir=True)
def maximum_within_segments(X: F32, Start: BOOL, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = T.if_then_else(Start[b, t], X[b, t], T.max(S[b], X[b, t]))
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def product_within_segments(X: F32, Start: BOOL, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = T.if_then_else(Start[b, t], X[b, t], S[b] * X[b, t])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def average_within_segments(X: F32, Start: BOOL, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        if Start[b, t]:
            S[b] = X[b, t]
        else:
            S[b] = T.float32(0.5) * S[b] + T.float32(0.5) * X[b, t]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def position_of_the_maximum(X: F32, V: F32, I: I32):
    for b in range(B):
        v = T.alloc_buffer((1,), "float32")
        i = T.alloc_buffer((1,), "int32")
        v[0] = T.float32("-inf")
        i[0] = -1
        for t in range(L):
            if X[b, t] > v[0]:
                v[0] = X[b, t]
                i[0] = t
            V[b, t] = v[0]
            I[b, t] = i[0]


@T.prim_func(s_tir=True)
def position_of_the_last_minimum(X: I32, V: LANE_I32, I: LANE_I32, Y: I32):
    for b, t in T.grid(B, L):
        if X[b, t] <= V[b]:
            I[b] = t
            V[b] = X[b, t]
        Y[b, t] = I[b]


@T.prim_func(s_tir=True)
def log_of_sums_of_exponentials(X: F32, Y: F32):
    for b in range(B):
        h = T.alloc_buffer((1,), "float32")
        m = T.alloc_buffer((1,), "float32")
        h[0] = T.float32("-inf")
        for t in range(L):
            m[0] = T.max(h[0], X[b, t])
            h[0] = m[0] + T.log(T.exp(h[0] - m[0]) + T.exp(X[b, t] - m[0]))
            Y[b, t] = h[0]


@T.prim_func(s_tir=True)
def softmax_denominator(X: F32, Y: F32):
    for b in range(B):
        m = T.alloc_buffer((1,), "float32")
        n = T.alloc_buffer((1,), "float32")
        s = T.alloc_buffer((1,), "float32")
        m[0] = T.float32(-30)
        s[0] = T.float32(0)
        for t in range(L):
            n[0] = T.max(m[0], X[b, t])
            s[0] = s[0] * T.exp(m[0] - n[0]) + T.exp(X[b, t] - n[0])
            m[0] = n[0]
            Y[b, t] = m[0] + T.log(s[0])


@T.prim_func(s_tir=True)
def count_above_a_threshold(X: F32, Threshold: LANE, S: LANE_I32, Y: I32):
    for b, t in T.grid(B, L):
        S[b] = S[b] + T.Cast("int32", X[b, t] > Threshold[b])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def longest_run(X: BOOL, Y: I32):
    for b in range(B):
        run = T.alloc_buffer((1,), "int32")
        best = T.alloc_buffer((1,), "int32")
        run[0] = 0
        best[0] = 0
        for t in range(L):
            run[0] = T.Select(X[b, t], run[0] + 1, 0)
            best[0] = T.max(best[0], run[0])
            Y[b, t] = best[0]


@T.prim_func(s_tir=True)
def histogram_of_four(X: I32, H: buffer("int32", B, L, 4)):
    for b in range(B):
        n = T.alloc_buffer((4,), "int32")
        for i in range(4):
            n[i] = 0
        for t in range(L):
            for i in range(4):
                n[i] = n[i] + T.Select(X[b, t] == i, 1, 0)
                H[b, t, i] = n[i]


PROGRAMS = [
    Program(running_mean, "affine", X_UNIT, rounds=True),
    Program(welford, "affine, reduce add", X_UNIT, rounds=True),
    Program(sums_of_powers, "reduce add, reduce add, reduce add", {"X": (-9, 10)}),
    Program(running_covariance, "affine, affine, reduce add", X_UNIT, rounds=True),
    Program(weighted_mean, "reduce add, affine", {"W": (0.5, 1.0)}, rounds=True),
    Program(decayed_mean_and_variance, "affine, affine", X_UNIT, rounds=True),
    Program(geometric_mean, "reduce add", {"X": (0.5, 2.0)}, rounds=True),
    Program(steps_since_the_last_event, "affine"),
    Program(last_valid_value, "segmented", {"X": (-9, 10)}),
    Program(sum_within_segments, "segmented", {"X": (-9, 10)}),
    Program(maximum_within_segments, "segmented", {"X": (-9, 10)}),
    Program(product_within_segments, "segmented"),
    Program(average_within_segments, "segmented", rounds=True),
    Program(position_of_the_maximum, "reduce max, affine", {"X": (-9, 10)}),
    Program(position_of_the_last_minimum, "reduce min, affine", {"X": (-9, 10)}),
    Program(log_of_sums_of_exponentials, "logsumexp affine", {"X": (-4, 5)}, rounds=True),
    Program(softmax_denominator, "reduce max, affine", {"X": (-4, 5)}, rounds=True),
    Program(count_above_a_threshold, "reduce add"),
    Program(longest_run, "affine, reduce max"),
    Program(histogram_of_four, "reduce add", {"X": (0, 4)}),
]
