"""Cumulative sums and products, and sums of exponentials.

The annotations are evaluated by the script parser.
"""

from collections.abc import Callable

from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.library.arguments import Expr, alloc_state, keep_parameters

from .frame import ATTRS, Frame, carry_dtype, cast, const


def _running(
    frame: Frame,
    dtype: str,
    start: float,
    advance: Callable[..., Expr],
    emit: Callable[..., Expr],
    *,
    exclusive: bool = False,
    has_top: bool = False,
) -> tirx.PrimFunc:
    """Build the walk ``c = advance(c, X, M, p, q, t); Y = emit(c, M, p, q, t)``.

    The carry begins with `start`; with `exclusive` a step emits before it advances; without
    `has_top` there is no `M`. Reading and rounding are left to the two functions.
    """
    P, Q, L, wide = frame.outer, frame.inner, frame.length, carry_dtype(dtype)

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
                C[vp, vq] = const(start, wide)
            for t in range(L):
                with T.sblock("scan"):
                    vp, vq = T.axis.remap("SS", [p, q])
                    vt = T.axis.scan(L, t)
                    if exclusive:
                        Y[frame.at(vp, vq, vt)] = emit(C[vp, vq], M, vp, vq, vt)
                        C[vp, vq] = advance(C[vp, vq], X, M, vp, vq, vt)
                    else:
                        C[vp, vq] = advance(C[vp, vq], X, M, vp, vq, vt)
                        Y[frame.at(vp, vq, vt)] = emit(C[vp, vq], M, vp, vq, vt)

    return keep_parameters(main, ["X", *(["M"] if has_top else []), "Y"])


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
    wide = carry_dtype(dtype)

    def advance(carry: Expr, X: tirx.Var, _: tirx.Var, p: Expr, q: Expr, t: Expr) -> Expr:
        value = cast(X[frame.at(p, q, t)], dtype, wide)
        return carry * value if op == "mul" else carry + value

    def emit(carry: Expr, *_: Expr) -> Expr:
        return cast(carry, wide, dtype)

    start = 1 if op == "mul" else 0
    return _running(frame, dtype, start, advance, emit, exclusive=exclusive)


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
    wide, at = carry_dtype(dtype), frame.at

    def load(buffer: tirx.Var, where: tuple[Expr, ...]) -> Expr:
        return cast(buffer[where], dtype, wide)

    def decay(M: tirx.Var, p: Expr, q: Expr, t: Expr) -> Expr:
        now = load(M, at(p, q, t))
        before = load(M, at(p, q, T.max(t - 1, const(0, "int64"))))
        # Equal maxima may both be infinite, whose difference is no number.
        return T.Select(before == now, const(1, wide), T.exp(before - now))

    def term(X: tirx.Var, M: tirx.Var, here: tuple[Expr, ...]) -> Expr:
        x, m = load(X, here), load(M, here)
        small = const(float("-inf"), wide)
        weight = T.Select(x == m, const(1, wide), T.exp(x - m))
        return T.Select(x == small, const(0, wide), weight)

    def advance(carry: Expr, X: tirx.Var, M: tirx.Var, p: Expr, q: Expr, t: Expr) -> Expr:
        return decay(M, p, q, t) * carry + term(X, M, at(p, q, t))

    def emit(carry: Expr, M: tirx.Var, p: Expr, q: Expr, t: Expr) -> Expr:
        return cast(load(M, at(p, q, t)) + T.log(carry), wide, dtype)

    return _running(frame, dtype, 0, advance, emit, has_top=True)
