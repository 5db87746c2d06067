"""Time tiled, unrolled, cut short and split by hand, beside the loop with one step per iteration.

The programs of a pair have the same parameters and do the same; near misses do almost.
"""

from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def plain_history(X: T.Buffer((3, 64), "float32"), H: T.Buffer((3, 65), "float32")):
    for b, t in T.grid(3, 64):
        H[b, t + 1] = H[b, t] * T.float32(2) + X[b, t]


@T.prim_func(s_tir=True)
def tiled_history(X: T.Buffer((3, 64), "float32"), H: T.Buffer((3, 65), "float32")):
    for b in range(3):
        for to in range(4):
            for ti in range(16):
                H[b, to * 16 + ti + 1] = H[b, to * 16 + ti] * T.float32(2) + X[b, to * 16 + ti]


@T.prim_func(s_tir=True)
def lanes_between_tiles(X: T.Buffer((3, 64), "float32"), H: T.Buffer((3, 65), "float32")):
    for to in range(4):
        for b in range(3):
            for ti in range(16):
                H[b, to * 16 + ti + 1] = H[b, to * 16 + ti] * T.float32(2) + X[b, to * 16 + ti]


@T.prim_func(s_tir=True)
def tiles_of_tiles(X: T.Buffer((3, 64), "float32"), H: T.Buffer((3, 65), "float32")):
    for b, o, m, i in T.grid(3, 4, 2, 8):
        H[b, o * 16 + m * 8 + i + 1] = (
            H[b, o * 16 + m * 8 + i] * T.float32(2) + X[b, o * 16 + m * 8 + i]
        )


@T.prim_func(s_tir=True)
def unrolled_history(X: T.Buffer((3, 64), "float32"), H: T.Buffer((3, 65), "float32")):
    for b, t in T.grid(3, 32):
        H[b, 2 * t + 1] = H[b, 2 * t] * T.float32(2) + X[b, 2 * t]
        H[b, 2 * t + 2] = H[b, 2 * t + 1] * T.float32(2) + X[b, 2 * t + 1]


@T.prim_func(s_tir=True)
def plain_tail(
    X: T.Buffer((3, 61), "int32"), S: T.Buffer((3,), "int32"), Y: T.Buffer((3, 61), "int32")
):
    for b, t in T.grid(3, 61):
        S[b] = S[b] * 3 + X[b, t]
        Y[b, t] = S[b] + t


@T.prim_func(s_tir=True)
def tiled_tail(
    X: T.Buffer((3, 61), "int32"), S: T.Buffer((3,), "int32"), Y: T.Buffer((3, 61), "int32")
):
    for b, to, ti in T.grid(3, 4, 16):
        if to * 16 + ti < 61:
            S[b] = S[b] * 3 + X[b, to * 16 + ti]
            Y[b, to * 16 + ti] = S[b] + (to * 16 + ti)


@T.prim_func(s_tir=True)
def tiled_short_tail(
    X: T.Buffer((3, 61), "int32"), S: T.Buffer((3,), "int32"), Y: T.Buffer((3, 61), "int32")
):
    for b in range(3):
        for to in range(4):
            for ti in range(T.min(16, 61 - to * 16)):
                S[b] = S[b] * 3 + X[b, to * 16 + ti]
                Y[b, to * 16 + ti] = S[b] + (to * 16 + ti)


@T.prim_func(s_tir=True)
def unrolled_guarded_tail(
    X: T.Buffer((3, 61), "int32"), S: T.Buffer((3,), "int32"), Y: T.Buffer((3, 61), "int32")
):
    for b, t in T.grid(3, 31):
        S[b] = S[b] * 3 + X[b, t * 2]
        Y[b, t * 2] = S[b] + t * 2
        if t * 2 + 1 < 61:
            S[b] = S[b] * 3 + X[b, t * 2 + 1]
            Y[b, t * 2 + 1] = S[b] + (t * 2 + 1)


