"""Delta rules in the forms in which people write them, and near misses."""

from tvm.script import tirx as T

from tvm_scan.loops.linear_attention import LinearAttention

H, L, K, V = 2, 37, 12, 20
KEYS, VALUES, HEAD = (H, L, K), (H, L, V), (H, L)


@T.prim_func(s_tir=True)
def gated(
    Q: T.Buffer(KEYS, "float32"),
    Ks: T.Buffer(KEYS, "float32"),
    Vs: T.Buffer(VALUES, "float32"),
    B: T.Buffer(HEAD, "float32"),
    G: T.Buffer(HEAD, "float32"),
    S: T.Buffer((H, V, K), "float32"),
    Y: T.Buffer(VALUES, "float32"),
):
    known = T.alloc_buffer((H, V), "float32")
    for h in range(H):
        for t in range(L):
            for v in range(V):
                known[h, v] = T.float32(0)
                for i in range(K):
                    known[h, v] = known[h, v] + G[h, t] * S[h, v, i] * Ks[h, t, i]
                for i in range(K):
                    S[h, v, i] = (
                        G[h, t] * S[h, v, i] + B[h, t] * (Vs[h, t, v] - known[h, v]) * Ks[h, t, i]
                    )
                Y[h, t, v] = T.float32(0)
                for i in range(K):
                    Y[h, t, v] = Y[h, t, v] + S[h, v, i] * Q[h, t, i]


@T.prim_func(s_tir=True)
def by_vectors(
    Q: T.Buffer(KEYS, "float32"),
    Ks: T.Buffer(KEYS, "float32"),
    Vs: T.Buffer(VALUES, "float32"),
    B: T.Buffer(HEAD, "float32"),
    G: T.Buffer(KEYS, "float32"),
    S: T.Buffer((H, K, V), "float32"),
    Y: T.Buffer(VALUES, "float32"),
):
    # Decayed in place first, then updated by its error; a gate for each element of the key.
    error = T.alloc_buffer((V,), "float32")
    for h, t in T.grid(H, L):
        for i, v in T.grid(K, V):
            S[h, i, v] = T.exp(G[h, t, i]) * S[h, i, v]
        for v in range(V):
            error[v] = T.float32(0)
        for v, i in T.grid(V, K):
            error[v] += S[h, i, v] * Ks[h, t, i]
        for v in range(V):
            error[v] = B[h, t] * (Vs[h, t, v] - error[v])
        for i, v in T.grid(K, V):
            S[h, i, v] = S[h, i, v] + Ks[h, t, i] * error[v]
        for v in range(V):
            Y[h, t, v] = T.float32(0)
        for v, i in T.grid(V, K):
            Y[h, t, v] += Q[h, t, i] * S[h, i, v]


@T.prim_func(s_tir=True)
def own_state(
    Q: T.Buffer(KEYS, "float32"),
    Ks: T.Buffer(KEYS, "float32"),
    Vs: T.Buffer(VALUES, "float32"),
    B: T.Buffer(HEAD, "float32"),
    S0: T.Buffer((H, K, V), "float32"),
    Y: T.Buffer(VALUES, "float32"),
    S1: T.Buffer((H, V, K), "float32"),
):
    # No gate, the state is the nest's own, it is read before the update, and time runs backwards.
    state = T.alloc_buffer((K,), "float32")
    total = T.alloc_buffer((1,), "float32")
    seen = T.alloc_buffer((1,), "float32")
    for h, v in T.grid(H, V):
        for i in range(K):
            state[i] = S0[h, i, v]
        for t in range(L):
            total[0] = T.float32(0)
            seen[0] = T.float32(0)
            for i in range(K):
                total[0] = total[0] + Ks[h, L - 1 - t, i] * state[i]
                seen[0] = seen[0] + Q[h, L - 1 - t, i] * state[i]
            Y[h, L - 1 - t, v] = T.max(seen[0], T.float32(0)) * Vs[h, L - 1 - t, v]
            for i in range(K):
                state[i] = state[i] - B[h, L - 1 - t] * Ks[h, L - 1 - t, i] * (
                    total[0] - Vs[h, L - 1 - t, v]
                )
        for i in range(K):
            S1[h, v, i] = state[i]


