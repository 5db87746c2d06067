"""Running maxima: their values and positions, and the gradient of the values.

A running maximum is taken of keys: integers in the order of the values, with NaN above all of
them and both zeros equal. On integers the maximum is associative without exception, so a NaN
lasts, as in torch, whatever the plan. The annotations are evaluated by the script parser.
"""

from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.library.arguments import Expr, alloc_state

from .frame import ATTRS, Frame, carry_dtype, cast, const


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


def extremum(
    outer: Expr,
    inner: Expr,
    length: Expr,
    *,
    time_last: bool,
    dtype: str,
    smallest: bool,
    reverse: bool,
) -> tirx.PrimFunc:
    """Build ``extremum(X, V, I)``: the running extremum and where it was taken; of ties the latest.

    As `positions_packed`; below the step there is one more bit, for the sign of a zero, so that
    the value can be had back from the carry. For the same dtypes and lengths.
    """
    frame = Frame(outer, inner, length, time_last, reverse)
    P, Q, L = outer, inner, length
    at, wide = frame.at, carry_dtype(dtype)
    is_float = dtype != "int32"
    nan, top = const(0x7FC00000, "int32"), const((1 << 31) - 1, "int32")

    def packed(X: tirx.Var, here: tuple, step: Expr) -> Expr:
        key = T.Cast("int64", _key(X[here], dtype, smallest))
        low = T.shift_left(T.Cast("int64", step), const(1, "int64"))
        if is_float:
            value = cast(X[here], dtype, wide)
            minus = T.And(value == const(0, wide), T.reinterpret("int32", value) < 0)
            low = T.bitwise_or(low, T.Select(minus, const(1, "int64"), const(0, "int64")))
        return T.bitwise_or(T.shift_left(key, const(32, "int64")), low)

    def value_of(carry: Expr) -> Expr:
        key = T.Cast("int32", T.shift_right(carry, const(32, "int64")))
        ordered = T.bitwise_not(key) if smallest else key
        if not is_float:
            return ordered
        sign = T.shift_right(ordered, const(31, "int32"))
        bits = T.bitwise_xor(ordered, T.bitwise_and(sign, top))
        minus = T.Cast("int32", T.bitwise_and(carry, const(1, "int64")))
        # Only a zero has this bit set.
        bits = T.bitwise_or(bits, T.shift_left(minus, const(31, "int32")))
        bits = T.Select(key == top, nan, bits)
        return cast(T.reinterpret("float32", bits), wide, dtype)

    def step_of(carry: Expr) -> Expr:
        low = T.bitwise_and(carry, const((1 << 32) - 1, "int64"))
        return T.shift_right(low, const(1, "int64"))

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer(frame.shape, dtype),
        V: T.Buffer(frame.shape, dtype),
        I: T.Buffer(frame.shape, "int64"),
    ) -> None:
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
                    V[here] = value_of(C[vp, vq])
                    I[here] = frame.time(step_of(C[vp, vq]))

    return main


def extremum_gradient(
    outer: Expr,
    inner: Expr,
    length: Expr,
    *,
    time_last: bool,
    dtype: str,
    reverse: bool,
) -> tirx.PrimFunc:
    """Build ``extremum_gradient(G, I, Y)``: gradients, added up where `I` says.

    A running extremum is taken at one step until it is taken at a later one, and first at that
    step itself. So the walk against the extremum's adds up gradients, until it meets a step that
    names itself: that one gets the sum. `reverse` is that of the extremum.
    """
    frame = Frame(outer, inner, length, time_last, not reverse)
    P, Q, L, wide = outer, inner, length, carry_dtype(dtype)
    at = frame.at

    @T.prim_func(s_tir=True)
    def main(
        G: T.Buffer(frame.shape, dtype),
        I: T.Buffer(frame.shape, "int64"),
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
                    total = T.meta_var(C[vp, vq] + cast(G[here], dtype, wide))
                    taken = T.meta_var(I[here] == T.Cast("int64", frame.time(vt)))
                    Y[here] = cast(T.Select(taken, total, const(0, wide)), wide, dtype)
                    C[vp, vq] = T.Select(taken, const(0, wide), total)

    return main
