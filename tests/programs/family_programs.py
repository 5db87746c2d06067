"""One loop of every family beyond reduce and scalar affine, as small as it allows.

Inputs are small integers, so that any order of the arithmetic is exact where nothing divides and
nothing is exponential.
"""

from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def second_order(
    A: T.Buffer((3, 37), "float32"),
    X: T.Buffer((3, 37), "float32"),
    H: T.Buffer((3, 37), "float32"),
):
    for b, t in T.grid(3, 37):
        H[b, t] = (
            T.if_then_else(t > 0, H[b, t - 1], T.float32(0)) * A[b, t]
            - T.if_then_else(t > 1, H[b, t - 2], T.float32(0))
            + X[b, t]
        )


@T.prim_func(s_tir=True)
def history_of_two(X: T.Buffer((3, 37), "int32"), H: T.Buffer((3, 39), "int32")):
    for b, t in T.grid(3, 37):
        H[b, t + 2] = H[b, t] + H[b, t + 1] * X[b, t]


@T.prim_func(s_tir=True)
def complex_gate(
    P: T.Buffer((3, 37), "float32"),
    Q: T.Buffer((3, 37), "float32"),
    U: T.Buffer((3, 37), "float32"),
    R: T.Buffer((3, 37), "float32"),
    I: T.Buffer((3, 37), "float32"),
):
    for b in range(3):
        re = T.sblock_alloc_buffer((1,), "float32")
        im = T.sblock_alloc_buffer((1,), "float32")
        new = T.sblock_alloc_buffer((1,), "float32")
        re[0] = T.float32(0)
        im[0] = T.float32(0)
        for t in range(37):
            new[0] = P[b, t] * re[0] - Q[b, t] * im[0] + U[b, t]
            im[0] = Q[b, t] * re[0] + P[b, t] * im[0]
            re[0] = new[0]
            R[b, t] = re[0]
            I[b, t] = im[0]


@T.prim_func(s_tir=True)
def max_plus(
    A: T.Buffer((3, 37), "int32"), X: T.Buffer((3, 37), "int32"), H: T.Buffer((3, 37), "int32")
):
    for b, t in T.grid(3, 37):
        H[b, t] = T.max(T.if_then_else(t > 0, H[b, t - 1], 0) + A[b, t], X[b, t])


@T.prim_func(s_tir=True)
def bounded_sum(A: T.Buffer((3, 37), "float32"), H: T.Buffer((3, 37), "float32")):
    for b, t in T.grid(3, 37):
        H[b, t] = T.min(
            T.max(T.if_then_else(t > 0, H[b, t - 1], T.float32(1)) + A[b, t], T.float32(-3)),
            T.float32(4),
        )


@T.prim_func(s_tir=True)
def reset_sum(
    F: T.Buffer((3, 37), "int32"), X: T.Buffer((3, 37), "float32"), H: T.Buffer((3, 37), "float32")
):
    for b, t in T.grid(3, 37):
        H[b, t] = (
            T.if_then_else(
                F[b, t] > 2, T.float32(0), T.if_then_else(t > 0, H[b, t - 1], T.float32(1))
            )
            + X[b, t]
        )


@T.prim_func(s_tir=True)
def reset_max(
    F: T.Buffer((3, 37), "int32"), X: T.Buffer((3, 37), "float32"), H: T.Buffer((3, 37), "float32")
):
    for b, t in T.grid(3, 37):
        H[b, t] = T.if_then_else(
            F[b, t] > 2, X[b, t], T.max(T.if_then_else(t > 0, H[b, t - 1], T.float32(1)), X[b, t])
        )


@T.prim_func(s_tir=True)
def automaton(
    X: T.Buffer((3, 37), "int32"), TB: T.Buffer((3, 3), "int32"), H: T.Buffer((3, 37), "int32")
):
    for b, t in T.grid(3, 37):
        H[b, t] = TB[T.if_then_else(t > 0, H[b, t - 1], 0), X[b, t]]


@T.prim_func(s_tir=True)
def masks(
    A: T.Buffer((3, 37), "int32"), X: T.Buffer((3, 37), "int32"), H: T.Buffer((3, 37), "int32")
):
    for b, t in T.grid(3, 37):
        H[b, t] = T.bitwise_or(
            T.bitwise_and(T.if_then_else(t > 0, H[b, t - 1], 5), A[b, t]), X[b, t]
        )


