"""Loops that look like a supported recurrence and are none, or look like none and are one.

Each hides its dependence where a careless analysis does not look: in a transposed read, in a
partial loop, in a binding, in the order of statements around the time loop.
"""

from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def transposed_state(X: T.Buffer((17, 3), "float32"), S: T.Buffer((3, 3), "float32")):
    new = T.alloc_buffer((3, 3), "float32")
    for t in range(17):
        for i, j in T.grid(3, 3):
            new[i, j] = S[j, i] + X[t, i]
        for i, j in T.grid(3, 3):
            S[i, j] = new[i, j]


@T.prim_func(s_tir=True)
def transposed_through_scratch(X: T.Buffer((17, 3), "float32"), S: T.Buffer((3, 3), "float32")):
    new = T.alloc_buffer((3, 3), "float32")
    for t in range(17):
        for i, j in T.grid(3, 3):
            new[j, i] = S[i, j] + X[t, i]
        for i, j in T.grid(3, 3):
            S[i, j] = new[i, j]


@T.prim_func(s_tir=True)
def swapped_in_place(X: T.Buffer((17, 3), "float32"), S: T.Buffer((3, 3), "float32")):
    for t in range(17):
        for i, j in T.grid(3, 3):
            S[i, j] = S[j, i] + X[t, i]


@T.prim_func(s_tir=True)
def diagonal_only(
    X: T.Buffer((17, 3), "float32"), S: T.Buffer((3, 3), "float32"), Y: T.Buffer((17,), "float32")
):
    for t in range(17):
        for i in range(3):
            S[i, i] = S[i, i] + X[t, i]
        Y[t] = S[0, 1] + S[1, 1]


@T.prim_func(s_tir=True)
def condition_on_the_state_axis(
    X: T.Buffer((17, 4), "float32"), S: T.Buffer((5, 4), "float32"), Y: T.Buffer((5, 17), "float32")
):
    for b, t in T.grid(5, 17):
        for n in range(4):
            if n > 1:
                S[b, n] = S[b, n] + X[t, n]
        Y[b, t] = S[b, 0] + S[b, 3]


@T.prim_func(s_tir=True)
def two_conditions_on_the_state_axis(
    X: T.Buffer((17, 4), "float32"), S: T.Buffer((5, 4), "float32")
):
    for b, t in T.grid(5, 17):
        for n in range(4):
            if n < 2:
                S[b, n] = S[b, n] + X[t, n]
            else:
                S[b, n] = X[t, n] - S[b, n]


@T.prim_func(s_tir=True)
def half_of_the_state(X: T.Buffer((17, 4), "float32"), S: T.Buffer((5, 4), "float32")):
    for b, t in T.grid(5, 17):
        for n in range(2):
            S[b, n] = S[b, n] + X[t, n]
        for n in range(2):
            S[b, n + 2] = S[b, n + 2] - X[t, n]


@T.prim_func(s_tir=True)
def shifted_state(X: T.Buffer((17,), "float32"), S: T.Buffer((5, 4), "float32")):
    for b, t in T.grid(5, 17):
        for n in range(3):
            S[b, 3 - n] = S[b, 2 - n]
        S[b, 0] = X[t]


@T.prim_func(s_tir=True)
def read_ahead_of_the_loop(
    X: T.Buffer((17, 4), "float32"), S: T.Buffer((5,), "float32"), Y: T.Buffer((5, 17), "float32")
):
    h = T.alloc_buffer((5, 4), "float32")
    for b in range(5):
        for n in range(4):
            h[b, n] = T.float32(0)
        for t in range(17):
            S[b] = S[b] + X[t, 0]
            Y[b, t] = S[b]
            for n in range(4):
                h[b, n] = X[t, n]
                Y[b, t] = Y[b, t] + h[b, 3 - n]


