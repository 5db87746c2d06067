"""The gradient of the gates of matrix states; see `tvm_scan.torch.ops.outer_gates`.

The annotations are evaluated by the script parser.
"""

from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.library.arguments import Expr, keep_parameters

from .frame import ATTRS, const, unless

__all__ = ["LANES", "STEPS", "outer_gates"]

#: Steps between states that are kept, and lanes that are walked together.
STEPS = LANES = 16


def outer_gates(
    batch: Expr,
    heads: Expr,
    lanes: Expr,
    length: Expr,
    *,
    states: int,
    dtype: str,
    gate: str,
    emit: str,
    reverse: bool,
    has_reset: bool,
) -> tirx.PrimFunc:
    """Build ``outer_gates(w, a, x, c, dy, [reset,] first, last, kept, found)``.

    Arrays are those of `outer_products`, with the gradients `dy` of its output and `last` of its
    last state. A walk forward leaves the states that chunks begin with in `kept` (chunks, batch,
    heads, lanes, states); then each chunk is walked forward once more, which leaves the states
    before the gates, and back with the adjoint of the state. `found` (blocks, batch, length,
    heads, states), or without the last axis for a gate of the head, has the gradients by blocks of
    lanes.
    """
    nb, nh, nd, nl, N = batch, heads, lanes, length, states
    vector = next(n for n in (16, 8, 4, 2, 1) if N % n == 0)
    by_head = gate == "head"
    blocks, chunks = (nd + LANES - 1) // LANES, (nl + STEPS - 1) // STEPS
    row, single = LANES * N, (nb, nl, nh)

    def at(b: Expr, h: Expr, step: Expr) -> tuple[Expr, ...]:
        return (b, nl - 1 - step if reverse else step, h)

    def cell(where: tuple[Expr, ...], last: Expr) -> tuple[Expr, ...]:
        return (*where, last)

    def weight(w: tirx.Var, where: tuple[Expr, ...], n: Expr) -> Expr:
        return w[where if by_head else cell(where, n)]

    def gated(w: tirx.Var, reset: tirx.Var, where: tuple[Expr, ...], n: Expr, value: Expr) -> Expr:
        return unless(reset, where[:2], weight(w, where, n) * value, dtype, has_reset)

    def product(
        rows: tirx.Var, columns: tirx.Var, where: tuple[Expr, ...], lane: Expr, n: Expr
    ) -> Expr:
        return rows[cell(where, lane)] * columns[cell(where, n)]

    @T.prim_func(s_tir=True)
    def main(
        w: T.Buffer(single if by_head else (*single, N), dtype),
        a: T.Buffer((*single, N), dtype),
        x: T.Buffer((*single, nd), dtype),
        c: T.Buffer((*single, N), dtype),
        dy: T.Buffer((*single, nd), dtype),
        reset: T.Buffer((nb, nl), "int8"),
        first: T.Buffer((nb, nh, nd, N), dtype),
        last: T.Buffer((nb, nh, nd, N), dtype),
        kept: T.Buffer((chunks, nb, nh, nd, N), dtype),
        found: T.Buffer((blocks, *single) if by_head else (blocks, *single, N), dtype),
    ) -> None:
        T.func_attr(ATTRS)
        for r in T.parallel(nb * nh * blocks):
            with T.sblock("gates"):
                vr = T.axis.spatial(nb * nh * blocks, r)
                state = T.sblock_alloc_buffer((row,), dtype)
                history = T.sblock_alloc_buffer((STEPS * row,), dtype)
                total = T.sblock_alloc_buffer((N,), dtype)
                b = T.meta_var(vr // (nh * blocks))
                h = T.meta_var(vr // blocks % nh)
                block = T.meta_var(vr % blocks)
                width = T.meta_var(T.min(LANES, nd - block * LANES))
                for i in range(width):
                    for n in range(N):
                        state[i * N + n] = first[b, h, block * LANES + i, n]
                for k in range(chunks):
                    for i in range(width):
                        for n in range(N):
                            kept[k, b, h, block * LANES + i, n] = state[i * N + n]
                    for s in range(T.min(STEPS, nl - k * STEPS)):
                        here = T.meta_var(at(b, h, k * STEPS + s))
                        for i in range(width):
                            for m in range(N // vector):
                                for v in T.vectorized(vector):
                                    n = T.meta_var(m * vector + v)
                                    added = T.meta_var(product(x, a, here, block * LANES + i, n))
                                    if emit == "late":
                                        state[i * N + n] = gated(
                                            w, reset, here, n, state[i * N + n] + added
                                        )
                                    else:
                                        state[i * N + n] = (
                                            gated(w, reset, here, n, state[i * N + n]) + added
                                        )
                for i in range(width):
                    for n in range(N):
                        state[i * N + n] = last[b, h, block * LANES + i, n]
                for j in range(chunks):
                    k = T.meta_var(chunks - 1 - j)
                    steps = T.meta_var(T.min(STEPS, nl - k * STEPS))
                    for i in range(width):
                        for n in range(N):
                            history[i * N + n] = kept[k, b, h, block * LANES + i, n]
                    for s in range(steps):
                        here = T.meta_var(at(b, h, k * STEPS + s))
                        for i in range(width):
                            for m in range(N // vector):
                                for v in T.vectorized(vector):
                                    n = T.meta_var(m * vector + v)
                                    old = T.meta_var(s * row + i * N + n)
                                    added = T.meta_var(product(x, a, here, block * LANES + i, n))
                                    if emit == "late":
                                        history[old] = history[old] + added
                                    if s + 1 < steps:
                                        if emit == "late":
                                            history[old + row] = gated(
                                                w, reset, here, n, history[old]
                                            )
                                        else:
                                            history[old + row] = (
                                                gated(w, reset, here, n, history[old]) + added
                                            )
                    for z in range(steps):
                        s = T.meta_var(steps - 1 - z)
                        here = T.meta_var(at(b, h, k * STEPS + s))
                        for n in range(N):
                            total[n] = const(0, dtype)
                        for i in range(width):
                            for m in range(N // vector):
                                for v in T.vectorized(vector):
                                    n = T.meta_var(m * vector + v)
                                    now = T.meta_var(i * N + n)
                                    asked = T.meta_var(product(dy, c, here, block * LANES + i, n))
                                    if emit == "inclusive":
                                        state[now] = gated(w, reset, here, n, state[now] + asked)
                                    else:
                                        state[now] = gated(w, reset, here, n, state[now])
                                    total[n] = total[n] + unless(
                                        reset,
                                        here[:2],
                                        state[now] * history[s * row + now],
                                        dtype,
                                        has_reset,
                                    )
                                    if emit != "inclusive":
                                        state[now] = state[now] + asked
                        if by_head:
                            for n in range(N - 1):
                                total[0] = total[0] + total[n + 1]
                            found[block, here[0], here[1], here[2]] = total[0]
                        else:
                            for n in range(N):
                                found[block, here[0], here[1], here[2], n] = total[n]

    names = ["w", "a", "x", "c", "dy", *(["reset"] if has_reset else []), "first", "last"]
    return keep_parameters(main, [*names, "kept", "found"])