@T.prim_func(s_tir=True)
def rolling_hash(X: T.Buffer((3, 37), "int32"), H: T.Buffer((3, 37), "int32")):
    for b, t in T.grid(3, 37):
        H[b, t] = (T.if_then_else(t > 0, H[b, t - 1], -500) * 257 + X[b, t]) % 65521


@T.prim_func(s_tir=True)
def switch(
    X: T.Buffer((3, 37), "bool"), Y: T.Buffer((3, 37), "bool"), H: T.Buffer((3, 37), "bool")
):
    for b, t in T.grid(3, 37):
        H[b, t] = T.Select(T.if_then_else(t > 0, H[b, t - 1], T.bool(False)), X[b, t], Y[b, t])


@T.prim_func(s_tir=True)
def running_argmax(
    X: T.Buffer((3, 37), "float32"), V: T.Buffer((3, 37), "float32"), I: T.Buffer((3, 37), "int32")
):
    for b in range(3):
        v = T.sblock_alloc_buffer((1,), "float32")
        i = T.sblock_alloc_buffer((1,), "int32")
        v[0] = T.float32("-inf")
        i[0] = -1
        for t in range(37):
            if X[b, t] > v[0]:
                i[0] = t
                v[0] = X[b, t]
            V[b, t] = v[0]
            I[b, t] = i[0]


@T.prim_func(s_tir=True)
def continued_fraction(
    A: T.Buffer((3, 37), "float32"),
    X: T.Buffer((3, 37), "float32"),
    H: T.Buffer((3, 37), "float32"),
):
    for b, t in T.grid(3, 37):
        H[b, t] = A[b, t] + X[b, t] / (
            T.if_then_else(t > 0, H[b, t - 1], T.float32(1)) + T.float32(2)
        )


@T.prim_func(s_tir=True)
def running_logsumexp(X: T.Buffer((3, 37), "float32"), H: T.Buffer((3, 37), "float32")):
    for b in range(3):
        h = T.sblock_alloc_buffer((1,), "float32")
        m = T.sblock_alloc_buffer((1,), "float32")
        h[0] = T.float32("-inf")
        for t in range(37):
            m[0] = T.max(h[0], X[b, t])
            h[0] = m[0] + T.log(T.exp(h[0] - m[0]) + T.exp(X[b, t] - m[0]))
            H[b, t] = h[0]


@T.prim_func(s_tir=True)
def online_softmax(
    X: T.Buffer((3, 37), "float32"),
    V: T.Buffer((3, 37, 4), "float32"),
    Y: T.Buffer((3, 37, 4), "float32"),
):
    for b in range(3):
        m = T.sblock_alloc_buffer((1,), "float32")
        n = T.sblock_alloc_buffer((1,), "float32")
        s = T.sblock_alloc_buffer((1,), "float32")
        acc = T.sblock_alloc_buffer((4,), "float32")
        m[0] = T.float32(-10)
        s[0] = T.float32(0)
        for j in range(4):
            acc[j] = T.float32(0)
        for t in range(37):
            n[0] = T.max(m[0], X[b, t])
            s[0] = s[0] * T.exp(m[0] - n[0]) + T.exp(X[b, t] - n[0])
            for j in range(4):
                acc[j] = acc[j] * T.exp(m[0] - n[0]) + V[b, t, j] * T.exp(X[b, t] - n[0])
            m[0] = n[0]
            for j in range(4):
                Y[b, t, j] = acc[j] / s[0]


@T.prim_func(s_tir=True)
def mean_and_variance(
    X: T.Buffer((3, 37), "float32"),
    M: T.Buffer((3, 37), "float32"),
    S: T.Buffer((3, 37), "float32"),
):
    for b in range(3):
        mean = T.sblock_alloc_buffer((1,), "float32")
        d = T.sblock_alloc_buffer((1,), "float32")
        m2 = T.sblock_alloc_buffer((1,), "float32")
        mean[0] = T.float32(0)
        m2[0] = T.float32(0)
        for t in range(37):
            d[0] = X[b, t] - mean[0]
            mean[0] = mean[0] + d[0] / T.Cast("float32", t + 1)
            m2[0] = m2[0] + d[0] * (X[b, t] - mean[0])
            M[b, t] = mean[0]
            S[b, t] = m2[0]