@T.prim_func(s_tir=True)
def scratch_kept_between_steps(
    X: T.Buffer((17, 4), "float32"), S: T.Buffer((5,), "float32"), Y: T.Buffer((5, 17), "float32")
):
    h = T.alloc_buffer((4,), "float32")
    for n in range(4):
        h[n] = T.float32(0)
    for t in range(17):
        for b in range(5):
            S[b] = S[b] + X[t, 0]
            Y[b, t] = S[b]
        for n in range(4):
            h[n] = X[t, n]
            for b in range(5):
                Y[b, t] = Y[b, t] + h[3 - n]


@T.prim_func(s_tir=True)
def history_scratch_in_two_loops(X: T.Buffer((17, 4), "float32"), S: T.Buffer((5, 4), "float32")):
    G = T.alloc_buffer((5, 17, 4), "float32")
    for b, t in T.grid(5, 17):
        for m, k in T.grid(2, 2):
            G[b, t, m * 2 + k] = X[t, m * 2 + k]
        for n in range(4):
            S[b, n] = S[b, n] + G[b, t, n]


@T.prim_func(s_tir=True)
def history_scratch_accumulated(
    X: T.Buffer((17, 4), "float32"),
    G: T.Buffer((5, 17, 2), "float32"),
    S: T.Buffer((5,), "float32"),
):
    for b, t in T.grid(5, 17):
        G[b, t, 0] = T.float32(0)
        for n in range(4):
            G[b, t, 1] = G[b, t, 1] + X[t, n]
        S[b] = S[b] + G[b, t, 1]


@T.prim_func(s_tir=True)
def set_in_every_other_iteration(X: T.Buffer((17, 4), "float32"), S: T.Buffer((5, 4), "float32")):
    z = T.alloc_buffer((1,), "float32")
    for b, t in T.grid(5, 17):
        for n in range(4):
            if n % 2 == 0:
                z[0] = X[t, n]
            S[b, n] = S[b, n] + z[0]


@T.prim_func(s_tir=True)
def time_through_a_binding(X: T.Buffer((5, 17), "float32"), H: T.Buffer((5, 17), "float32")):
    for b in range(5):
        for t in range(17):
            k: T.let[T.int32] = t
            H[b, k] = H[b, k] + X[b, t]


@T.prim_func(s_tir=True)
def lag_through_a_binding(X: T.Buffer((5, 17), "float32"), H: T.Buffer((5, 18), "float32")):
    for b in range(5):
        for t in range(17):
            k: T.let[T.int32] = t + 1
            H[b, k] = H[b, k - 1] + X[b, t]


@T.prim_func(s_tir=True)
def gathered_through_a_binding(
    X: T.Buffer((5, 17), "float32"), I: T.Buffer((17,), "int32"), S: T.Buffer((5, 3), "float32")
):
    for b in range(5):
        for t in range(17):
            k: T.let[T.int32] = I[t]
            S[b, k] = S[b, k] + X[b, t]


@T.prim_func(s_tir=True)
def gathered_lane(
    X: T.Buffer((5, 17), "float32"), I: T.Buffer((5,), "int32"), S: T.Buffer((5,), "float32")
):
    for b in range(5):
        k: T.let[T.int32] = I[b]
        for t in range(17):
            S[k] = S[k] + X[b, t]


@T.prim_func(s_tir=True)
def binding_before_time(
    A: T.Buffer((5,), "float32"), X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32")
):
    for b in range(5):
        a: T.let[T.float32] = A[b] * T.float32(2) - T.float32(1)
        for t in range(17):
            S[b] = S[b] * a + X[b, t]


@T.prim_func(s_tir=True)
def binding_of_the_first_state(
    X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32"), Y: T.Buffer((5, 17), "float32")
):
    for b in range(5):
        first: T.let[T.float32] = S[b]
        for t in range(17):
            S[b] = S[b] + X[b, t]
            Y[b, t] = S[b] - first


