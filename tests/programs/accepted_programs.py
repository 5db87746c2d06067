"""Loops in every form of the design that must be taken; each as small as its form allows.

Inputs are small integers, so that any order of the arithmetic is exact.
"""

from tvm.script import tirx as T

B, L = 5, 37


@T.prim_func(s_tir=True)
def history_guarded(
    A: T.Buffer((5, 37), "float32"),
    X: T.Buffer((5, 37), "float32"),
    H: T.Buffer((5, 37), "float32"),
):
    for b, t in T.grid(5, 37):
        with T.sblock("scan"):
            vb = T.axis.spatial(5, b)
            vt = T.axis.scan(37, t)
            T.reads(A[vb, vt], X[vb, vt], H[vb, vt - 1])
            T.writes(H[vb, vt])
            H[vb, vt] = T.if_then_else(vt > 0, H[vb, vt - 1], T.float32(3)) * A[vb, vt] + X[vb, vt]


@T.prim_func(s_tir=True)
def history_select(
    A: T.Buffer((5, 37), "float32"),
    X: T.Buffer((5, 37), "float32"),
    H: T.Buffer((6, 38), "float32"),
):
    for b, t in T.grid(5, 37):
        with T.sblock("scan"):
            vb = T.axis.spatial(5, b)
            vt = T.axis.opaque(37, t)
            T.reads(A[vb, vt], X[vb, vt], H[vb, vt])
            T.writes(H[vb, vt + 1])
            H[vb, vt + 1] = T.Select(vt == 0, T.float32(2), H[vb, vt]) * A[vb, vt] - X[vb, vt]


@T.prim_func(s_tir=True)
def plain_loops(
    A: T.Buffer((5, 37), "float32"),
    X: T.Buffer((5, 37), "float32"),
    H: T.Buffer((5, 37), "float32"),
):
    for b in range(5):
        for t in range(37):
            H[b, t] = A[b, t] * T.if_then_else(t > 0, H[b, t - 1], T.float32(0)) + X[b, t]


@T.prim_func(s_tir=True)
def statement_guard(
    A: T.Buffer((5, 37), "float32"),
    X: T.Buffer((5, 37), "float32"),
    H: T.Buffer((5, 37), "float32"),
):
    for b in range(5):
        for t in range(37):
            if t == 0:
                H[b, t] = X[b, t] * T.float32(2)
            else:
                H[b, t] = A[b, t] * H[b, t - 1] + X[b, t]


@T.prim_func(s_tir=True)
def longer_history(
    A: T.Buffer((5, 37), "float32"), H0: T.Buffer((5,), "float32"), H: T.Buffer((5, 38), "float32")
):
    for b in range(5):
        H[b, 0] = H0[b]
        for t in range(37):
            H[b, t + 1] = H[b, t] * A[b, t] + T.float32(1)


@T.prim_func(s_tir=True)
def longer_history_given(A: T.Buffer((5, 37), "float32"), H: T.Buffer((5, 38), "float32")):
    for b in range(5):
        for t in range(37):
            H[b, t + 1] = A[b, t] + H[b, t]


@T.prim_func(s_tir=True)
def separate_init_block(
    X: T.Buffer((5, 37), "float32"), S: T.Buffer((5,), "float32"), Y: T.Buffer((5, 37), "float32")
):
    for b in range(5):
        with T.sblock("init"):
            vb = T.axis.spatial(5, b)
            S[vb] = T.float32(4)
    for b, t in T.grid(5, 37):
        with T.sblock("scan"):
            vb = T.axis.spatial(5, b)
            vt = T.axis.scan(37, t)
            S[vb] = S[vb] + X[vb, vt]
            Y[vb, vt] = S[vb]


@T.prim_func(s_tir=True)
def in_place_given_state(
    A: T.Buffer((5, 37), "float32"),
    X: T.Buffer((5, 37), "float32"),
    S: T.Buffer((5,), "float32"),
    Y: T.Buffer((5, 37), "float32"),
):
    for b in range(5):
        for t in range(37):
            Y[b, t] = S[b] * T.float32(2)
            S[b] = A[b, t] * S[b] + X[b, t]


