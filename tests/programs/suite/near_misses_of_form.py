"""Families that would be taken, in loops that break their order: lags, lanes, aliases, effects."""

from tvm.script import tirx as T

from tests.programs.suite.program import F32, I32, LANE, LANE_I32, LONGER, B, L, Refused, buffer


@T.prim_func(s_tir=True)
def first_step_reads_before_the_start(X: F32, H: F32):
    for b, t in T.grid(B, L):
        H[b, t] = H[b, t - 1] + X[b, t]


@T.prim_func(s_tir=True)
def second_step_reads_before_the_start(X: F32, H: F32):
    for b, t in T.grid(B, L):
        H[b, t] = T.if_then_else(t > 0, H[b, t - 2], T.float32(0)) + X[b, t]


@T.prim_func(s_tir=True)
def guard_on_another_step(X: F32, H: F32):
    for b, t in T.grid(B, L):
        H[b, t] = T.if_then_else(t > 1, H[b, t - 3], T.float32(0)) + X[b, t]


@T.prim_func(s_tir=True)
def next_step(X: F32, H: LONGER):
    for b, t in T.grid(B, L):
        H[b, t] = H[b, t + 1] * T.float32(2) + X[b, t]


@T.prim_func(s_tir=True)
def heap_parent(X: F32, H: LONGER):
    for b, t in T.grid(B, L):
        H[b, t + 1] = H[b, (t + 1) // 2] + X[b, t]


@T.prim_func(s_tir=True)
def lag_from_data(X: F32, Back: I32, H: LONGER):
    for b, t in T.grid(B, L):
        H[b, t + 1] = H[b, Back[b, t]] + X[b, t]


@T.prim_func(s_tir=True)
def always_the_first(X: F32, H: LONGER):
    for b, t in T.grid(B, L):
        H[b, t + 1] = H[b, 0] * X[b, t] + H[b, t]


@T.prim_func(s_tir=True)
def lag_of_six(X: F32, H: buffer("float32", B, L + 6)):
    for b, t in T.grid(B, L):
        H[b, t + 6] = H[b, t] + X[b, t]


@T.prim_func(s_tir=True)
def growing_stride(X: F32, H: buffer("float32", B, L * L)):
    for b, t in T.grid(B, L):
        H[b, t * t] = X[b, t] + T.if_then_else(t > 0, H[b, (t - 1) * (t - 1)], T.float32(0))


@T.prim_func(s_tir=True)
def neighbour_lane(X: F32, H: buffer("float32", B + 1, L + 1)):
    for t, b in T.grid(L, B):
        H[b, t + 1] = H[b + 1, t] + X[b, t]


@T.prim_func(s_tir=True)
def mean_of_neighbours(H: buffer("float32", 9, L + 1)):
    for t, b in T.grid(L, 7):
        H[b + 1, t + 1] = (H[b, t] + H[b + 2, t]) * T.float32(0.5)


@T.prim_func(s_tir=True)
def lanes_of_one_state(X: F32, S: buffer("float32", 1), Y: F32):
    for b, t in T.grid(B, L):
        S[0] = S[0] * T.float32(0.5) + X[b, t]
        Y[b, t] = S[0]


@T.prim_func(s_tir=True)
def overlapping_rows(X: F32, H: buffer("float32", B + L)):
    for b, t in T.grid(B, L):
        H[b + t + 1] = H[b + t] + X[b, t]


@T.prim_func(s_tir=True)
def scattered_state(X: F32, Where: buffer("int32", B), S: LANE):
    for b, t in T.grid(B, L):
        S[Where[b]] = S[Where[b]] + X[b, t]


@T.prim_func(s_tir=True)
def histogram_by_index(X: I32, N: buffer("int32", 4)):
    for t in range(L):
        N[X[0, t]] = N[X[0, t]] + 1


@T.prim_func(s_tir=True)
def write_position_from_the_state(X: I32, S: LANE_I32, Y: buffer("int32", B, L)):
    for b, t in T.grid(B, L):
        Y[b, S[b]] = X[b, t]
        S[b] = T.min(S[b] + X[b, t], L - 1)


@T.prim_func(s_tir=True)
def read_position_from_the_state(X: I32, S: LANE_I32, Y: I32):
    for b, t in T.grid(B, L):
        S[b] = X[b, S[b]]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def two_sweeps_in_one_lane(X: F32, H: LONGER, G: LONGER):
    for b in range(B):
        for t in range(L):
            H[b, t + 1] = H[b, t] + X[b, t]
        for t in range(L):
            G[b, t + 1] = G[b, t] * T.float32(0.5) + H[b, t]


@T.prim_func(s_tir=True)
def window_into_a_matrix(X: F32, M: buffer("float32", B, B)):
    for b, t in T.grid(B, L):
        with T.sblock("scan"):
            vb = T.axis.spatial(B, b)
            vt = T.axis.opaque(L, t)
            row = T.match_buffer(M[vb, 0:1], (1,), strides=("s",), offset_factor=1)
            row[0] = row[0] + X[vb, vt]


@T.prim_func(s_tir=True)
def parameters_may_overlap(X: F32, H: LONGER):
    T.func_attr({"tirx.noalias": False})
    for b, t in T.grid(B, L):
        H[b, t + 1] = H[b, t] + X[b, t]


@T.prim_func(s_tir=True)
def random_numbers(S: LANE):
    for b, _t in T.grid(B, L):
        S[b] = S[b] + T.call_extern("float32", "drand48")


@T.prim_func(s_tir=True)
def prints_every_step(X: F32, S: LANE):
    for b, t in T.grid(B, L):
        S[b] = S[b] + X[b, t]
        T.evaluate(T.call_extern("int32", "putchar", 46))


@T.prim_func(s_tir=True)
def until_it_is_large(X: F32, S: LANE):
    for b, t in T.grid(B, L):
        while S[b] < X[b, t]:
            S[b] = S[b] * T.float32(2)


@T.prim_func(s_tir=True)
def steps_of_a_triangle(X: buffer("float32", L, L), S: buffer("float32", 1)):
    for t in range(L):
        for k in range(t):
            S[0] = S[0] * T.float32(0.5) + X[t, k]


@T.prim_func(s_tir=True)
def length_from_data(X: F32, Length: buffer("int32", B), S: LANE):
    for b in range(B):
        for t in range(Length[b]):
            S[b] = S[b] * T.float32(0.5) + X[b, t]


@T.prim_func(s_tir=True)
def only_a_map(X: F32, Y: F32):
    for b, t in T.grid(B, L):
        Y[b, t] = X[b, t] * T.float32(2) + T.float32(1)


@T.prim_func(s_tir=True)
def only_a_stencil(X: LONGER, Y: F32):
    for b, t in T.grid(B, L):
        Y[b, t] = X[b, t] + X[b, t + 1]


@T.prim_func(s_tir=True)
def matrix_product(
    P: buffer("float32", 4, 5), Q: buffer("float32", 5, 6), C: buffer("float32", 4, 6)
):
    for i, j, k in T.grid(4, 6, 5):
        with T.sblock("product"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + P[vi, vk] * Q[vk, vj]


@T.prim_func(s_tir=True)
def bubble_pass(S: buffer("float32", L)):
    for _t in range(L):
        for i in range(L - 1):
            low: T.let[T.float32] = T.min(S[i], S[i + 1])
            S[i + 1] = T.max(S[i], S[i + 1])
            S[i] = low


@T.prim_func(s_tir=True)
def longest_common_subsequence(Same: buffer("int32", 7, 8), H: buffer("int32", 8, 9)):
    for i, j in T.grid(7, 8):
        H[i + 1, j + 1] = T.Select(Same[i, j] > 0, H[i, j] + 1, T.max(H[i, j + 1], H[i + 1, j]))


REFUSED = [
    Refused(first_step_reads_before_the_start, "no-initial-state", "the first step has no guard"),
    Refused(second_step_reads_before_the_start, "no-initial-state", "the guard is one step short"),
    Refused(guard_on_another_step, "no-initial-state", "lag three, guarded for two"),
    Refused(next_step, "future-read", "a read of what is written later"),
    Refused(heap_parent, "varying-lag", "a lag that grows"),
    Refused(lag_from_data, "varying-lag", "a lag that is an input"),
    Refused(always_the_first, "varying-lag", "a read of the first step"),
    Refused(lag_of_six, "unsupported-lag", "a lag above four"),
    Refused(growing_stride, "varying-lag", "an index quadratic in time"),
    Refused(neighbour_lane, "coupled-carries", "a read of the lane beside"),
    Refused(mean_of_neighbours, "coupled-carries", "a stencil that moves in time"),
    Refused(lanes_of_one_state, "coupled-carries", "one state for all lanes"),
    Refused(overlapping_rows, "varying-lag", "rows that overlap"),
    Refused(scattered_state, "varying-lag", "lanes that an input maps"),
    Refused(histogram_by_index, "varying-lag", "a state whose index is data"),
    Refused(write_position_from_the_state, "varying-lag", "an output whose index is the state"),
    Refused(read_position_from_the_state, "unsupported-step", "an input whose index is the state"),
    Refused(two_sweeps_in_one_lane, "several-time-loops", "two sweeps in one nest"),
    Refused(window_into_a_matrix, "aliasing", "a matched sub-region"),
    Refused(parameters_may_overlap, "aliasing", "parameters that may overlap"),
    Refused(random_numbers, "side-effect", "a generator with hidden state"),
    Refused(prints_every_step, "side-effect", "a call with an effect"),
    Refused(until_it_is_large, "unsupported-body", "a loop until a condition"),
    Refused(steps_of_a_triangle, "coupled-carries", "an inner extent that depends on time"),
    Refused(length_from_data, "unsupported-body", "a length that is data"),
    Refused(only_a_map, "no-recurrence", "independent steps"),
    Refused(only_a_stencil, "no-recurrence", "inputs only are read"),
    Refused(matrix_product, "plain-reduction", "a reduction"),
    Refused(bubble_pass, "coupled-carries", "neighbours exchanged in place"),
    Refused(longest_common_subsequence, "coupled-carries", "three neighbours of a table"),
]