@T.prim_func(s_tir=True)
def state_cast_to_an_index(
    X: T.Buffer((5, 17), "int32"),
    W: T.Buffer((256,), "int32"),
    S: T.Buffer((5,), "int32"),
    Y: T.Buffer((5, 17), "int32"),
):
    for b in range(5):
        for t in range(17):
            S[b] = S[b] + X[b, t]
            Y[b, t] = W[S[b] + 128]


@T.prim_func(s_tir=True)
def scattered_by_the_state(
    X: T.Buffer((5, 17), "int32"), S: T.Buffer((5,), "int32"), Y: T.Buffer((5, 300), "int32")
):
    for b in range(5):
        for t in range(17):
            S[b] = S[b] + X[b, t]
            Y[b, S[b] + 150] = t


@T.prim_func(s_tir=True)
def lanes_that_overlap_in_time(X: T.Buffer((5, 17), "float32"), H: T.Buffer((80,), "float32")):
    for b, t in T.grid(5, 17):
        H[b * 10 + t] = T.if_then_else(t > 0, H[b * 10 + t - 1], T.float32(0)) + X[b, t]


@T.prim_func(s_tir=True)
def flat_history(X: T.Buffer((85,), "float32"), H: T.Buffer((85,), "float32")):
    for b, t in T.grid(5, 17):
        H[b * 17 + t] = T.if_then_else(t > 0, H[b * 17 + t - 1], T.float32(0)) + X[b * 17 + t]


@T.prim_func(s_tir=True)
def flat_history_of_touching_lanes(X: T.Buffer((85,), "float32"), H: T.Buffer((86,), "float32")):
    for b, t in T.grid(5, 17):
        H[b * 17 + t + 1] = H[b * 17 + t] + X[b * 17 + t]


@T.prim_func(s_tir=True)
def flat_history_backwards(X: T.Buffer((85,), "float32"), H: T.Buffer((85,), "float32")):
    for b, t in T.grid(5, 17):
        H[b * 17 + 16 - t] = (
            T.if_then_else(t > 0, H[b * 17 + 17 - t], T.float32(0)) + X[b * 17 + 16 - t]
        )


@T.prim_func(s_tir=True)
def time_inside_of_lanes_in_memory(X: T.Buffer((85,), "float32"), H: T.Buffer((85,), "float32")):
    for b, t in T.grid(5, 17):
        H[t * 5 + b] = T.if_then_else(t > 0, H[t * 5 + b - 5], T.float32(0)) + X[b * 17 + t]