@T.prim_func(s_tir=True)
def with_resets(
    Q: T.Buffer(KEYS, "float32"),
    Ks: T.Buffer(KEYS, "float32"),
    Vs: T.Buffer(VALUES, "float32"),
    B: T.Buffer(HEAD, "float32"),
    R: T.Buffer((L,), "int32"),
    S: T.Buffer((H, V, K), "float32"),
    Y: T.Buffer(VALUES, "float32"),
):
    # Another vector is read than is written: still diagonal plus rank one.
    known = T.alloc_buffer((1,), "float32")
    for h, v, t in T.grid(H, V, L):
        known[0] = T.float32(0)
        for i in range(K):
            known[0] = known[0] + S[h, v, i] * Q[h, t, i]
        for i in range(K):
            S[h, v, i] = (
                T.if_then_else(R[t] != 0, T.float32(0), T.float32(0.9)) * S[h, v, i]
                + Ks[h, t, i] * Vs[h, t, v]
                - B[h, t] * known[0] * Ks[h, t, i]
            )
        Y[h, t, v] = T.float32(0)
        for i in range(K):
            Y[h, t, v] = Y[h, t, v] + S[h, v, i] * Q[h, t, i]


@T.prim_func(s_tir=True)
def two_vectors(
    Q: T.Buffer(KEYS, "float32"),
    Ks: T.Buffer(KEYS, "float32"),
    Vs: T.Buffer(VALUES, "float32"),
    B: T.Buffer(KEYS, "float32"),
    G: T.Buffer(KEYS, "float32"),
    S: T.Buffer((H, K, V), "float32"),
    Y: T.Buffer(VALUES, "float32"),
):
    # RWKV-7: one vector to write with, two to erase with; the read-out is of the state before.
    known = T.alloc_buffer((1,), "float32")
    for h, v, t in T.grid(H, V, L):
        known[0] = T.float32(0)
        Y[h, t, v] = T.float32(0)
        for i in range(K):
            known[0] = known[0] + Q[h, t, i] * S[h, i, v]
            Y[h, t, v] = Y[h, t, v] + Q[h, t, i] * S[h, i, v]
        for i in range(K):
            S[h, i, v] = (
                T.exp(G[h, t, i]) * S[h, i, v]
                + Ks[h, t, i] * Vs[h, t, v]
                - B[h, t, i] * Q[h, t, i] * known[0]
            )


@T.prim_func(s_tir=True)
def several_sums(
    Q: T.Buffer(KEYS, "float32"),
    Ks: T.Buffer(KEYS, "float32"),
    Vs: T.Buffer(VALUES, "float32"),
    B: T.Buffer(HEAD, "float32"),
    G: T.Buffer(HEAD, "float32"),
    S: T.Buffer((H, V, K), "float32"),
    Y: T.Buffer(VALUES, "float32"),
):
    # Two sums, each for a vector, and a product of sums that is to be multiplied out.
    known = T.alloc_buffer((1,), "float32")
    seen = T.alloc_buffer((1,), "float32")
    for h, v, t in T.grid(H, V, L):
        known[0] = T.float32(0)
        seen[0] = T.float32(0)
        for i in range(K):
            known[0] = known[0] + S[h, v, i] * Ks[h, t, i]
            seen[0] = seen[0] + S[h, v, i] * Q[h, t, i]
        for i in range(K):
            S[h, v, i] = (
                T.exp(G[h, t]) * S[h, v, i]
                + T.float32(0.5)
                * (Ks[h, t, i] + Vs[h, t, v] * Q[h, t, i])
                * (Vs[h, t, v] - B[h, t] * known[0])
                - T.float32(0.25) * Ks[h, t, i] * seen[0]
            )
        Y[h, t, v] = T.float32(0)
        for i in range(K):
            Y[h, t, v] = Y[h, t, v] + S[h, v, i] * Q[h, t, i]


@T.prim_func(s_tir=True)
def product(
    Q: T.Buffer(KEYS, "float32"),
    Ks: T.Buffer(KEYS, "float32"),
    Vs: T.Buffer(VALUES, "float32"),
    B: T.Buffer(HEAD, "float32"),
    G: T.Buffer(HEAD, "float32"),
    S: T.Buffer((H, K, V), "float32"),
    Y: T.Buffer(VALUES, "float32"),
):
    # DeltaProduct: two updates one after another, whose second sum is over the first one's state.
    known = T.alloc_buffer((V,), "float32")
    for h, t in T.grid(H, L):
        for i, v in T.grid(K, V):
            S[h, i, v] = T.exp(G[h, t]) * S[h, i, v]
        for v in range(V):
            known[v] = T.float32(0)
        for v, i in T.grid(V, K):
            known[v] += S[h, i, v] * Ks[h, t, i]
        for i, v in T.grid(K, V):
            S[h, i, v] = S[h, i, v] + Ks[h, t, i] * B[h, t] * (Vs[h, t, v] - known[v])
        for v in range(V):
            known[v] = T.float32(0)
        for v, i in T.grid(V, K):
            known[v] += S[h, i, v] * Q[h, t, i]
        for i, v in T.grid(K, V):
            S[h, i, v] = S[h, i, v] + T.float32(0.1) * Q[h, t, i] * (Vs[h, t, v] - known[v])
        for v in range(V):
            Y[h, t, v] = T.float32(0)
        for v, i in T.grid(V, K):
            Y[h, t, v] += Q[h, t, i] * S[h, i, v]


