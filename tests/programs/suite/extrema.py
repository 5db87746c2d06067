"""Running extrema, queues, alignment rows: the semirings (max, +) and (min, +), and clamps."""

from tvm.script import tirx as T

from tests.programs.suite.program import (
    F32,
    I32,
    LANE,
    LANE_I32,
    LONGER,
    LONGER_I32,
    B,
    L,
    Program,
    buffer,
)


@T.prim_func(s_tir=True)
def running_maximum(X: F32, H: F32):
    for b, t in T.grid(B, L):
        H[b, t] = T.max(T.if_then_else(t > 0, H[b, t - 1], T.float32("-inf")), X[b, t])


@T.prim_func(s_tir=True)
def running_minimum_by_branch(X: I32, S: LANE_I32, Y: I32):
    for b, t in T.grid(B, L):
        if X[b, t] < S[b]:
            S[b] = X[b, t]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def running_range(X: F32, Y: F32):
    for b in range(B):
        low = T.alloc_buffer((1,), "float32")
        high = T.alloc_buffer((1,), "float32")
        low[0] = T.float32("inf")
        high[0] = T.float32("-inf")
        for t in range(L):
            low[0] = T.min(low[0], X[b, t])
            high[0] = T.max(X[b, t], high[0])
            Y[b, t] = high[0] - low[0]


@T.prim_func(s_tir=True)
def suffix_maximum(X: I32, H: LONGER_I32):
    for b, t in T.grid(B, L):
        H[b, L - 1 - t] = T.max(H[b, L - t], X[b, L - 1 - t])


@T.prim_func(s_tir=True)
def drawdown(X: F32, Y: F32):
    for b in range(B):
        top = T.alloc_buffer((1,), "float32")
        top[0] = T.float32("-inf")
        for t in range(L):
            top[0] = T.max(top[0], X[b, t])
            Y[b, t] = top[0] - X[b, t]


@T.prim_func(s_tir=True)
def deepest_drawdown(X: F32, Y: F32):
    for b in range(B):
        top = T.alloc_buffer((1,), "float32")
        worst = T.alloc_buffer((1,), "float32")
        top[0] = T.float32("-inf")
        worst[0] = T.float32(0)
        for t in range(L):
            top[0] = T.max(top[0], X[b, t])
            worst[0] = T.max(worst[0], top[0] - X[b, t])
            Y[b, t] = worst[0]


@T.prim_func(s_tir=True)
def maximum_subarray(X: I32, Best: I32):
    for b in range(B):
        here = T.alloc_buffer((1,), "int32")
        best = T.alloc_buffer((1,), "int32")
        here[0] = 0
        best[0] = -1000
        for t in range(L):
            here[0] = T.max(here[0] + X[b, t], X[b, t])
            best[0] = T.max(best[0], here[0])
            Best[b, t] = best[0]


@T.prim_func(s_tir=True)
def waiting_time(Service: F32, Gap: F32, W: LONGER):
    for b, t in T.grid(B, L):
        W[b, t + 1] = T.max(W[b, t] + Service[b, t] - Gap[b, t], T.float32(0))


@T.prim_func(s_tir=True)
def departures(Arrival: F32, Service: F32, D: F32):
    for b, t in T.grid(B, L):
        D[b, t] = (
            T.max(T.if_then_else(t > 0, D[b, t - 1], T.float32(0)), Arrival[b, t]) + Service[b, t]
        )


@T.prim_func(s_tir=True)
def tandem_queue(Arrival: F32, First: F32, Second: F32, D: F32):
    for b in range(B):
        one = T.alloc_buffer((1,), "float32")
        two = T.alloc_buffer((1,), "float32")
        one[0] = T.float32(0)
        two[0] = T.float32(0)
        for t in range(L):
            one[0] = T.max(one[0], Arrival[b, t]) + First[b, t]
            two[0] = T.max(two[0], one[0]) + Second[b, t]
            D[b, t] = two[0]