@T.prim_func(s_tir=True)
def state_set_and_time_tested(X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32")):
    for b in range(5):
        S[b] = T.float32(7)
        for t in range(17):
            S[b] = T.if_then_else(t > 0, S[b], T.float32(0)) + X[b, t]


@T.prim_func(s_tir=True)
def history_set_and_time_tested(X: T.Buffer((5, 17), "float32"), H: T.Buffer((5, 18), "float32")):
    for b in range(5):
        H[b, 0] = T.float32(7)
        for t in range(17):
            H[b, t + 1] = T.if_then_else(t > 0, H[b, t], T.float32(0)) + X[b, t]


@T.prim_func(s_tir=True)
def initial_state_in_two_steps(
    X: T.Buffer((5, 17), "float32"), H0: T.Buffer((5,), "float32"), H: T.Buffer((5, 18), "float32")
):
    for b in range(5):
        H[b, 0] = T.float32(1)
        H[b, 0] = H[b, 0] + H0[b]
        for t in range(17):
            H[b, t + 1] = H[b, t] + X[b, t]


@T.prim_func(s_tir=True)
def initial_state_of_a_reused_scratch(
    A: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32"), Y: T.Buffer((5, 17), "float32")
):
    tmp = T.alloc_buffer((1,), "float32")
    for b in range(5):
        tmp[0] = T.float32(1)
        S[b] = tmp[0]
        tmp[0] = T.float32(2)
        for t in range(17):
            S[b] = S[b] * A[b, t] + tmp[0]
            Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def initial_state_of_a_scratch(
    A: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32"), Y: T.Buffer((5, 17), "float32")
):
    tmp = T.alloc_buffer((1,), "float32")
    for b in range(5):
        tmp[0] = T.float32(1)
        S[b] = tmp[0]
        for t in range(17):
            S[b] = S[b] * A[b, t] + tmp[0]
            Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def partly_set_state(X: T.Buffer((5, 17, 4), "float32"), S: T.Buffer((5, 4), "float32")):
    for b in range(5):
        for n in range(4):
            if n > 1:
                S[b, n] = T.float32(0)
        for t in range(17):
            for n in range(4):
                S[b, n] = S[b, n] + X[b, t, n]


@T.prim_func(s_tir=True)
def set_only_at_the_corners(X: T.Buffer((5, 17, 4), "float32"), S: T.Buffer((5, 4), "float32")):
    for b in range(5):
        for m, _k in T.grid(2, 2):
            S[b, m * 3] = T.float32(0)
        for t in range(17):
            for n in range(4):
                S[b, n] = S[b, n] + X[b, t, n]


@T.prim_func(s_tir=True)
def history_set_at_the_corners(
    X: T.Buffer((5, 17, 4), "float32"),
    Z: T.Buffer((5,), "float32"),
    H: T.Buffer((5, 18, 4), "float32"),
):
    for b in range(5):
        for m, _k in T.grid(2, 2):
            H[b, 0, m * 3] = T.float32(0)
        for t in range(17):
            for n in range(4):
                H[b, t + 1, n] = H[b, t, n] + X[b, t, n]
            Z[b] = H[b, t, 1] + H[b, t, 3]


@T.prim_func(s_tir=True)
def set_under_a_condition_in_a_loop(
    X: T.Buffer((5, 17, 4), "float32"),
    S: T.Buffer((5, 4), "float32"),
    Y: T.Buffer((5, 17), "float32"),
):
    for b in range(5):
        for n in range(4):
            if n > 1:
                S[b, n] = T.float32(0)
        for t in range(17):
            Y[b, t] = T.float32(0)
            for n in range(4):
                S[b, n] = S[b, n] + X[b, t, n]
                Y[b, t] = Y[b, t] + S[b, n]


@T.prim_func(s_tir=True)
def set_on_the_diagonal(
    X: T.Buffer((17, 3), "float32"), S: T.Buffer((3, 3), "float32"), Y: T.Buffer((17,), "float32")
):
    for i in range(3):
        S[i, i] = T.float32(0)
    for t in range(17):
        Y[t] = T.float32(0)
        for i, j in T.grid(3, 3):
            S[i, j] = S[i, j] + X[t, i]
            Y[t] = Y[t] + S[i, j]


@T.prim_func(s_tir=True)
def partly_set_lanes(X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32")):
    for b in range(5):
        if b > 2:
            S[b] = T.float32(0)
        for t in range(17):
            S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def state_read_before_time(
    X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32"), Y0: T.Buffer((5,), "float32")
):
    for b in range(5):
        Y0[b] = S[b]
        for t in range(17):
            S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def last_of_a_history(
    X: T.Buffer((5, 17), "float32"),
    H: T.Buffer((5, 18), "float32"),
    Last: T.Buffer((5,), "float32"),
):
    for b in range(5):
        for t in range(17):
            H[b, t + 1] = H[b, t] + X[b, t]
        Last[b] = H[b, 17] * T.float32(2)


@T.prim_func(s_tir=True)
def more_than_the_last(
    X: T.Buffer((5, 17), "float32"),
    H: T.Buffer((5, 18), "float32"),
    Last: T.Buffer((5,), "float32"),
):
    for b in range(5):
        for t in range(17):
            H[b, t + 1] = H[b, t] + X[b, t]
        Last[b] = H[b, 17] + H[b, 16]


@T.prim_func(s_tir=True)
def lengths_from_memory(
    X: T.Buffer((5, 17), "float32"), N: T.Buffer((5,), "int32"), S: T.Buffer((5,), "float32")
):
    for b in range(5):
        for t in range(N[b] + 4):
            S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def triangle_of_lane_and_time(X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32")):
    for b in range(5):
        for t in range(b + 3):
            S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def triangle_of_time_and_lane(X: T.Buffer((5, 17), "float32"), S: T.Buffer((17,), "float32")):
    for t in range(17):
        for d in range(t + 1):
            S[d] = S[d] + X[0, t]


@T.prim_func(s_tir=True)
def triangle_of_lanes(X: T.Buffer((5, 17), "float32"), S: T.Buffer((5, 5), "float32")):
    for b in range(5):
        for c in range(b + 1):
            for t in range(17):
                S[b, c] = S[b, c] + X[b, t]


@T.prim_func(s_tir=True)
def masked_lanes(
    X: T.Buffer((5, 17), "float32"), M: T.Buffer((5,), "int32"), S: T.Buffer((5,), "float32")
):
    for b in range(5):
        if M[b] > 0:
            for t in range(17):
                S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def guarded_lanes_of_a_size(X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32")):
    for b in range(8):
        if b < 5:
            for t in range(17):
                S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def guarded_time(X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32")):
    for b in range(5):
        for t in range(20):
            with T.sblock("scan"):
                vb = T.axis.spatial(5, b)
                vt = T.axis.opaque(17, t)
                T.where(t < 17)
                T.reads(X[vb, vt], S[vb])
                T.writes(S[vb])
                S[vb] = S[vb] * T.float32(-1) + X[vb, vt]


@T.prim_func(s_tir=True)
def guarded_by_the_state(X: T.Buffer((5, 17), "int32"), S: T.Buffer((5,), "int32")):
    for b in range(5):
        for t in range(17):
            if S[b] < 5:
                S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def input_read_ahead(X: T.Buffer((5, 18), "float32"), S: T.Buffer((5,), "float32")):
    for b in range(5):
        for t in range(17):
            S[b] = S[b] + X[b, t + 1]
            X[b, t] = S[b]


@T.prim_func(s_tir=True)
def input_read_at_its_step(X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32")):
    for b in range(5):
        for t in range(17):
            S[b] = S[b] + X[b, t]
            X[b, t] = S[b]


@T.prim_func(s_tir=True)
def input_read_in_the_mirror(X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32")):
    for b in range(5):
        for t in range(17):
            S[b] = S[b] + X[b, 16 - t]
            X[b, t] = S[b]


@T.prim_func(s_tir=True)
def history_stored_in_branches(
    A: T.Buffer((5, 17), "float32"),
    X: T.Buffer((5, 17), "float32"),
    H: T.Buffer((5, 18), "float32"),
):
    for b in range(5):
        for t in range(17):
            if X[b, t] > T.float32(0):
                H[b, t + 1] = H[b, t] + X[b, t]
            else:
                H[b, t + 1] = H[b, t] * A[b, t]


@T.prim_func(s_tir=True)
def history_not_always_stored(X: T.Buffer((5, 17), "float32"), H: T.Buffer((5, 18), "float32")):
    for b in range(5):
        for t in range(17):
            if X[b, t] > T.float32(0):
                H[b, t + 1] = H[b, t] + X[b, t]


@T.prim_func(s_tir=True)
def state_used_by_the_next_nest(X: T.Buffer((5, 17), "float32"), Y: T.Buffer((5,), "float32")):
    S = T.alloc_buffer((5,), "float32")
    for b in range(5):
        with T.sblock("init"):
            vb = T.axis.spatial(5, b)
            S[vb] = T.float32(1)
    for b, t in T.grid(5, 17):
        with T.sblock("scan"):
            vb = T.axis.spatial(5, b)
            vt = T.axis.opaque(17, t)
            S[vb] = S[vb] + X[vb, vt]
    for b in range(5):
        with T.sblock("use"):
            vb = T.axis.spatial(5, b)
            Y[vb] = S[vb] * T.float32(2)


@T.prim_func(s_tir=True)
def time_only_in_a_guard(
    X: T.Buffer((5,), "float32"), S: T.Buffer((5,), "float32"), Y: T.Buffer((5, 17), "float32")
):
    for b in range(5):
        for t in range(17):
            if t % 3 == 1:
                S[b] = S[b] + X[b]
            Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def parallel_time(X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32")):
    for b in range(5):
        for t in T.parallel(17):
            S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def thread_bound_time(X: T.Buffer((5, 16), "float32"), S: T.Buffer((5,), "float32")):
    for b in T.thread_binding(5, thread="blockIdx.x"):
        for t in T.thread_binding(16, thread="threadIdx.x"):
            S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def extent_of_the_state(
    X: T.Buffer((5, 17), "int32"), S: T.Buffer((5,), "int32"), Y: T.Buffer((5, 17), "int32")
):
    for b in range(5):
        for t in range(17):
            S[b] = S[b] + X[b, t]
            Y[b, t] = 0
            for _k in range(T.max(S[b], 0)):
                Y[b, t] = Y[b, t] + 1


@T.prim_func(s_tir=True)
def half_with_a_binding(
    X: T.Buffer((5, 17), "float16"), S: T.Buffer((5,), "float16"), Y: T.Buffer((5, 17), "float16")
):
    for b in range(5):
        for t in range(17):
            z: T.let[T.float16] = X[b, t] * T.float16(2)
            S[b] = S[b] + z
            Y[b, t] = S[b] - z


@T.prim_func(s_tir=True)
def half_read_through_an_index(
    X: T.Buffer((5, 17), "float16"),
    W: T.Buffer((64,), "float16"),
    S: T.Buffer((5,), "float16"),
    C: T.Buffer((5,), "int32"),
    Y: T.Buffer((5, 17), "float16"),
):
    for b in range(5):
        for t in range(17):
            C[b] = C[b] + 1
            S[b] = S[b] + X[b, t]
            Y[b, t] = S[b] + W[C[b] + 20]


@T.prim_func(s_tir=True)
def bits_of_a_half(X: T.Buffer((5, 17), "float16"), S: T.Buffer((5,), "float16")):
    for b in range(5):
        for t in range(17):
            S[b] = S[b] + T.Cast(
                "float16", T.bitwise_and(T.reinterpret("uint16", X[b, t]), T.uint16(1))
            )


@T.prim_func(s_tir=True)
def vector_store(X: T.Buffer((17, 4), "float32"), S: T.Buffer((4,), "float32")):
    for t in range(17):
        S[T.ramp(0, 1, 4)] = S[T.ramp(0, 1, 4)] + X[t, T.ramp(0, 1, 4)]


@T.prim_func(s_tir=True)
def vectorized_lanes(X: T.Buffer((17, 4), "float32"), S: T.Buffer((4,), "float32")):
    for t in range(17):
        for d in T.vectorized(4):
            S[d] = S[d] + X[t, d]


@T.prim_func(s_tir=True)
def atomic(
    X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32"), C: T.Buffer((1,), "int32")
):
    for b in range(5):
        for _t in range(17):
            S[b] = S[b] + X[b, T.call_extern("int32", "next", 0)]


@T.prim_func(s_tir=True)
def call_in_an_index(X: T.Buffer((5, 17), "float32"), S: T.Buffer((5, 2), "float32")):
    for b in range(5):
        for t in range(17):
            S[b, T.call_extern("int32", "next", 0)] = X[b, t]


@T.prim_func(s_tir=True)
def wavefront(X: T.Buffer((6, 18), "float32"), H: T.Buffer((6, 18), "float32")):
    for i, j in T.grid(5, 17):
        H[i + 1, j + 1] = H[i, j + 1] + H[i + 1, j] + X[i, j]


@T.prim_func(s_tir=True)
def antidiagonal(X: T.Buffer((6, 18), "float32"), H: T.Buffer((7, 18), "float32")):
    for i, j in T.grid(5, 17):
        H[i + 1, j + 1] = H[i, j] + X[i, j]


@T.prim_func(s_tir=True)
def mixed_index_types(
    X: T.Buffer((T.int64(5), 17), "float32"), S: T.Buffer((T.int64(5),), "float32")
):
    for b in T.serial(T.int64(5)):
        for t in range(17):
            S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def later_initial_value(X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32")):
    for b in range(5):
        for t in range(17):
            S[b] = T.if_then_else(t > 1, S[b], T.float32(3)) + X[b, t]


@T.prim_func(s_tir=True)
def initial_value_of_a_lane_buffer(
    X: T.Buffer((5, 17), "float32"),
    H0: T.Buffer((5, 17), "float32"),
    H: T.Buffer((5, 17), "float32"),
):
    for b in range(5):
        for t in range(17):
            H[b, t] = T.if_then_else(t > 0, H[b, t - 1], H0[b, t + 2]) + X[b, t]


@T.prim_func(s_tir=True)
def written_twice_per_step(X: T.Buffer((5, 17), "float32"), H: T.Buffer((5, 36), "float32")):
    for b in range(5):
        for t in range(17):
            H[b, t * 2 + 1] = H[b, t * 2] + X[b, t]
            H[b, t * 2 + 2] = H[b, t * 2 + 1] * T.float32(-1)


@T.prim_func(s_tir=True)
def reset_at_lane_changes(X: T.Buffer((85,), "float32"), H: T.Buffer((85,), "float32")):
    for i in range(85):
        H[i] = T.if_then_else(i % 17 != 0, H[i - 1], T.float32(0)) + X[i]


@T.prim_func(s_tir=True)
def two_histories_one_feeds_later_output(
    A: T.Buffer((5, 17), "float32"),
    X: T.Buffer((5, 17), "float32"),
    P: T.Buffer((5, 18), "float32"),
    Q: T.Buffer((5, 18), "float32"),
    Y: T.Buffer((5, 17), "float32"),
):
    for b in range(5):
        for t in range(17):
            Y[b, t] = P[b, t] + Q[b, t]
            P[b, t + 1] = P[b, t] * A[b, t]
            Q[b, t + 1] = Q[b, t] + X[b, t]


@T.prim_func(s_tir=True)
def copy_of_the_state(
    X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32"), R: T.Buffer((5,), "float32")
):
    for b in range(5):
        for t in range(17):
            R[b] = S[b]
            S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def ping_pong(
    X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32"), R: T.Buffer((5,), "float32")
):
    for b in range(5):
        for t in range(17):
            R[b] = S[b] + X[b, t]
            S[b] = R[b]


@T.prim_func(s_tir=True)
def swap(S: T.Buffer((5,), "float32"), R: T.Buffer((5,), "float32")):
    tmp = T.alloc_buffer((5,), "float32")
    for b in range(5):
        for _t in range(17):
            tmp[b] = S[b]
            S[b] = R[b]
            R[b] = tmp[b]


@T.prim_func(s_tir=True)
def scratch_set_in_one_step_only(X: T.Buffer((5, 17), "float32"), S: T.Buffer((5,), "float32")):
    tmp = T.alloc_buffer((1,), "float32")
    for b in range(5):
        for t in range(17):
            if t == 0:
                tmp[0] = X[b, t]
            S[b] = S[b] + tmp[0]


PROGRAMS = {k: v for k, v in list(globals().items()) if hasattr(v, "params")}
