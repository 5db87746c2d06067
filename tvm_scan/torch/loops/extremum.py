"""Running maxima: their values and positions, and the gradient of the values.

A running maximum is taken of keys: integers in the order of the values, with NaN above all of
them and both zeros equal. On integers the maximum is associative without exception, so a NaN
lasts, as in torch, whatever the plan. The annotations are evaluated by the script parser.
"""

from collections.abc import Callable, Mapping

from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.library.arguments import Expr, alloc_state, keep_parameters

from .frame import ATTRS, Frame, carry_dtype, cast, const

_LEAST = -(1 << 63)


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


#: From an element of the input, its indices, the step and the array of keys: what is compared.
_Element = Callable[[tirx.Var, tuple[Expr, ...], Expr, tirx.Var], Expr]


def _largest(
    frame: Frame,
    dtype: str,
    carry: str,
    least: int,
    element: _Element,
    emits: Mapping[str, Callable[[Expr], Expr]],
    *,
    reads_keys: bool = False,
) -> tirx.PrimFunc:
    """Build the walk ``c = max(c, element); emit`` over `X`, and what it reads and writes.

    Parameters
    ----------
    frame : Frame
        The axes.
    dtype, carry : str
        Of the input, and of what is compared and of keys.
    least : int
        What is no larger than any element.
    element : callable
        What is compared.
    emits : mapping
        By array, what is written of the carry: values `V`, keys `K`, positions `I`.
    reads_keys : bool
        Whether the element reads keys of `K`.
    """
    P, Q, L = frame.outer, frame.inner, frame.length
    at, keys = frame.at, _key_dtype(dtype)

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer(frame.shape, dtype),
        K: T.Buffer(frame.shape, keys),
        V: T.Buffer(frame.shape, dtype),
        I: T.Buffer(frame.shape, "int64"),
    ) -> None:
        T.func_attr(ATTRS)
        C = T.meta_var(alloc_state(frame.state_shape, carry))
        for p, q in T.grid(P, Q):
            with T.sblock("init"):
                vp, vq = T.axis.remap("SS", [p, q])
                C[vp, vq] = const(least, carry)
            for t in range(L):
                with T.sblock("scan"):
                    vp, vq = T.axis.remap("SS", [p, q])
                    vt = T.axis.scan(L, t)
                    here = T.meta_var(at(vp, vq, vt))
                    C[vp, vq] = T.max(C[vp, vq], element(X, here, vt, K))
                    if "V" in emits:
                        V[here] = emits["V"](C[vp, vq])
                    if "K" in emits:
                        K[here] = emits["K"](C[vp, vq])
                    if "I" in emits:
                        I[here] = emits["I"](C[vp, vq])

    kept = {"X", *emits, *(["K"] if reads_keys else [])}
    return keep_parameters(main, [name for name in "XKVI" if name in kept])


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

    def packed(X: tirx.Var, here: tuple[Expr, ...], step: Expr, _: tirx.Var) -> Expr:
        key = T.Cast("int64", _key(X[here], dtype, smallest))
        return T.bitwise_or(T.shift_left(key, const(32, "int64")), step)

    def position(carry: Expr) -> Expr:
        return frame.time(T.bitwise_and(carry, const((1 << 32) - 1, "int64")))

    return _largest(frame, dtype, "int64", _LEAST, packed, {"I": position})


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

    def key(X: tirx.Var, here: tuple[Expr, ...], _: Expr, __: tirx.Var) -> Expr:
        return _key(X[here], dtype, smallest)

    return _largest(frame, dtype, _key_dtype(dtype), _LEAST, key, {"K": lambda carry: carry})


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

    def hit(X: tirx.Var, here: tuple[Expr, ...], step: Expr, K: tirx.Var) -> Expr:
        taken = _key(X[here], dtype, smallest) == K[here]
        return T.Select(taken, step, const(0, "int64"))

    return _largest(frame, dtype, "int64", 0, hit, {"I": frame.time}, reads_keys=True)


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
    wide = carry_dtype(dtype)
    is_float = dtype != "int32"
    nan, top = const(0x7FC00000, "int32"), const((1 << 31) - 1, "int32")

    def packed(X: tirx.Var, here: tuple[Expr, ...], step: Expr, _: tirx.Var) -> Expr:
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

    def position(carry: Expr) -> Expr:
        low = T.bitwise_and(carry, const((1 << 32) - 1, "int64"))
        return frame.time(T.shift_right(low, const(1, "int64")))

    return _largest(frame, dtype, "int64", _LEAST, packed, {"V": value_of, "I": position})


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
