"""Cumulative sums and products, positions of running maxima, and sums of exponentials.

A running maximum is taken of keys: integers in the order of the values, with NaN above all of
them and both zeros equal. On integers the maximum is associative without exception, so a NaN
lasts, as in torch, whatever the plan. The annotations are evaluated by the script parser.
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


def _key_dtype(dtype: str) -> str:
    return "int64" if dtype in ("float64", "int64") else "int32"


def _key(value: Expr, dtype: str, smallest: bool) -> Expr:
    """Order `value` among integers; for a minimum in the opposite order, NaN above all still."""
    key_dtype = _key_dtype(dtype)
    if dtype in ("int32", "int64"):
        return T.bitwise_not(value) if smallest else value
    wide = cast(value, dtype, carry_dtype(dtype))
    bits = T.reinterpret(key_dtype, wide)
    width = 64 if key_dtype == "int64" else 32
    magnitude = const((1 << (width - 1)) - 1, key_dtype)
    # The bits of a negative float grow with its magnitude; flipping them restores the order.
    ordered = T.bitwise_xor(
        bits, T.bitwise_and(T.shift_right(bits, const(width - 1, key_dtype)), magnitude)
    )
    ordered = T.Select(wide == const(0, carry_dtype(dtype)), const(0, key_dtype), ordered)
    ordered = T.bitwise_not(ordered) if smallest else ordered
    return T.Select(T.isnan(wide), magnitude, ordered)


def positions_packed(
    outer: Expr,
    inner: Expr,
    length: Expr,
    *,
    time_last: bool,
    dtype: str,
    smallest: bool,
    reverse: bool,
) -> tirx.PrimFunc:
    """Build ``positions(X, I)``: where the running extremum was taken; of ties the latest.

    Key and step share an int64, so one maximum carries both. For dtypes of 32 bits and less, and
    lengths below 2^31.
    """
    frame = Frame(outer, inner, length, time_last, reverse)
    P, Q, L = outer, inner, length
    at = frame.at

    def packed(X: tirx.Var, here: tuple, step: Expr) -> Expr:
        key = T.Cast("int64", _key(X[here], dtype, smallest))
        return T.bitwise_or(T.shift_left(key, const(32, "int64")), step)

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer(frame.shape, dtype), I: T.Buffer(frame.shape, "int64")) -> None:
        T.func_attr(ATTRS)
        C = T.meta_var(alloc_state(frame.state_shape, "int64"))
        for p, q in T.grid(P, Q):
            with T.sblock("init"):
                vp, vq = T.axis.remap("SS", [p, q])
                C[vp, vq] = const(-(1 << 63), "int64")
            for t in range(L):
                with T.sblock("scan"):
                    vp, vq = T.axis.remap("SS", [p, q])
                    vt = T.axis.scan(L, t)
                    here = T.meta_var(at(vp, vq, vt))
                    C[vp, vq] = T.max(C[vp, vq], packed(X, here, vt))
                    I[here] = frame.time(T.bitwise_and(C[vp, vq], const((1 << 32) - 1, "int64")))

    return main


def running_keys(
    outer: Expr,
    inner: Expr,
    length: Expr,
    *,
    time_last: bool,
    dtype: str,
    smallest: bool,
    reverse: bool,
) -> tirx.PrimFunc:
    """Build ``running_keys(X, K)``: the largest key so far, for dtypes of 64 bits."""
    frame = Frame(outer, inner, length, time_last, reverse)
    P, Q, L, key_dtype = outer, inner, length, _key_dtype(dtype)
    at = frame.at

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer(frame.shape, dtype), K: T.Buffer(frame.shape, key_dtype)) -> None:
        T.func_attr(ATTRS)
        C = T.meta_var(alloc_state(frame.state_shape, key_dtype))
        for p, q in T.grid(P, Q):
            with T.sblock("init"):
                vp, vq = T.axis.remap("SS", [p, q])
                C[vp, vq] = const(-(1 << 63), key_dtype)
            for t in range(L):
                with T.sblock("scan"):
                    vp, vq = T.axis.remap("SS", [p, q])
                    vt = T.axis.scan(L, t)
                    here = T.meta_var(at(vp, vq, vt))
                    C[vp, vq] = T.max(C[vp, vq], _key(X[here], dtype, smallest))
                    K[here] = C[vp, vq]

    return main


def positions_of_keys(
    outer: Expr,
    inner: Expr,
    length: Expr,
    *,
    time_last: bool,
    dtype: str,
    smallest: bool,
    reverse: bool,
) -> tirx.PrimFunc:
    """Build ``positions(X, K, I)``: the latest step so far whose key is the running one."""
    frame = Frame(outer, inner, length, time_last, reverse)
    P, Q, L, key_dtype = outer, inner, length, _key_dtype(dtype)
    at = frame.at

    def hit(X: tirx.Var, K: tirx.Var, here: tuple, step: Expr) -> Expr:
        taken = _key(X[here], dtype, smallest) == K[here]
        return T.Select(taken, step, const(0, "int64"))

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer(frame.shape, dtype),
        K: T.Buffer(frame.shape, key_dtype),
        I: T.Buffer(frame.shape, "int64"),
    ) -> None:
        T.func_attr(ATTRS)
        C = T.meta_var(alloc_state(frame.state_shape, "int64"))
        for p, q in T.grid(P, Q):
            with T.sblock("init"):
                vp, vq = T.axis.remap("SS", [p, q])
                C[vp, vq] = const(0, "int64")
            for t in range(L):
                with T.sblock("scan"):
                    vp, vq = T.axis.remap("SS", [p, q])
                    vt = T.axis.scan(L, t)
                    here = T.meta_var(at(vp, vq, vt))
                    C[vp, vq] = T.max(C[vp, vq], hit(X, K, here, vt))
                    I[here] = frame.time(C[vp, vq])

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