@T.prim_func(s_tir=True)
def state_only(A: T.Buffer((5, 37), "float32"), S: T.Buffer((5,), "float32")):
    for b in range(5):
        for t in range(37):
            S[b] = S[b] * A[b, t]


@T.prim_func(s_tir=True)
def local_state_and_epilogue(
    X: T.Buffer((5, 37), "float32"),
    Y: T.Buffer((5, 37), "float32"),
    Last: T.Buffer((5,), "float32"),
):
    h = T.alloc_buffer((1,), "float32", scope="local")
    for b in range(5):
        h[0] = T.float32(1)
        for t in range(37):
            h[0] = h[0] + X[b, t]
            Y[b, t] = h[0] - X[b, t]
        Last[b] = h[0] * T.float32(3)


@T.prim_func(s_tir=True)
def time_outside(
    A: T.Buffer((37, 5), "float32"),
    X: T.Buffer((37, 5), "float32"),
    H: T.Buffer((37, 5), "float32"),
):
    for t, d in T.grid(37, 5):
        H[t, d] = A[t, d] * T.if_then_else(t > 0, H[t - 1, d], T.float32(0)) + X[t, d]


@T.prim_func(s_tir=True)
def time_in_the_middle(X: T.Buffer((2, 37, 3), "float32"), H: T.Buffer((2, 37, 3), "float32")):
    for b, t, d in T.grid(2, 37, 3):
        H[b, t, d] = T.if_then_else(t > 0, H[b, t - 1, d], T.float32(0)) + X[b, t, d]


@T.prim_func(s_tir=True)
def sibling_lane_loops(
    A: T.Buffer((37, 5), "float32"), S: T.Buffer((5,), "float32"), Y: T.Buffer((37, 5), "float32")
):
    for t in range(37):
        for d in range(5):
            S[d] = S[d] * A[t, d] + T.float32(1)
        for e in range(5):
            Y[t, e] = S[e] + T.float32(2)


@T.prim_func(s_tir=True)
def backwards(
    A: T.Buffer((5, 37), "float32"),
    X: T.Buffer((5, 37), "float32"),
    H: T.Buffer((5, 37), "float32"),
):
    for b, t in T.grid(5, 37):
        H[b, 36 - t] = (
            A[b, 36 - t] * T.if_then_else(t > 0, H[b, 37 - t], T.float32(0)) + X[b, 36 - t]
        )


@T.prim_func(s_tir=True)
def in_place_input(X: T.Buffer((5, 37), "float32")):
    for b in range(5):
        for t in range(1, 37):
            X[b, t] = X[b, t - 1] + X[b, t]


@T.prim_func(s_tir=True)
def let_and_conditional(
    A: T.Buffer((5, 37), "float32"),
    X: T.Buffer((5, 37), "float32"),
    S: T.Buffer((5,), "float32"),
    Y: T.Buffer((5, 37), "float32"),
):
    for b in range(5):
        for t in range(37):
            z: T.let[T.float32] = X[b, t] * T.float32(2)
            before: T.let[T.float32] = S[b]
            if X[b, t] > T.float32(0):
                S[b] = S[b] * A[b, t] + z
            Y[b, t] = before


@T.prim_func(s_tir=True)
def several_stores(
    A: T.Buffer((5, 37), "float32"),
    X: T.Buffer((5, 37), "float32"),
    S: T.Buffer((5,), "float32"),
    Y: T.Buffer((5, 37), "float32"),
):
    for b in range(5):
        for t in range(37):
            S[b] = S[b] * A[b, t]
            S[b] = X[b, t] - S[b]
            Y[b, t] = S[b]
            Y[b, t] = Y[b, t] + X[b, t]