@T.prim_func(s_tir=True)
def small_matrix(
    A: T.Buffer((3, 37, 3, 3), "float32"),
    X: T.Buffer((3, 37, 3), "float32"),
    H: T.Buffer((3, 37, 3), "float32"),
):
    for b in range(3):
        h = T.sblock_alloc_buffer((3,), "float32")
        n = T.sblock_alloc_buffer((3,), "float32")
        for i in range(3):
            h[i] = T.float32(1)
        for t in range(37):
            for i in range(3):
                n[i] = X[b, t, i]
                for j in range(3):
                    n[i] = n[i] + A[b, t, i, j] * h[j]
            for i in range(3):
                h[i] = n[i]
                H[b, t, i] = h[i]


@T.prim_func(s_tir=True)
def wkv(
    K: T.Buffer((3, 37), "float32"),
    V: T.Buffer((3, 37), "float32"),
    W: T.Buffer((3,), "float32"),
    U: T.Buffer((3,), "float32"),
    Y: T.Buffer((3, 37), "float32"),
):
    for b in range(3):
        above = T.sblock_alloc_buffer((1,), "float32")
        below = T.sblock_alloc_buffer((1,), "float32")
        top = T.sblock_alloc_buffer((1,), "float32")
        new = T.sblock_alloc_buffer((1,), "float32")
        above[0] = T.float32(0)
        below[0] = T.float32(0)
        top[0] = T.float32(-1e30)
        for t in range(37):
            new[0] = T.max(top[0], U[b] + K[b, t])
            Y[b, t] = (
                T.exp(top[0] - new[0]) * above[0] + T.exp(U[b] + K[b, t] - new[0]) * V[b, t]
            ) / (T.exp(top[0] - new[0]) * below[0] + T.exp(U[b] + K[b, t] - new[0]))
            new[0] = T.max(top[0] - W[b], K[b, t])
            above[0] = T.exp(top[0] - W[b] - new[0]) * above[0] + T.exp(K[b, t] - new[0]) * V[b, t]
            below[0] = T.exp(top[0] - W[b] - new[0]) * below[0] + T.exp(K[b, t] - new[0])
            top[0] = new[0]


@T.prim_func(s_tir=True)
def peak_hold(X: T.Buffer((3, 37), "float32"), H: T.Buffer((3, 37), "float32")):
    for b, t in T.grid(3, 37):
        H[b, t] = T.max(T.float32(0.5) * T.if_then_else(t > 0, H[b, t - 1], T.float32(4)), X[b, t])


@T.prim_func(s_tir=True)
def independent_network(
    U: T.Buffer((3,), "float32"),
    X: T.Buffer((3, 37), "float32"),
    S: T.Buffer((3,), "float32"),
    Y: T.Buffer((3, 37), "float32"),
):
    for b, t in T.grid(3, 37):
        v: T.let[T.float32] = U[b] * S[b] + X[b, t]
        S[b] = T.if_then_else(v > T.float32(0), v, T.float32(0))
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def gates_of_any_sign(
    A: T.Buffer((3, 37), "float32"),
    X: T.Buffer((3, 37), "float32"),
    H: T.Buffer((3, 37), "float32"),
):
    for b, t in T.grid(3, 37):
        H[b, t] = T.min(
            T.max(
                X[b, t] - A[b, t] * T.if_then_else(t > 0, H[b, t - 1], T.float32(1)),
                T.float32(-6),
            ),
            T.float32(5),
        ) + T.float32(2)


@T.prim_func(s_tir=True)
def maximum_two_steps_back(X: T.Buffer((3, 37), "float32"), H: T.Buffer((3, 39), "float32")):
    for b, t in T.grid(3, 37):
        H[b, t + 2] = T.max(H[b, t], X[b, t])


@T.prim_func(s_tir=True)
def bounded_three_steps_back(X: T.Buffer((3, 37), "int32"), H: T.Buffer((3, 37), "int32")):
    for b, t in T.grid(3, 37):
        H[b, t] = T.min(T.max(T.if_then_else(t > 2, H[b, t - 3], 1) + X[b, t], -3), 4)