@T.prim_func(s_tir=True)
def product_of_three(
    Q: T.Buffer(KEYS, "float32"),
    Ks: T.Buffer((H, L, 3, K), "float32"),
    Vs: T.Buffer((H, L, 3, V), "float32"),
    B: T.Buffer((H, L, 3), "float32"),
    G: T.Buffer(HEAD, "float32"),
    S: T.Buffer((H, K, V), "float32"),
    Y: T.Buffer(VALUES, "float32"),
):
    # As many updates as a loop has, a column being a lane.
    known = T.alloc_buffer((1,), "float32")
    for h, v, t in T.grid(H, V, L):
        for i in range(K):
            S[h, i, v] = T.exp(G[h, t]) * S[h, i, v]
        for j in range(3):
            known[0] = T.float32(0)
            for i in range(K):
                known[0] = known[0] + S[h, i, v] * Ks[h, t, j, i]
            for i in range(K):
                S[h, i, v] = S[h, i, v] + Ks[h, t, j, i] * B[h, t, j] * (Vs[h, t, j, v] - known[0])
        Y[h, t, v] = T.float32(0)
        for i in range(K):
            Y[h, t, v] = Y[h, t, v] + Q[h, t, i] * S[h, i, v]


@T.prim_func(s_tir=True)
def gates_of_columns(
    Q: T.Buffer(KEYS, "float32"),
    Ks: T.Buffer(KEYS, "float32"),
    Vs: T.Buffer(VALUES, "float32"),
    B: T.Buffer(HEAD, "float32"),
    G: T.Buffer(VALUES, "float32"),
    S: T.Buffer((H, K, V), "float32"),
    Y: T.Buffer(VALUES, "float32"),
):
    # A gate for each element of the value; what is read is decayed, and so is a second read.
    known = T.alloc_buffer((V,), "float32")
    seen = T.alloc_buffer((V,), "float32")
    for h, t in T.grid(H, L):
        for v in range(V):
            known[v] = T.float32(0)
            seen[v] = T.float32(0)
        for i, v in T.grid(K, V):
            known[v] += Ks[h, t, i] * T.exp(G[h, t, v]) * S[h, i, v]
        for i, v in T.grid(K, V):
            seen[v] += Vs[h, t, v] * Q[h, t, i] * S[h, i, v]
        for i, v in T.grid(K, V):
            S[h, i, v] = T.exp(G[h, t, v]) * S[h, i, v] + Ks[h, t, i] * B[h, t] * (
                Vs[h, t, v] - known[v]
            )
        for v in range(V):
            Y[h, t, v] = seen[v]
        for v, i in T.grid(V, K):
            Y[h, t, v] += Q[h, t, i] * S[h, i, v]


@T.prim_func(s_tir=True)
def trapezoid(
    Q: T.Buffer(KEYS, "float32"),
    Ks: T.Buffer(KEYS, "float32"),
    Vs: T.Buffer(VALUES, "float32"),
    B: T.Buffer(HEAD, "float32"),
    G: T.Buffer(HEAD, "float32"),
    S: T.Buffer((H, K, V), "float32"),
    Y: T.Buffer(VALUES, "float32"),
):
    # A drive of this step and of the one before, as in Mamba-3.
    known = T.alloc_buffer((V,), "float32")
    for h, t in T.grid(H, L):
        for v in range(V):
            known[v] = T.float32(0)
        for i, v in T.grid(K, V):
            known[v] += Ks[h, t, i] * S[h, i, v]
        for i, v in T.grid(K, V):
            S[h, i, v] = (
                T.exp(G[h, t]) * S[h, i, v]
                + Ks[h, t, i] * B[h, t] * (Vs[h, t, v] - known[v])
                + T.if_then_else(
                    t > 0, T.float32(0.1) * Ks[h, t - 1, i] * Vs[h, t - 1, v], T.float32(0)
                )
            )
        for v in range(V):
            Y[h, t, v] = T.float32(0)
        for v, i in T.grid(V, K):
            Y[h, t, v] += Q[h, t, i] * S[h, i, v]