@T.prim_func(s_tir=True)
def two_independent_carries(
    A: T.Buffer((5, 37), "float32"),
    X: T.Buffer((5, 37), "float32"),
    S: T.Buffer((5, 2), "float32"),
    Y: T.Buffer((5, 37), "float32"),
):
    for b in range(5):
        for t in range(37):
            S[b, 0] = S[b, 0] * A[b, t] + X[b, t]
            S[b, 1] = T.max(S[b, 1], X[b, t])
            Y[b, t] = S[b, 0] + S[b, 1]


@T.prim_func(s_tir=True)
def state_axis_contracted(
    A: T.Buffer((5, 37), "float32"),
    Bm: T.Buffer((37, 4), "float32"),
    C: T.Buffer((37, 4), "float32"),
    Y: T.Buffer((5, 37), "float32"),
):
    h = T.alloc_buffer((5, 4), "float32")
    for b in range(5):
        for n in range(4):
            h[b, n] = T.float32(0)
        for t in range(37):
            Y[b, t] = T.float32(0)
            for n in range(4):
                h[b, n] = A[b, t] * h[b, n] + Bm[t, n]
                Y[b, t] = Y[b, t] + h[b, n] * C[t, n]


@T.prim_func(s_tir=True)
def thread_bound(X: T.Buffer((5, 37), "float32"), H: T.Buffer((5, 37), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(4, thread="threadIdx.x"):
            for t in range(37):
                with T.sblock("scan"):
                    vb = T.axis.spatial(5, bx * 4 + tx)
                    vt = T.axis.opaque(37, t)
                    T.where(bx * 4 + tx < 5)
                    T.reads(X[vb, vt], H[vb, vt - 1])
                    T.writes(H[vb, vt])
                    H[vb, vt] = T.if_then_else(vt > 0, H[vb, vt - 1], T.float32(0)) + X[vb, vt]


@T.prim_func(s_tir=True)
def one_block(X: T.Buffer((5, 37), "float32"), H: T.Buffer((5, 37), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for _bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(8, thread="threadIdx.x"):
            for t in range(37):
                with T.sblock("scan"):
                    vb = T.axis.spatial(5, tx)
                    vt = T.axis.opaque(37, t)
                    T.where(tx < 5)
                    T.reads(X[vb, vt], H[vb, vt - 1])
                    T.writes(H[vb, vt])
                    H[vb, vt] = T.if_then_else(vt > 0, H[vb, vt - 1], T.float32(0)) + X[vb, vt]


@T.prim_func(s_tir=True)
def fused_lane_index(X: T.Buffer((6, 37), "float32"), H: T.Buffer((6, 37), "float32")):
    for b, c, t in T.grid(3, 2, 37):
        H[b * 2 + c, t] = T.if_then_else(t > 0, H[b * 2 + c, t - 1], T.float32(0)) + X[b * 2 + c, t]


@T.prim_func(s_tir=True)
def xor_int(
    X: T.Buffer((5, 37), "int32"), S: T.Buffer((5,), "int32"), Y: T.Buffer((5, 37), "int32")
):
    for b in range(5):
        for t in range(37):
            S[b] = T.bitwise_xor(S[b], X[b, t])
            Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def and_or_int(X: T.Buffer((5, 37), "int64"), S: T.Buffer((5, 2), "int64")):
    for b in range(5):
        for t in range(37):
            S[b, 0] = T.bitwise_and(X[b, t] + T.int64(7), S[b, 0])
            S[b, 1] = T.bitwise_or(S[b, 1], X[b, t])


@T.prim_func(s_tir=True)
def affine_wraps(
    X: T.Buffer((5, 37), "uint32"), S: T.Buffer((5,), "uint32"), Y: T.Buffer((5, 37), "uint32")
):
    # Unsigned: TVM's LLVM code takes signed overflow for undefined, in the loop as in the scan.
    for b in range(5):
        for t in range(37):
            S[b] = S[b] * T.uint32(1103515245) + X[b, t] * T.uint32(12345)
            Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def max_by_select(
    X: T.Buffer((5, 37), "int32"), S: T.Buffer((5,), "int32"), Y: T.Buffer((5, 37), "int32")
):
    for b in range(5):
        for t in range(37):
            S[b] = T.Select(S[b] > X[b, t], S[b], X[b, t])
            Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def min_of_products(
    X: T.Buffer((5, 37), "float32"), S: T.Buffer((5,), "float32"), Y: T.Buffer((5, 37), "float32")
):
    for b in range(5):
        for t in range(37):
            S[b] = T.min(X[b, t] * X[b, t] - T.float32(5), S[b])
            Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def collected_terms(
    A: T.Buffer((5, 37), "float32"), S: T.Buffer((5,), "float32"), Y: T.Buffer((5, 37), "float32")
):
    for b in range(5):
        for t in range(37):
            S[b] = S[b] * A[b, t] - (S[b] - T.float32(2)) * T.float32(2) + S[b]
            Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def delay(
    X: T.Buffer((5, 37), "float32"), S: T.Buffer((5,), "float32"), Y: T.Buffer((5, 37), "float32")
):
    for b in range(5):
        for t in range(37):
            Y[b, t] = S[b]
            S[b] = X[b, t]


@T.prim_func(s_tir=True)
def half_carries(X: T.Buffer((5, 37), "float16"), H: T.Buffer((5, 37), "float16")):
    for b in range(5):
        for t in range(37):
            H[b, t] = T.if_then_else(t > 0, H[b, t - 1], T.float16(0)) + X[b, t]


@T.prim_func(s_tir=True)
def no_lanes(
    A: T.Buffer((37,), "float32"), X: T.Buffer((37,), "float32"), H: T.Buffer((37,), "float32")
):
    for t in range(37):
        H[t] = A[t] * T.if_then_else(t > 0, H[t - 1], T.float32(1)) + X[t]


@T.prim_func(s_tir=True)
def strided_time(X: T.Buffer((5, 80), "float32"), H: T.Buffer((5, 80), "float32")):
    for b, t in T.grid(5, 37):
        H[b, t * 2 + 1] = T.if_then_else(t > 0, H[b, t * 2 - 1], T.float32(0)) + X[b, 79 - t]


@T.prim_func(s_tir=True)
def reset_by_data(
    X: T.Buffer((5, 37), "float32"),
    R: T.Buffer((5, 37), "int32"),
    S: T.Buffer((5,), "float32"),
    Y: T.Buffer((5, 37), "float32"),
):
    for b in range(5):
        for t in range(37):
            S[b] = T.if_then_else(R[b, t] > 0, X[b, t], S[b] + X[b, t])
            Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def symbolic(x: T.handle, h: T.handle):
    rows = T.int64()
    length = T.int64()
    X = T.match_buffer(x, (rows, length), "float32")
    H = T.match_buffer(h, (rows, length), "float32")
    for b, t in T.grid(rows, length):
        with T.sblock("scan"):
            vb = T.axis.spatial(rows, b)
            vt = T.axis.scan(length, t)
            T.reads(X[vb, vt], H[vb, vt - T.int64(1)])
            T.writes(H[vb, vt])
            H[vb, vt] = (
                T.if_then_else(vt > T.int64(0), H[vb, vt - T.int64(1)], T.float32(0)) + X[vb, vt]
            )


@T.prim_func(s_tir=True)
def history_of_a_reduction_axis(X: T.Buffer((5, 37), "float32"), H: T.Buffer((5, 37), "float32")):
    for b, t in T.grid(5, 37):
        with T.sblock("sum"):
            vb, vt = T.axis.remap("SR", [b, t])
            H[vb, vt] = T.if_then_else(vt > 0, H[vb, vt - 1], T.float32(0)) + X[vb, vt]


@T.prim_func(s_tir=True)
def emit_of_a_reduction_axis(
    X: T.Buffer((5, 37), "float32"), S: T.Buffer((5,), "float32"), Y: T.Buffer((5, 37), "float32")
):
    for b, t in T.grid(5, 37):
        with T.sblock("sum"):
            vb, vt = T.axis.remap("SR", [b, t])
            with T.init():
                S[vb] = T.float32(2)
            S[vb] = S[vb] + X[vb, vt]
            Y[vb, vt] = S[vb]


@T.prim_func(s_tir=True)
def two_sweeps_of_one_buffer(X: T.Buffer((5, 37), "float32"), H: T.Buffer((5, 37), "float32")):
    for b, t in T.grid(5, 37):
        H[b, t] = T.if_then_else(t > 0, H[b, t - 1], T.float32(0)) + X[b, t]
    for b, t in T.grid(5, 36):
        H[b, 35 - t] = H[b, 36 - t] + H[b, 35 - t]


@T.prim_func(s_tir=True)
def beside_what_has_no_lanes(
    X: T.Buffer((5, 37), "float32"), H: T.Buffer((5, 37), "float32"), Y: T.Buffer((2,), "float32")
):
    for b, t in T.grid(5, 37):
        with T.sblock("sum"):
            vb, vt = T.axis.remap("RR", [b, t])
            with T.init():
                Y[0] = T.float32(0)
            Y[0] = Y[0] + X[vb, vt]
    for b, t in T.grid(5, 37):
        H[b, t] = T.if_then_else(t > 0, H[b, t - 1], T.float32(0)) + X[b, t]
    for b, t in T.grid(5, 37):
        Y[1] = T.max(Y[1] * Y[1], H[b, t] + T.float32(1)) - H[b, t]


@T.prim_func(s_tir=True)
def set_at_the_first_step(
    A: T.Buffer((5, 37), "float32"),
    X: T.Buffer((5, 37), "float32"),
    Y: T.Buffer((5, 37), "float32"),
):
    for b in range(5):
        s = T.sblock_alloc_buffer((1,), "float32")
        n = T.sblock_alloc_buffer((1,), "int32")
        for t in range(37):
            if t == 0:
                s[0] = T.float32(3)
                n[0] = 0
            s[0] = s[0] * A[b, t] + X[b, t]
            n[0] = n[0] + 2
            Y[b, t] = s[0] + T.Cast("float32", n[0])


@T.prim_func(s_tir=True)
def first_step_apart(X: T.Buffer((5, 37), "float32"), Y: T.Buffer((5, 37), "float32")):
    for b in range(5):
        s = T.sblock_alloc_buffer((1,), "float32")
        for t in range(37):
            if t < 1:
                s[0] = X[b, 3]
            else:
                s[0] = T.max(s[0], X[b, t])
            Y[b, t] = s[0]


@T.prim_func(s_tir=True)
def cells_set_at_the_first_step(X: T.Buffer((5, 37), "float32"), Y: T.Buffer((5, 37), "float32")):
    for b in range(5):
        s = T.sblock_alloc_buffer((4,), "float32")
        for t in range(37):
            for j in range(4):
                if t == 0:
                    s[j] = T.float32(1)
                s[j] = s[j] + X[b, t] * T.Cast("float32", j)
            Y[b, t] = s[0] + s[3]


@T.prim_func(s_tir=True)
def bicyclic(
    R: T.Buffer((5, 37), "int32"),
    S: T.Buffer((5, 37), "int32"),
    P: T.Buffer((5, 37), "int32"),
    Q: T.Buffer((5, 37), "int32"),
):
    for b in range(5):
        p = T.sblock_alloc_buffer((1,), "int32")
        q = T.sblock_alloc_buffer((1,), "int32")
        p[0] = 0
        q[0] = 0
        for t in range(37):
            met: T.let[T.int32] = T.min(q[0], R[b, t])
            p[0] = p[0] + R[b, t] - met
            q[0] = S[b, t] + q[0] - met
            P[b, t] = p[0]
            Q[b, t] = q[0]


@T.prim_func(s_tir=True)
def emitted_under_a_condition(X: T.Buffer((5, 37), "float32"), H: T.Buffer((5, 37), "float32")):
    """No step reads H, of which some cells stay as they were."""
    for b in range(5):
        s = T.sblock_alloc_buffer((1,), "float32")
        s[0] = T.float32(0)
        for t in range(37):
            s[0] = s[0] + X[b, t]
            if X[b, t] > T.float32(0):
                H[b, t] = s[0]


#: name -> (function, families of its carries, lanes, time)
PROGRAMS = {
    "history_guarded": (history_guarded, ["affine"], "b", "t"),
    "history_select": (history_select, ["affine"], "b", "t"),
    "plain_loops": (plain_loops, ["affine"], "b", "t"),
    "statement_guard": (statement_guard, ["affine"], "b", "t"),
    "longer_history": (longer_history, ["affine"], "b", "t"),
    "longer_history_given": (longer_history_given, ["reduce add"], "b", "t"),
    "separate_init_block": (separate_init_block, ["reduce add"], "b", "t"),
    "in_place_given_state": (in_place_given_state, ["affine"], "b", "t"),
    "state_only": (state_only, ["reduce mul"], "b", "t"),
    "local_state_and_epilogue": (local_state_and_epilogue, ["reduce add"], "b", "t"),
    "time_outside": (time_outside, ["affine"], "d", "t"),
    "time_in_the_middle": (time_in_the_middle, ["reduce add"], "bd", "t"),
    "sibling_lane_loops": (sibling_lane_loops, ["affine"], "d", "t"),
    "backwards": (backwards, ["affine"], "b", "t"),
    "in_place_input": (in_place_input, ["reduce add"], "b", "t"),
    "let_and_conditional": (let_and_conditional, ["affine"], "b", "t"),
    "several_stores": (several_stores, ["affine"], "b", "t"),
    "two_independent_carries": (two_independent_carries, ["affine", "reduce max"], "b", "t"),
    "state_axis_contracted": (state_axis_contracted, ["affine"], "b", "t"),
    "thread_bound": (thread_bound, ["reduce add"], ("bx", "tx"), "t"),
    "one_block": (one_block, ["reduce add"], ("tx",), "t"),
    "fused_lane_index": (fused_lane_index, ["reduce add"], "bc", "t"),
    "xor_int": (xor_int, ["reduce xor"], "b", "t"),
    "and_or_int": (and_or_int, ["reduce and", "reduce or"], "b", "t"),
    "affine_wraps": (affine_wraps, ["affine"], "b", "t"),
    "max_by_select": (max_by_select, ["reduce max"], "b", "t"),
    "min_of_products": (min_of_products, ["reduce min"], "b", "t"),
    "collected_terms": (collected_terms, ["affine"], "b", "t"),
    "delay": (delay, ["affine"], "b", "t"),
    "half_carries": (half_carries, ["reduce add"], "b", "t"),
    "no_lanes": (no_lanes, ["affine"], "", "t"),
    "strided_time": (strided_time, ["reduce add"], "b", "t"),
    "reset_by_data": (reset_by_data, ["segmented"], "b", "t"),
    "history_of_a_reduction_axis": (history_of_a_reduction_axis, ["reduce add"], "b", "t"),
    "emit_of_a_reduction_axis": (emit_of_a_reduction_axis, ["reduce add"], "b", "t"),
    "two_sweeps_of_one_buffer": (two_sweeps_of_one_buffer, ["reduce add"], "b", "t"),
    "beside_what_has_no_lanes": (beside_what_has_no_lanes, ["reduce add"], "b", "t"),
    "set_at_the_first_step": (set_at_the_first_step, ["affine", "reduce add"], "b", "t"),
    "first_step_apart": (first_step_apart, ["reduce max"], "b", "t"),
    "cells_set_at_the_first_step": (cells_set_at_the_first_step, ["reduce add"], "b", "t"),
    "bicyclic": (bicyclic, ["clamp", "reduce add"], "b", "t"),
    "emitted_under_a_condition": (emitted_under_a_condition, ["reduce add"], "b", "t"),
    "symbolic": (symbolic, ["reduce add"], "b", "t"),
}
