"""Cumulative sums and products, and sums of exponentials.

The annotations are evaluated by the script parser.
"""

from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.library.arguments import Expr, alloc_state

from .frame import ATTRS, Frame, carry_dtype, cast, const


def cumulative(
    outer: Expr,
    inner: Expr,
    length: Expr,
    *,
    time_last: bool,
    dtype: str,
    op: str,
    reverse: bool,
    exclusive: bool,
) -> tirx.PrimFunc:
    """Build ``cumulative(X, Y)``: the running sum (``op="add"``) or product (``"mul"``)."""
    frame = Frame(outer, inner, length, time_last, reverse)
    P, Q, L, wide = outer, inner, length, carry_dtype(dtype)
    at = frame.at
    neutral = const(1 if op == "mul" else 0, wide)

    def combine(carry: Expr, value: Expr) -> Expr:
        return carry * value if op == "mul" else carry + value

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer(frame.shape, dtype), Y: T.Buffer(frame.shape, dtype)) -> None:
        T.func_attr(ATTRS)
        C = T.meta_var(alloc_state(frame.state_shape, wide))
        for p, q in T.grid(P, Q):
            with T.sblock("init"):
                vp, vq = T.axis.remap("SS", [p, q])
                C[vp, vq] = neutral
            for t in range(L):
                with T.sblock("scan"):
                    vp, vq = T.axis.remap("SS", [p, q])
                    vt = T.axis.scan(L, t)
                    here = T.meta_var(at(vp, vq, vt))
                    if exclusive:
                        Y[here] = cast(C[vp, vq], wide, dtype)
                        C[vp, vq] = combine(C[vp, vq], cast(X[here], dtype, wide))
                    else:
                        C[vp, vq] = combine(C[vp, vq], cast(X[here], dtype, wide))
                        Y[here] = cast(C[vp, vq], wide, dtype)

    return main


def logcumsumexp(
    outer: Expr,
    inner: Expr,
    length: Expr,
    *,
    time_last: bool,
    dtype: str,
    reverse: bool,
) -> tirx.PrimFunc:
    """Build ``logcumsumexp(X, M, Y)`` from the running maximum `M`.

    ``s = exp(m[t-1] - m[t]) s + exp(x[t] - m[t])`` and ``y = m[t] + log(s)``: an affine
    recurrence whose gates and inputs are at most 1, so nothing overflows.
    """
    frame = Frame(outer, inner, length, time_last, reverse)
    P, Q, L, wide = outer, inner, length, carry_dtype(dtype)
    at = frame.at

    def load(buffer: tirx.Var, where: tuple) -> Expr:
        return cast(buffer[where], dtype, wide)

    def decay(M: tirx.Var, p: Expr, q: Expr, t: Expr) -> Expr:
        now = load(M, at(p, q, t))
        before = load(M, at(p, q, T.max(t - 1, const(0, "int64"))))
        # Equal maxima may both be infinite, whose difference is no number.
        return T.Select(before == now, const(1, wide), T.exp(before - now))

    def term(X: tirx.Var, M: tirx.Var, here: tuple) -> Expr:
        x, m = load(X, here), load(M, here)
        small = const(float("-inf"), wide)
        weight = T.Select(x == m, const(1, wide), T.exp(x - m))
        return T.Select(x == small, const(0, wide), weight)

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer(frame.shape, dtype),
        M: T.Buffer(frame.shape, dtype),
        Y: T.Buffer(frame.shape, dtype),
    ) -> None:
        T.func_attr(ATTRS)
        C = T.meta_var(alloc_state(frame.state_shape, wide))
        for p, q in T.grid(P, Q):
            with T.sblock("init"):
                vp, vq = T.axis.remap("SS", [p, q])
                C[vp, vq] = const(0, wide)
            for t in range(L):
                with T.sblock("scan"):
                    vp, vq = T.axis.remap("SS", [p, q])
                    vt = T.axis.scan(L, t)
                    here = T.meta_var(at(vp, vq, vt))
                    C[vp, vq] = decay(M, vp, vq, vt) * C[vp, vq] + term(X, M, here)
                    Y[here] = cast(load(M, here) + T.log(C[vp, vq]), wide, dtype)

    return main
