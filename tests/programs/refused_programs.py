"""Loops that must be refused, one minimal program for each reason."""

from tvm.script import tirx as T

from tvm_scan import RefusalKind as Kind


@T.prim_func(s_tir=True)
def sine(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    for b, t in T.grid(5, 8):
        S[b] = T.sin(S[b]) + X[b, t]


@T.prim_func(s_tir=True)
def square(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    for b, t in T.grid(5, 8):
        S[b] = S[b] * S[b] + X[b, t]


@T.prim_func(s_tir=True)
def reciprocal(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    for b, t in T.grid(5, 8):
        S[b] = X[b, t] / (S[b] * S[b] + T.float32(1))


@T.prim_func(s_tir=True)
def rounded(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    for b, t in T.grid(5, 8):
        S[b] = T.Cast("float32", T.Cast("int32", S[b])) + X[b, t]


@T.prim_func(s_tir=True)
def integer_division(X: T.Buffer((5, 8), "int32"), S: T.Buffer((5,), "int32")):
    for b, t in T.grid(5, 8):
        S[b] = S[b] // 2 + X[b, t]


@T.prim_func(s_tir=True)
def unsigned_subtraction(X: T.Buffer((5, 8), "uint32"), S: T.Buffer((5,), "uint32")):
    for b, t in T.grid(5, 8):
        S[b] = S[b] - X[b, t]


@T.prim_func(s_tir=True)
def gate_on_the_carry(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    for b, t in T.grid(5, 8):
        S[b] = T.if_then_else(S[b] > T.float32(0), S[b] * T.float32(2), S[b]) + X[b, t]


@T.prim_func(s_tir=True)
def branch_on_the_carry(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    for b, t in T.grid(5, 8):
        if S[b] > X[b, t]:
            S[b] = S[b] - X[b, t]


@T.prim_func(s_tir=True)
def moving_bound(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    for b, t in T.grid(5, 8):
        S[b] = T.min(T.max(S[b] + X[b, t], T.float32(0)), S[b] * T.float32(2))


@T.prim_func(s_tir=True)
def almost_a_max(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    for b, t in T.grid(5, 8):
        S[b] = T.Select(S[b] > X[b, t], S[b], X[b, t] + T.float32(1))


@T.prim_func(s_tir=True)
def future(X: T.Buffer((5, 9), "float32"), H: T.Buffer((5, 9), "float32")):
    for b, t in T.grid(5, 8):
        H[b, t] = H[b, t + 1] + X[b, t]


@T.prim_func(s_tir=True)
def lag_five(X: T.Buffer((5, 8), "float32"), H: T.Buffer((5, 13), "float32")):
    for b, t in T.grid(5, 8):
        H[b, t + 5] = H[b, t] + X[b, t]


@T.prim_func(s_tir=True)
def lags_multiplied(X: T.Buffer((5, 8), "float32"), H: T.Buffer((5, 10), "float32")):
    for b, t in T.grid(5, 8):
        H[b, t + 2] = H[b, t] * H[b, t + 1]


@T.prim_func(s_tir=True)
def half_index(X: T.Buffer((5, 8), "float32"), H: T.Buffer((5, 9), "float32")):
    for b, t in T.grid(5, 8):
        H[b, t + 1] = H[b, t // 2] + X[b, t]


@T.prim_func(s_tir=True)
def alternating_lag(X: T.Buffer((5, 8), "float32"), H: T.Buffer((5, 10), "float32")):
    for b, t in T.grid(5, 8):
        H[b, t + 2] = H[b, t + 1 - t % 2] + X[b, t]


@T.prim_func(s_tir=True)
def gathered_lag(I: T.Buffer((8,), "int32"), H: T.Buffer((5, 9), "float32")):
    for b, t in T.grid(5, 8):
        H[b, t + 1] = H[b, I[t]] + T.float32(1)


@T.prim_func(s_tir=True)
def first_step_again(H: T.Buffer((5, 9), "float32")):
    for b, t in T.grid(5, 8):
        H[b, t + 1] = H[b, t] + H[b, 0]


@T.prim_func(s_tir=True)
def neighbour_lane(X: T.Buffer((5, 8), "float32"), H: T.Buffer((6, 9), "float32")):
    for t, b in T.grid(8, 5):
        H[b, t + 1] = H[b + 1, t] + X[b, t]


@T.prim_func(s_tir=True)
def shared_cell(X: T.Buffer((4, 8), "float32"), S: T.Buffer((2, 8), "float32")):
    for b, t in T.grid(4, 8):
        S[b // 2, t] = T.if_then_else(t > 0, S[b // 2, t - 1], T.float32(0)) + X[b, t]


@T.prim_func(s_tir=True)
def lanes_that_meet(X: T.Buffer((4, 8), "float32"), H: T.Buffer((4, 8), "float32")):
    for b, c, t in T.grid(3, 2, 8):
        H[b + c, t] = T.if_then_else(t > 0, H[b + c, t - 1], T.float32(0)) + X[b, t]


@T.prim_func(s_tir=True)
def emit_on_a_diagonal(
    X: T.Buffer((4, 8), "float32"), S: T.Buffer((4,), "float32"), Y: T.Buffer((12,), "float32")
):
    for b, t in T.grid(4, 8):
        S[b] = S[b] + X[b, t]
        Y[b + t] = S[b]


@T.prim_func(s_tir=True)
def two_in_a_circle(
    X: T.Buffer((5, 8), "float32"), P: T.Buffer((5,), "float32"), Q: T.Buffer((5,), "float32")
):
    for b, t in T.grid(5, 8):
        P[b] = P[b] * Q[b] + X[b, t]
        Q[b] = Q[b] + P[b]


@T.prim_func(s_tir=True)
def dense_transition(
    A: T.Buffer((6, 6), "float32"), X: T.Buffer((8, 6), "float32"), S: T.Buffer((6,), "float32")
):
    new = T.alloc_buffer((6,), "float32")
    for t in range(8):
        for i in range(6):
            new[i] = X[t, i]
            for j in range(6):
                new[i] = new[i] + A[i, j] * S[j]
        for i in range(6):
            S[i] = new[i]


@T.prim_func(s_tir=True)
def delta_rule(
    K: T.Buffer((8, 8), "float32"),
    V: T.Buffer((8, 8), "float32"),
    S: T.Buffer((8, 8), "float32"),
    Y: T.Buffer((8, 8), "float32"),
):
    kv = T.alloc_buffer((8,), "float32")
    for t in range(8):
        for j in range(8):
            kv[j] = T.float32(0)
            for i in range(8):
                kv[j] = kv[j] + K[t, i] * S[i, j]
        for i, j in T.grid(8, 8):
            S[i, j] = S[i, j] + K[t, i] * (V[t, j] - kv[j])
        for j in range(8):
            Y[t, j] = kv[j]


@T.prim_func(s_tir=True)
def two_time_loops(
    X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32"), R: T.Buffer((5,), "float32")
):
    for b in range(5):
        for t in range(8):
            S[b] = S[b] + X[b, t]
        for t in range(8):
            R[b] = R[b] * X[b, t]


@T.prim_func(s_tir=True)
def unguarded_start(X: T.Buffer((5, 8), "float32"), H: T.Buffer((5, 8), "float32")):
    for b, t in T.grid(5, 8):
        H[b, t] = H[b, t - 1] + X[b, t]


@T.prim_func(s_tir=True)
def matched_region(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    for b, t in T.grid(5, 8):
        with T.sblock("scan"):
            vb = T.axis.spatial(5, b)
            vt = T.axis.scan(8, t)
            T.reads(X[vb, vt], S[vb])
            T.writes(S[vb])
            V = T.match_buffer(S[vb], (), offset_factor=1)
            V[()] = V[()] + X[vb, vt]


@T.prim_func(s_tir=True)
def may_overlap(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    T.func_attr({"tirx.noalias": False})
    for b, t in T.grid(5, 8):
        S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def external_call(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    for b, t in T.grid(5, 8):
        S[b] = S[b] + T.call_extern("float32", "rand", X[b, t])


@T.prim_func(s_tir=True)
def evaluated_call(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    for b, t in T.grid(5, 8):
        T.evaluate(T.call_extern("int32", "puts", 0))
        S[b] = S[b] + X[b, t]


@T.prim_func(s_tir=True)
def while_loop(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    for b, t in T.grid(5, 8):
        while S[b] < X[b, t]:
            S[b] = S[b] + T.float32(1)


@T.prim_func(s_tir=True)
def accumulated_input(X: T.Buffer((5, 8, 6), "float32"), S: T.Buffer((5,), "float32")):
    acc = T.alloc_buffer((1,), "float32")
    for b, t in T.grid(5, 8):
        acc[0] = T.float32(0)
        for k in range(6):
            acc[0] = acc[0] + X[b, t, k]
        S[b] = S[b] * T.float32(2) + acc[0]


@T.prim_func(s_tir=True)
def plain_map(X: T.Buffer((5, 8), "float32"), Y: T.Buffer((5, 8), "float32")):
    for b, t in T.grid(5, 8):
        Y[b, t] = X[b, t] * T.float32(2)


@T.prim_func(s_tir=True)
def reduction(X: T.Buffer((5, 8), "float32"), Y: T.Buffer((5,), "float32")):
    for b, k in T.grid(5, 8):
        with T.sblock("sum"):
            vb, vk = T.axis.remap("SR", [b, k])
            with T.init():
                Y[vb] = T.float32(0)
            Y[vb] = Y[vb] + X[vb, vk]


@T.prim_func(s_tir=True)
def convolution(
    X: T.Buffer((2, 3, 9), "float32"),
    W: T.Buffer((4, 3, 3), "float32"),
    Y: T.Buffer((2, 4, 7), "float32"),
):
    for n, f, x, c, k in T.grid(2, 4, 7, 3, 3):
        with T.sblock("sums"):
            vn, vf, vx, vc, vk = T.axis.remap("SSSRR", [n, f, x, c, k])
            with T.init():
                Y[vn, vf, vx] = T.float32(0)
            Y[vn, vf, vx] = Y[vn, vf, vx] + X[vn, vc, vx + vk] * W[vf, vc, vk]


@T.prim_func(s_tir=True)
def tiled_reduction(X: T.Buffer((5, 8), "float32"), Y: T.Buffer((5,), "float32")):
    for k, b, j in T.grid(2, 5, 4):
        with T.sblock("sum"):
            vb = T.axis.spatial(5, b)
            vk = T.axis.reduce(8, k * 4 + j)
            with T.init():
                Y[vb] = T.float32(0)
            Y[vb] = Y[vb] + X[vb, vk]


@T.prim_func(s_tir=True)
def place_of_the_largest(
    X: T.Buffer((2, 5, 8), "float32"), V: T.Buffer((2,), "float32"), P: T.Buffer((2,), "int32")
):
    for b, i, j in T.grid(2, 5, 8):
        with T.sblock("argmax"):
            vb, vi, vj = T.axis.remap("SRR", [b, i, j])
            with T.init():
                V[vb] = T.float32(-1e30)
                P[vb] = 0
            larger: T.let[T.bool] = X[vb, vi, vj] > V[vb]
            P[vb] = T.Select(larger, vi * 8 + vj, P[vb])
            V[vb] = T.Select(larger, X[vb, vi, vj], V[vb])


@T.prim_func(s_tir=True)
def triangular(X: T.Buffer((8, 8), "float32"), S: T.Buffer((1,), "float32")):
    for t in range(8):
        for k in range(t):
            S[0] = S[0] + X[t, k]


@T.prim_func(s_tir=True)
def set_at_the_second_step(X: T.Buffer((5, 8), "float32"), Y: T.Buffer((5, 8), "float32")):
    s = T.sblock_alloc_buffer((1,), "float32")
    for b, t in T.grid(5, 8):
        if t == 1:
            s[0] = T.float32(0)
        s[0] = s[0] + X[b, t]
        Y[b, t] = s[0]


@T.prim_func(s_tir=True)
def set_after_it_is_read(X: T.Buffer((5, 8), "float32"), Y: T.Buffer((5, 8), "float32")):
    s = T.sblock_alloc_buffer((1,), "float32")
    for b, t in T.grid(5, 8):
        s[0] = s[0] + X[b, t]
        if t == 0:
            s[0] = T.float32(0)
        Y[b, t] = s[0]


@T.prim_func(s_tir=True)
def bound_on_both_sides(X: T.Buffer((5, 8), "float32"), S: T.Buffer((5,), "float32")):
    for b, t in T.grid(5, 8):
        S[b] = T.max(S[b] + X[b, t], S[b] * T.float32(0.99))


@T.prim_func(s_tir=True)
def unsigned_floor(X: T.Buffer((5, 8), "uint32"), S: T.Buffer((5,), "uint32")):
    for b, t in T.grid(5, 8):
        S[b] = T.max(S[b] - X[b, t], T.uint32(3))


#: name -> (function, kind, text of the message, what the carets stand under or None)
REFUSED = {
    "sine": (sine, Kind.UNSUPPORTED_STEP, r"tirx\.sin of the carry", "T.sin(S[b])"),
    "square": (
        square,
        Kind.UNSUPPORTED_STEP,
        "multiplied by a value that depends on it",
        "S[b] * S[b]",
    ),
    "reciprocal": (reciprocal, Kind.UNSUPPORTED_STEP, "divides by a value that depends", "/"),
    "rounded": (rounded, Kind.UNSUPPORTED_STEP, "Cast of the carry", "T.Cast"),
    "integer_division": (integer_division, Kind.UNSUPPORTED_STEP, "FloorDiv of the carry", "//"),
    "unsigned_subtraction": (
        unsigned_subtraction,
        Kind.UNSUPPORTED_STEP,
        "unsigned subtraction",
        "S[b] - X[b, t]",
    ),
    "unsigned_floor": (
        unsigned_floor,
        Kind.UNSUPPORTED_STEP,
        "may wrap in uint32 before it is bounded",
        "S[b] - X[b, t]",
    ),
    "bound_on_both_sides": (bound_on_both_sides, Kind.UNSUPPORTED_STEP, "Max of", "T.max"),
    "set_at_the_second_step": (set_at_the_second_step, Kind.COUPLED_CARRIES, "sum over", None),
    "set_after_it_is_read": (set_after_it_is_read, Kind.COUPLED_CARRIES, "sum over", None),
    "gate_on_the_carry": (
        gate_on_the_carry,
        Kind.UNSUPPORTED_STEP,
        "condition on the carry",
        "if_then_else",
    ),
    "branch_on_the_carry": (
        branch_on_the_carry,
        Kind.UNSUPPORTED_STEP,
        "condition on the carry",
        None,
    ),
    "moving_bound": (moving_bound, Kind.UNSUPPORTED_STEP, "Min of the carry", "T.min"),
    "almost_a_max": (
        almost_a_max,
        Kind.UNSUPPORTED_STEP,
        "condition on the carry",
        "T.Select",
    ),
    "future": (future, Kind.FUTURE_READ, r"found a read of step t\+1", "H[b, t + 1]"),
    "lag_five": (lag_five, Kind.UNSUPPORTED_LAG, "found lag 5", "H[b, t]"),
    "lags_multiplied": (lags_multiplied, Kind.COUPLED_CARRIES, "product of two carries", None),
    "half_index": (half_index, Kind.VARYING_LAG, "fixed distance", None),
    "alternating_lag": (alternating_lag, Kind.VARYING_LAG, "fixed distance|constant lag", None),
    "gathered_lag": (gathered_lag, Kind.VARYING_LAG, "fixed distance", None),
    "first_step_again": (first_step_again, Kind.VARYING_LAG, "fixed distance", None),
    "neighbour_lane": (neighbour_lane, Kind.COUPLED_CARRIES, "another cell of, the state", None),
    "shared_cell": (shared_cell, Kind.VARYING_LAG, r"found b // 2", None),
    "lanes_that_meet": (lanes_that_meet, Kind.CROSS_LANE, "not provably one-to-one", "H[b + c, t]"),
    "emit_on_a_diagonal": (emit_on_a_diagonal, Kind.CROSS_LANE, "not provably one-to-one", None),
    "two_in_a_circle": (
        two_in_a_circle,
        Kind.COUPLED_CARRIES,
        "product of two carries",
        None,
    ),
    "dense_transition": (dense_transition, Kind.COUPLED_CARRIES, "sum over, or another cell", None),
    "delta_rule": (delta_rule, Kind.COUPLED_CARRIES, "sum over, or another cell", None),
    "two_time_loops": (two_time_loops, Kind.SEVERAL_TIME_LOOPS, "found 2 side by side", None),
    "unguarded_start": (
        unguarded_start,
        Kind.NO_INITIAL_STATE,
        "not provably inside the buffer",
        None,
    ),
    "matched_region": (matched_region, Kind.ALIASING, "found a match_buffer", None),
    "may_overlap": (may_overlap, Kind.ALIASING, "noalias set to False", None),
    "external_call": (
        external_call,
        Kind.SIDE_EFFECT,
        r"found the call tirx\.call_extern",
        "call_extern",
    ),
    "evaluated_call": (evaluated_call, Kind.SIDE_EFFECT, "evaluated call", "call_extern"),
    "while_loop": (while_loop, Kind.UNSUPPORTED_BODY, "found While", None),
    "accumulated_input": (accumulated_input, Kind.UNSUPPORTED_BODY, "inner loop accumulates", None),
    "plain_map": (plain_map, Kind.NO_RECURRENCE, "found independent iterations", None),
    "reduction": (reduction, Kind.REDUCTION, "found the reduction over k", None),
    "convolution": (convolution, Kind.REDUCTION, "found the reduction over c", None),
    "tiled_reduction": (tiled_reduction, Kind.REDUCTION, "found the reduction over k", None),
    "place_of_the_largest": (
        place_of_the_largest,
        Kind.REDUCTION,
        "found the reduction over i",
        None,
    ),
    "triangular": (triangular, Kind.COUPLED_CARRIES, "sum over", None),
}