@T.prim_func(s_tir=True)
def momentum(
    Q: T.Buffer(KEYS, "float32"),
    Ks: T.Buffer(KEYS, "float32"),
    Vs: T.Buffer(VALUES, "float32"),
    B: T.Buffer(HEAD, "float32"),
    G: T.Buffer(HEAD, "float32"),
    N: T.Buffer(HEAD, "float32"),
    M: T.Buffer((H, K, V), "float32"),
    S: T.Buffer((H, K, V), "float32"),
    Y: T.Buffer(VALUES, "float32"),
):
    # Titans: a memory, and the momentum of its updates.
    known = T.alloc_buffer((V,), "float32")
    for h, t in T.grid(H, L):
        for v in range(V):
            known[v] = T.float32(0)
        for i, v in T.grid(K, V):
            known[v] += M[h, i, v] * Ks[h, t, i]
        for i, v in T.grid(K, V):
            S[h, i, v] = N[h, t] * S[h, i, v] - B[h, t] * Ks[h, t, i] * (known[v] - Vs[h, t, v])
        for i, v in T.grid(K, V):
            M[h, i, v] = (T.float32(1) - G[h, t]) * M[h, i, v] + S[h, i, v]
        for v in range(V):
            Y[h, t, v] = T.float32(0)
        for i, v in T.grid(K, V):
            Y[h, t, v] += Q[h, t, i] * M[h, i, v]


FORMS = {
    f.attrs["global_symbol"]: f
    for f in (
        *(gated, by_vectors, own_state, with_resets, two_vectors, several_sums),
        *(product, product_of_three, gates_of_columns, trapezoid),
    )
}


def near_miss(update, gate="G[h, t]", known="S[h, v, i] * Ks[h, t, i]", out="S[h, v, i]"):
    """Source of ``gated`` with parts of it replaced."""
    return f"""
from tvm.script import tirx as T

from tvm_scan.loops.linear_attention import LinearAttention

@T.prim_func(s_tir=True)
def program(
    Q: T.Buffer({KEYS}, "float32"),
    Ks: T.Buffer({KEYS}, "float32"),
    Vs: T.Buffer({VALUES}, "float32"),
    B: T.Buffer({HEAD}, "float32"),
    G: T.Buffer({HEAD}, "float32"),
    W: T.Buffer({VALUES}, "float32"),
    S: T.Buffer({(H, V, K)}, "float32"),
    Y: T.Buffer({VALUES}, "float32"),
):
    known = T.alloc_buffer(({H}, {V}), "float32")
    for h in range({H}):
        for t in range({L}):
            for v in range({V}):
                known[h, v] = T.float32(0)
                for i in range({K}):
                    known[h, v] = known[h, v] + {known}
                for i in range({K}):
                    S[h, v, i] = {gate} * S[h, v, i] + {update}
                Y[h, t, v] = T.float32(0)
                for i in range({K}):
                    Y[h, t, v] = Y[h, t, v] + {out} * Q[h, t, i]
"""


_AMOUNT = "B[h, t] * (Vs[h, t, v] - known[h, v])"
#: What is wrong, the parts of the program, and what the refusal says.
NEAR_MISSES = [
    ("gate outside", {"update": f"{_AMOUNT} * Ks[h, t, i]", "gate": "known[h, v]"}, "depends on"),
    ("tanh of the sum", {"update": f"T.tanh({_AMOUNT}) * Ks[h, t, i]"}, "not affine"),
    ("square of the sum", {"update": f"{_AMOUNT} * known[h, v] * Ks[h, t, i]"}, "depends on"),
    ("square of the state", {"update": f"{_AMOUNT} * Ks[h, t, i]",
                                 "known": "S[h, v, i] * S[h, v, i]"}, "depends on"),
    ("gate of the cell", {"update": f"{_AMOUNT} * Ks[h, t, i]",
                              "gate": "T.exp(Ks[h, t, i] * W[h, t, v])"}, "not as a factor"),
    ("vector of the column", {"update": f"{_AMOUNT} * T.exp(Ks[h, t, i] * W[h, t, v])"},
     "no vector times an amount"),
    ("weights of the column", {"update": f"{_AMOUNT} * Ks[h, t, i]",
                                   "known": "S[h, v, i] * (W[h, t, v] + Ks[h, t, i])"},
     "not as a factor"),
    ("a neighbouring row", {"update": f"{_AMOUNT} * Ks[h, t, i]",
                                "known": f"S[h, v, {K - 1} - i] * Ks[h, t, i]"}, "bare loop"),
    ("a constant in the sum", {"update": f"{_AMOUNT} * Ks[h, t, i]",
                                   "known": "(S[h, v, i] + 1.0) * Ks[h, t, i]"}, "adds more"),
    ("the state of the future column", {"update": f"{_AMOUNT} * Ks[h, t, i]",
                                            "out": f"S[h, {V - 1} - v, i]"}, ""),
    ("the bare state", {"update": f"{_AMOUNT} * Ks[h, t, i] * S[h, v, i]"}, "depends on"),
]  # fmt: skip


def linear_attention(length, heads=2, size=16, rule="gated_delta", queries=1):
    """The loop of ONNX's operator, which has its sizes as arguments; a length of None is any."""
    op = LinearAttention(rule, heads * queries, heads, size, size, 1.0, 1, length, "float32",
                         "float32", heads if "gated" in rule else 0, heads, True)  # fmt: skip
    return op.loop().with_attr("global_symbol", "main")