@T.prim_func(s_tir=True)
def unrolled_by_four_and_a_loop(
    X: T.Buffer((3, 61), "int32"), S: T.Buffer((3,), "int32"), Y: T.Buffer((3, 61), "int32")
):
    for b in range(3):
        for t in range(15):
            S[b] = S[b] * 3 + X[b, t * 4]
            Y[b, t * 4] = S[b] + t * 4
            S[b] = S[b] * 3 + X[b, t * 4 + 1]
            Y[b, t * 4 + 1] = S[b] + (t * 4 + 1)
            S[b] = S[b] * 3 + X[b, t * 4 + 2]
            Y[b, t * 4 + 2] = S[b] + (t * 4 + 2)
            S[b] = S[b] * 3 + X[b, t * 4 + 3]
            Y[b, t * 4 + 3] = S[b] + (t * 4 + 3)
        for t in range(60, 61):
            S[b] = S[b] * 3 + X[b, t]
            Y[b, t] = S[b] + t


@T.prim_func(s_tir=True)
def unrolled_and_a_last_step(
    X: T.Buffer((3, 61), "int32"), S: T.Buffer((3,), "int32"), Y: T.Buffer((3, 61), "int32")
):
    for b in range(3):
        for t in range(30):
            S[b] = S[b] * 3 + X[b, 2 * t]
            Y[b, 2 * t] = S[b] + 2 * t
            S[b] = S[b] * 3 + X[b, 2 * t + 1]
            Y[b, 2 * t + 1] = S[b] + (2 * t + 1)
        S[b] = S[b] * 3 + X[b, 60]
        Y[b, 60] = S[b] + 60


@T.prim_func(s_tir=True)
def split_in_the_middle(
    X: T.Buffer((3, 61), "int32"), S: T.Buffer((3,), "int32"), Y: T.Buffer((3, 61), "int32")
):
    for b in range(3):
        for t in range(20):
            S[b] = S[b] * 3 + X[b, t]
            Y[b, t] = S[b] + t
        for t in range(41):
            S[b] = S[b] * 3 + X[b, t + 20]
            Y[b, t + 20] = S[b] + (t + 20)


@T.prim_func(s_tir=True)
def plain_boundary(X: T.Buffer((3, 64), "float32"), H: T.Buffer((3, 64), "float32")):
    for b, t in T.grid(3, 64):
        H[b, t] = T.max(T.if_then_else(t > 0, H[b, t - 1], T.float32(0)), X[b, t])


@T.prim_func(s_tir=True)
def tiled_boundary(X: T.Buffer((3, 64), "float32"), H: T.Buffer((3, 64), "float32")):
    for b, to, ti in T.grid(3, 4, 16):
        H[b, to * 16 + ti] = T.max(
            T.if_then_else(to * 16 + ti > 0, H[b, to * 16 + ti - 1], T.float32(0)),
            X[b, to * 16 + ti],
        )


@T.prim_func(s_tir=True)
def unrolled_boundary(X: T.Buffer((3, 64), "float32"), H: T.Buffer((3, 64), "float32")):
    for b, t in T.grid(3, 32):
        H[b, 2 * t] = T.max(T.if_then_else(t > 0, H[b, 2 * t - 1], T.float32(0)), X[b, 2 * t])
        H[b, 2 * t + 1] = T.max(H[b, 2 * t], X[b, 2 * t + 1])


@T.prim_func(s_tir=True)
def plain_states(
    X: T.Buffer((24, 4), "float32"), S: T.Buffer((5, 4), "float32"), Y: T.Buffer((5, 24), "float32")
):
    for b, t in T.grid(5, 24):
        for n in range(4):
            S[b, n] = S[b, n] - X[t, n]
        Y[b, t] = S[b, 0] + S[b, 3]


@T.prim_func(s_tir=True)
def unrolled_states(
    X: T.Buffer((24, 4), "float32"), S: T.Buffer((5, 4), "float32"), Y: T.Buffer((5, 24), "float32")
):
    for b, t in T.grid(5, 8):
        for n in range(4):
            S[b, n] = S[b, n] - X[t * 3, n]
        Y[b, t * 3] = S[b, 0] + S[b, 3]
        for n in range(4):
            S[b, n] = S[b, n] - X[t * 3 + 1, n]
        Y[b, t * 3 + 1] = S[b, 0] + S[b, 3]
        for n in range(4):
            S[b, n] = S[b, n] - X[t * 3 + 2, n]
        Y[b, t * 3 + 2] = S[b, 0] + S[b, 3]


@T.prim_func(s_tir=True)
def plain_backwards(X: T.Buffer((3, 32), "float32"), H: T.Buffer((3, 33), "float32")):
    for b, t in T.grid(3, 32):
        v: T.let[T.float32] = X[b, 31 - t] + T.float32(1)
        H[b, 31 - t] = H[b, 32 - t] * T.float32(2) + v * v