@T.prim_func(s_tir=True)
def shift_register(
    B: T.Buffer((3, 37), "int32"), S: T.Buffer((3,), "int32"), Y: T.Buffer((3, 37), "int32")
):
    for b, t in T.grid(3, 37):
        S[b] = T.bitwise_or(T.shift_left(S[b], 1), T.bitwise_and(B[b, t], 1))
        Y[b, t] = S[b]


@T.prim_func(s_tir=True)
def flat_automaton(
    X: T.Buffer((3, 37), "int32"), TB: T.Buffer((9,), "int32"), H: T.Buffer((3, 37), "int32")
):
    for b, t in T.grid(3, 37):
        H[b, t] = TB[T.if_then_else(t > 0, H[b, t - 1], 0) * 3 + X[b, t]]


@T.prim_func(s_tir=True)
def reservoir(
    U: T.Buffer((3, 37), "float32"), X: T.Buffer((3, 37), "float32"), R: T.Buffer((3,), "float32")
):
    for b in range(3):
        r = T.sblock_alloc_buffer((1,), "float32")
        r[0] = T.float32(-1)
        for t in range(37):
            if U[b, t] < T.float32(-2):
                r[0] = X[b, t]
        R[b] = r[0]


@T.prim_func(s_tir=True)
def kept_while_above(
    U: T.Buffer((3, 37), "float32"),
    X: T.Buffer((3, 37), "float32"),
    S: T.Buffer((3, 37), "float32"),
):
    for b, t in T.grid(3, 37):
        S[b, t] = T.if_then_else(
            U[b, t] > T.float32(-2) and U[b, t] <= T.float32(3),
            T.if_then_else(t > 0, S[b, t - 1], T.float32(0)) + X[b, t],
            T.float32(1),
        )


#: Program, families in order of the levels, range of the inputs, whether rounding may differ.
PROGRAMS = {
    "second_order": (second_order, ["matrix affine"], (-1, 2), False),
    "history_of_two": (history_of_two, ["matrix affine"], (-1, 2), False),
    "complex_gate": (complex_gate, ["complex affine"], (-1, 2), False),
    "max_plus": (max_plus, ["clamp"], (-4, 5), False),
    "bounded_sum": (bounded_sum, ["clamp"], (-4, 5), False),
    "reset_sum": (reset_sum, ["segmented"], (-4, 5), False),
    "reset_max": (reset_max, ["segmented"], (-4, 5), False),
    "automaton": (automaton, ["finite automaton"], (0, 3), False),
    "masks": (masks, ["bitwise affine"], (-4, 5), False),
    "rolling_hash": (rolling_hash, ["modular affine"], (-400, 400), False),
    "switch": (switch, ["two states"], (0, 2), False),
    "running_argmax": (running_argmax, ["reduce", "affine"], (-4, 5), False),
    "continued_fraction": (continued_fraction, ["linear fractional"], (1, 5), True),
    "running_logsumexp": (running_logsumexp, ["logsumexp affine"], (-4, 5), True),
    "online_softmax": (online_softmax, ["reduce", "affine", "affine"], (-4, 5), True),
    "mean_and_variance": (mean_and_variance, ["affine", "reduce"], (-4, 5), True),
    "small_matrix": (small_matrix, ["matrix affine"], (-1, 2), False),
    "peak_hold": (peak_hold, ["bounded affine"], (-4, 5), False),
    "independent_network": (independent_network, ["bounded affine"], (-1, 2), False),
    "gates_of_any_sign": (gates_of_any_sign, ["bounded affine"], (-2, 3), False),
    "maximum_two_steps_back": (maximum_two_steps_back, ["interleaved"], (-4, 5), False),
    "bounded_three_steps_back": (bounded_three_steps_back, ["interleaved"], (-4, 5), False),
    "shift_register": (shift_register, ["shifted bits"], (-4, 5), False),
    "flat_automaton": (flat_automaton, ["finite automaton"], (0, 3), False),
    "reservoir": (reservoir, ["segmented"], (-4, 5), False),
    "kept_while_above": (kept_while_above, ["segmented"], (-4, 5), False),
    "wkv": (wkv, ["clamp", "affine", "affine"], (0, 4), True),
}