@T.prim_func(s_tir=True)
def token_bucket(Spent: I32, Rate: LANE_I32, Size: LANE_I32, S: LANE_I32, Y: I32):
    for b, t in T.grid(B, L):
        S[b] = T.min(S[b] + Rate[b], Size[b]) - Spent[b, t]
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def reservoir(Inflow: F32, Capacity: LANE, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = T.min(T.max(S[b] + Inflow[b, t], T.float32(0)), Capacity[b])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def branch_predictor(Taken: I32, S: LANE_I32, Y: I32):
    for b, t in T.grid(B, L):
        Y[b, t] = T.Select(S[b] > 1, 1, 0)
        if Taken[b, t] > 0:
            S[b] = T.min(S[b] + 1, 3)
        else:
            S[b] = T.max(S[b] - 1, 0)


@T.prim_func(s_tir=True)
def decaying_peak(X: F32, Fall: LANE, H: F32):
    for b, t in T.grid(B, L):
        H[b, t] = T.max(T.if_then_else(t > 0, H[b, t - 1], T.float32(0)) - Fall[b], X[b, t])


@T.prim_func(s_tir=True)
def shortest_path_along_a_line(Edge: I32, Entry: I32, H: LONGER_I32):
    for b, t in T.grid(B, L):
        H[b, t + 1] = T.min(H[b, t] + Edge[b, t], Entry[b, t])


@T.prim_func(s_tir=True)
def gap_row_of_an_alignment(Match: I32, H: I32):
    for b, t in T.grid(B, L):
        H[b, t] = T.max(T.max(T.if_then_else(t > 0, H[b, t - 1], 0) - 2, Match[b, t]), 0)


@T.prim_func(s_tir=True)
def edit_distance_row(Above: I32, Different: I32, H: LONGER_I32):
    for b in range(B):
        H[b, 0] = 7
        for t in range(1, L):
            H[b, t] = T.min(
                T.min(Above[b, t - 1] + Different[b, t], Above[b, t] + 1), H[b, t - 1] + 1
            )


@T.prim_func(s_tir=True)
def rectified_sum(X: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = T.max(S[b] + X[b, t], T.float32(0))
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def control_chart(X: F32, Upper: F32, Lower: F32):
    for b in range(B):
        up = T.alloc_buffer((1,), "float32")
        down = T.alloc_buffer((1,), "float32")
        up[0] = T.float32(0)
        down[0] = T.float32(0)
        for t in range(L):
            up[0] = T.max(up[0] + X[b, t] - T.float32(0.5), T.float32(0))
            down[0] = T.min(down[0] + X[b, t] + T.float32(0.5), T.float32(0))
            Upper[b, t] = up[0]
            Lower[b, t] = down[0]


@T.prim_func(s_tir=True)
def bound_that_changes(X: F32, Low: F32, High: F32, H: F32):
    for b, t in T.grid(B, L):
        H[b, t] = T.max(
            T.min(T.if_then_else(t > 0, H[b, t - 1], T.float32(1)) + X[b, t], High[b, t]), Low[b, t]
        )


@T.prim_func(s_tir=True)
def largest_of_three(X: F32, Y: F32, S: LANE, Z: F32):
    for b, t in T.grid(B, L):
        S[b] = T.max(T.max(X[b, t], S[b]), Y[b, t])
        Z[b, t] = S[b]


@T.prim_func(s_tir=True)
def maximum_every_other_step(X: I32, S: LANE_I32, Y: I32):
    for b, t in T.grid(B, L):
        if t % 2 == 1:
            S[b] = T.max(S[b], X[b, t])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def highest_prefix_sum(X: I32, Y: I32):
    for b in range(B):
        total = T.alloc_buffer((1,), "int32")
        top = T.alloc_buffer((1,), "int32")
        total[0] = 0
        top[0] = 0
        for t in range(L):
            total[0] = total[0] + X[b, t]
            top[0] = T.max(top[0], total[0])
            Y[b, t] = top[0]


@T.prim_func(s_tir=True)
def decaying_floor(X: F32, A: F32, S: LANE, Y: F32):
    for b, t in T.grid(B, L):
        S[b] = T.max(A[b, t] * S[b], X[b, t])
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def independent_recurrent_network(U: LANE, X: F32, Y: F32):
    for b in range(B):
        h = T.alloc_buffer((1,), "float32")
        for t in range(L):
            if t == 0:
                h[0] = T.float32(0)
            h[0] = T.max(U[b] * h[0] + X[b, t], T.float32(0))
            Y[b, t] = h[0]


@T.prim_func(s_tir=True)
def maximum_two_steps_back(X: F32, H: buffer("float32", B, L + 2)):
    for b, t in T.grid(B, L):
        H[b, t + 2] = T.max(H[b, t], X[b, t])


PROGRAMS = [
    Program(running_maximum, "reduce max", {"X": (-9, 10)}),
    Program(running_minimum_by_branch, "reduce min", {"X": (-9, 10)}),
    Program(running_range, "reduce min, reduce max", {"X": (-9, 10)}),
    Program(suffix_maximum, "reduce max", {"X": (-9, 10)}),
    Program(drawdown, "reduce max", {"X": (-9, 10)}),
    Program(deepest_drawdown, "reduce max, reduce max", {"X": (-9, 10)}),
    Program(maximum_subarray, "clamp, reduce max", {"X": (-9, 10)}),
    Program(waiting_time, "clamp", {"Service": (0, 5), "Gap": (0, 5)}),
    Program(departures, "clamp", {"Arrival": (0, 90), "Service": (0, 9)}),
    Program(tandem_queue, "clamp, clamp", {"Arrival": (0, 90), "First": (0, 9), "Second": (0, 9)}),
    Program(token_bucket, "clamp", {"Spent": (0, 5), "Rate": (0, 5), "Size": (5, 9)}),
    Program(reservoir, "clamp", {"Inflow": (-9, 10), "Capacity": (4, 9)}),
    Program(branch_predictor, "clamp", {"Taken": (0, 2), "S": (0, 4)}),
    Program(decaying_peak, "clamp", {"X": (-9, 10), "Fall": (0, 3)}),
    Program(shortest_path_along_a_line, "clamp", {"Edge": (0, 5), "Entry": (0, 50)}),
    Program(gap_row_of_an_alignment, "clamp", {"Match": (-5, 9)}),
    Program(edit_distance_row, "clamp", {"Above": (0, 9), "Different": (0, 2)}),
    Program(rectified_sum, "clamp", {"X": (-9, 10)}),
    Program(control_chart, "clamp, clamp", {"X": (-3, 4)}),
    Program(bound_that_changes, "clamp", {"X": (-3, 4), "Low": (-5, 1), "High": (0, 6)}),
    Program(largest_of_three, "clamp", {"X": (-9, 10), "Y": (-9, 10)}),
    Program(maximum_every_other_step, "clamp", {"X": (-9, 10)}),
    Program(highest_prefix_sum, "reduce add, reduce max", {"X": (-9, 10)}),
    Program(decaying_floor, "bounded affine", {"X": (-9, 10), "A": (-1, 2)}),
    Program(independent_recurrent_network, "bounded affine", {"U": (-1, 2), "X": (-9, 10)}),
    Program(maximum_two_steps_back, "interleaved", {"X": (-9, 10)}),
]