@T.prim_func(s_tir=True)
def unrolled_backwards(X: T.Buffer((3, 32), "float32"), H: T.Buffer((3, 33), "float32")):
    for b, t in T.grid(3, 16):
        v: T.let[T.float32] = X[b, 31 - 2 * t] + T.float32(1)
        H[b, 31 - 2 * t] = H[b, 32 - 2 * t] * T.float32(2) + v * v
        w: T.let[T.float32] = X[b, 30 - 2 * t] + T.float32(1)
        H[b, 30 - 2 * t] = H[b, 31 - 2 * t] * T.float32(2) + w * w


@T.prim_func(s_tir=True)
def plain_symbolic(x: T.handle, h: T.handle):
    m, n = T.int32(), T.int32()
    X = T.match_buffer(x, (m, n), "float32")
    H = T.match_buffer(h, (m, n + 1), "float32")
    for b, t in T.grid(m, n):
        H[b, t + 1] = H[b, t] + X[b, t]


@T.prim_func(s_tir=True)
def tiled_symbolic(x: T.handle, h: T.handle):
    m, n = T.int32(), T.int32()
    X = T.match_buffer(x, (m, n), "float32")
    H = T.match_buffer(h, (m, n + 1), "float32")
    for b, to, ti in T.grid(m, (n + 15) // 16, 16):
        if to * 16 + ti < n:
            H[b, to * 16 + ti + 1] = H[b, to * 16 + ti] + X[b, to * 16 + ti]


@T.prim_func(s_tir=True)
def unrolled_symbolic(x: T.handle, h: T.handle):
    m, n = T.int32(), T.int32()
    X = T.match_buffer(x, (m, n), "float32")
    H = T.match_buffer(h, (m, n + 1), "float32")
    for b in range(m):
        for t in range((n + 1) // 2):
            H[b, 2 * t + 1] = H[b, 2 * t] + X[b, 2 * t]
            if 2 * t + 1 < n:
                H[b, 2 * t + 2] = H[b, 2 * t + 1] + X[b, 2 * t + 1]


@T.prim_func(s_tir=True)
def unrolled_symbolic_and_a_last_step(x: T.handle, h: T.handle):
    m, n = T.int32(), T.int32()
    X = T.match_buffer(x, (m, n), "float32")
    H = T.match_buffer(h, (m, n + 1), "float32")
    for b in range(m):
        for t in range(n // 2):
            H[b, 2 * t + 1] = H[b, 2 * t] + X[b, 2 * t]
            H[b, 2 * t + 2] = H[b, 2 * t + 1] + X[b, 2 * t + 1]
        if n % 2 == 1:
            H[b, n // 2 * 2 + 1] = H[b, n // 2 * 2] + X[b, n // 2 * 2]


@T.prim_func(s_tir=True)
def plain_late(x: T.handle, h: T.handle):
    m, n = T.int32(), T.int32()
    X = T.match_buffer(x, (m, n), "float32")
    H = T.match_buffer(h, (m, n + 1), "float32")
    for b, t in T.grid(m, n - 45):
        H[b, t + 1] = H[b, t] + X[b, t]


@T.prim_func(s_tir=True)
def tiled_late(x: T.handle, h: T.handle):
    # With fewer than 45 steps, none of them runs.
    m, n = T.int32(), T.int32()
    X = T.match_buffer(x, (m, n), "float32")
    H = T.match_buffer(h, (m, n + 1), "float32")
    for b, to, ti in T.grid(m, (n + 15) // 16, 16):
        if to * 16 + ti < n - 45:
            H[b, to * 16 + ti + 1] = H[b, to * 16 + ti] + X[b, to * 16 + ti]


#: Loop as people write it by hand -> the same with one step per iteration.
PAIRS = {
    "tiled_history": (tiled_history, plain_history),
    "lanes_between_tiles": (lanes_between_tiles, plain_history),
    "tiles_of_tiles": (tiles_of_tiles, plain_history),
    "unrolled_history": (unrolled_history, plain_history),
    "tiled_tail": (tiled_tail, plain_tail),
    "tiled_short_tail": (tiled_short_tail, plain_tail),
    "unrolled_guarded_tail": (unrolled_guarded_tail, plain_tail),
    "unrolled_by_four_and_a_loop": (unrolled_by_four_and_a_loop, plain_tail),
    "unrolled_and_a_last_step": (unrolled_and_a_last_step, plain_tail),
    "split_in_the_middle": (split_in_the_middle, plain_tail),
    "tiled_boundary": (tiled_boundary, plain_boundary),
    "unrolled_boundary": (unrolled_boundary, plain_boundary),
    "unrolled_states": (unrolled_states, plain_states),
    "unrolled_backwards": (unrolled_backwards, plain_backwards),
    "tiled_symbolic": (tiled_symbolic, plain_symbolic),
    "unrolled_symbolic": (unrolled_symbolic, plain_symbolic),
    "tiled_late": (tiled_late, plain_late),
    "unrolled_symbolic_and_a_last_step": (unrolled_symbolic_and_a_last_step, plain_symbolic),
}


@T.prim_func(s_tir=True)
def overlapping_tiles(X: T.Buffer((3, 64), "float32"), H: T.Buffer((3, 65), "float32")):
    for b, to, ti in T.grid(3, 4, 16):
        H[b, to * 15 + ti + 1] = H[b, to * 15 + ti] * T.float32(2) + X[b, to * 15 + ti]


@T.prim_func(s_tir=True)
def tiles_walked_across(X: T.Buffer((3, 64), "float32"), H: T.Buffer((3, 65), "float32")):
    for b, ti, to in T.grid(3, 16, 4):
        H[b, to * 16 + ti + 1] = H[b, to * 16 + ti] * T.float32(2) + X[b, to * 16 + ti]


@T.prim_func(s_tir=True)
def another_second_step(X: T.Buffer((3, 64), "float32"), H: T.Buffer((3, 65), "float32")):
    for b, t in T.grid(3, 32):
        H[b, 2 * t + 1] = H[b, 2 * t] * T.float32(2) + X[b, 2 * t]
        H[b, 2 * t + 2] = H[b, 2 * t + 1] * T.float32(3) + X[b, 2 * t + 1]


@T.prim_func(s_tir=True)
def second_step_out_of_order(X: T.Buffer((3, 64), "float32"), H: T.Buffer((3, 65), "float32")):
    for b, t in T.grid(3, 32):
        H[b, 2 * t + 2] = H[b, 2 * t + 1] * T.float32(2) + X[b, 2 * t + 1]
        H[b, 2 * t + 1] = H[b, 2 * t] * T.float32(2) + X[b, 2 * t]


@T.prim_func(s_tir=True)
def second_input_twice(X: T.Buffer((3, 64), "float32"), H: T.Buffer((3, 65), "float32")):
    for b, t in T.grid(3, 32):
        H[b, 2 * t + 1] = H[b, 2 * t] * T.float32(2) + X[b, 2 * t + 1]
        H[b, 2 * t + 2] = H[b, 2 * t + 1] * T.float32(2) + X[b, 2 * t + 1]


@T.prim_func(s_tir=True)
def tail_cut_one_short(X: T.Buffer((3, 61), "float32"), H: T.Buffer((3, 62), "float32")):
    for b, t in T.grid(3, 31):
        if t * 2 < 60:
            H[b, 2 * t + 1] = H[b, 2 * t] * T.float32(2) + X[b, 2 * t]
        if t * 2 + 1 < 61:
            H[b, 2 * t + 2] = H[b, 2 * t + 1] * T.float32(2) + X[b, 2 * t + 1]


@T.prim_func(s_tir=True)
def remainder_from_the_wrong_step(X: T.Buffer((3, 61), "float32"), H: T.Buffer((3, 62), "float32")):
    for b in range(3):
        for t in range(30):
            H[b, t + 1] = H[b, t] * T.float32(2) + X[b, t]
        for t in range(30):
            H[b, t + 32] = H[b, t + 31] * T.float32(2) + X[b, t + 31]


#: Almost one of the above, and not the same loop as any with one step per iteration.
NEAR_MISSES = {
    "overlapping_tiles": overlapping_tiles,
    "tiles_walked_across": tiles_walked_across,
    "another_second_step": another_second_step,
    "second_step_out_of_order": second_step_out_of_order,
    "second_input_twice": second_input_twice,
    "tail_cut_one_short": tail_cut_one_short,
    "remainder_from_the_wrong_step": remainder_from_the_wrong_step,
}
