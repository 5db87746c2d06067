"""Running maxima: their values and positions, and the gradient of the values.

A running maximum is taken of keys: integers in the order of the values, with NaN above all of
them and both zeros equal. On integers the maximum is associative without exception, so a NaN
lasts, as in NumPy and torch, whatever the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from tvm_scan import tir
from tvm_scan.loops.frame import Frame, framed
from tvm_scan.loops.writer import Cells, Loop, cast, const

__all__ = [
    "extremum",
    "extremum_gradient",
    "positions_of_keys",
    "positions_packed",
    "running_keys",
]

_LEAST = -(1 << 63)


def _key_dtype(dtype: str) -> str:
    return "int64" if dtype in ("float64", "int64") else "int32"


def _key(value: Expr, smallest: bool) -> Expr:
    """Order `value` among integers; for a minimum in the opposite order, NaN above all still."""
    dtype = tir.dtype_of(value)
    key_dtype, wide = _key_dtype(dtype), tir.wide_dtype(dtype)
    if dtype in ("int32", "int64"):
        return tirx.bitwise_not(value) if smallest else value
    number = cast(value, wide)
    bits = tirx.reinterpret(key_dtype, number)
    width = 64 if key_dtype == "int64" else 32
    magnitude = const((1 << (width - 1)) - 1, key_dtype)
    # The bits of a negative float grow with its magnitude; flipping them restores the order.
    ordered = bits ^ ((bits >> const(width - 1, key_dtype)) & magnitude)
    ordered = tirx.Select(number == const(0, wide), const(0, key_dtype), ordered)
    ordered = tirx.bitwise_not(ordered) if smallest else ordered
    return tirx.Select(tirx.isnan(number), magnitude, ordered)


def _largest(
    frame: Frame,
    arrays: dict[str, str],
    carry: str,
    least: int,
    element: Callable[[dict[str, Cells], tuple[Any, ...], Expr], Expr],
    emits: dict[str, Callable[[Expr], Expr]],
) -> tirx.PrimFunc:
    """Build ``c = max(c, element); emit``.

    Parameters
    ----------
    frame : Frame
        The axes.
    arrays : dict of str to str
        Dtypes of the parameters by name.
    carry : str
        Dtype of what is compared.
    least : int
        What is no larger than any element.
    element : callable
        What is compared: from the arrays, the indices of a step and its number.
    emits : dict of str to callable
        By array, what is written of the carry.
    """
    with Loop() as loop:
        cells = {name: loop.array(name, frame.shape, dtype) for name, dtype in arrays.items()}
        C = loop.state(frame.lanes, carry)
        with loop.lanes(frame.names, *frame.lanes):
            with loop.begin() as lane:
                C[lane] = least
            with loop.steps(frame.length) as (lane, step):
                here = frame.at(lane, step)
                C[lane] = tirx.max(C[lane], element(cells, here, step))
                for name, emit in emits.items():
                    cells[name][here] = emit(C[lane])
    return loop.func


@framed
def positions_packed(
    frame: Frame,
    *,
    dtype: str,
    smallest: bool,
) -> tirx.PrimFunc:
    """Build ``positions(X, I)``: where the running extremum was taken; of ties the latest.

    Key and step share an int64, so one maximum carries both. For dtypes of 32 bits and less, and
    lengths below 2^31.
    """

    def packed(cells: dict[str, Cells], here: tuple[Any, ...], step: Expr) -> Expr:
        return (cast(_key(cells["X"][here], smallest), "int64") << const(32, "int64")) | step

    def position(carry: Expr) -> Expr:
        return frame.time(carry & const((1 << 32) - 1, "int64"))

    arrays = {"X": dtype, "I": "int64"}
    return _largest(frame, arrays, "int64", _LEAST, packed, {"I": position})


@framed
def running_keys(
    frame: Frame,
    *,
    dtype: str,
    smallest: bool,
) -> tirx.PrimFunc:
    """Build ``running_keys(X, K)``: the largest key so far, for dtypes of 64 bits."""
    keys = _key_dtype(dtype)

    def key(cells: dict[str, Cells], here: tuple[Any, ...], _: Expr) -> Expr:
        return _key(cells["X"][here], smallest)

    return _largest(frame, {"X": dtype, "K": keys}, keys, _LEAST, key, {"K": lambda carry: carry})


@framed
def positions_of_keys(
    frame: Frame,
    *,
    dtype: str,
    smallest: bool,
) -> tirx.PrimFunc:
    """Build ``positions(X, K, I)``: the latest step so far whose key is the running one."""

    def hit(cells: dict[str, Cells], here: tuple[Any, ...], step: Expr) -> Expr:
        taken = _key(cells["X"][here], smallest) == cells["K"][here]
        return tirx.Select(taken, step, const(0, "int64"))

    arrays = {"X": dtype, "K": _key_dtype(dtype), "I": "int64"}
    return _largest(frame, arrays, "int64", 0, hit, {"I": frame.time})


@framed
def extremum(
    frame: Frame,
    *,
    dtype: str,
    smallest: bool,
) -> tirx.PrimFunc:
    """Build ``extremum(X, V, I)``: the running extremum and where it was taken; of ties the latest.

    As `positions_packed`; below the step there is one more bit, for the sign of a zero, so that
    the value can be had back from the carry. For the same dtypes and lengths.
    """
    wide, is_float = tir.wide_dtype(dtype), dtype != "int32"
    nan, top = const(0x7FC00000, "int32"), const((1 << 31) - 1, "int32")

    def packed(cells: dict[str, Cells], here: tuple[Any, ...], step: Expr) -> Expr:
        key = cast(_key(cells["X"][here], smallest), "int64")
        low = tirx.Cast("int64", step) << const(1, "int64")
        if is_float:
            value = cast(cells["X"][here], wide)
            minus = tirx.And(value == const(0, wide), tirx.reinterpret("int32", value) < 0)
            low = low | tirx.Select(minus, const(1, "int64"), const(0, "int64"))
        return (key << const(32, "int64")) | low

    def value_of(carry: Expr) -> Expr:
        key = cast(carry >> const(32, "int64"), "int32")
        ordered = tirx.bitwise_not(key) if smallest else key
        if not is_float:
            return ordered
        bits = ordered ^ ((ordered >> const(31, "int32")) & top)
        # Only a zero has this bit set.
        bits = bits | (cast(carry & const(1, "int64"), "int32") << const(31, "int32"))
        return tirx.reinterpret("float32", tirx.Select(key == top, nan, bits))

    def position(carry: Expr) -> Expr:
        return frame.time((carry & const((1 << 32) - 1, "int64")) >> const(1, "int64"))

    arrays = {"X": dtype, "V": dtype, "I": "int64"}
    return _largest(frame, arrays, "int64", _LEAST, packed, {"V": value_of, "I": position})


@framed
def extremum_gradient(frame: Frame, *, dtype: str) -> tirx.PrimFunc:
    """Build ``extremum_gradient(G, I, Y)``: gradients, added up where `I` says.

    A running extremum is taken at one step until it is taken at a later one, and first at that
    step itself. So the walk against the extremum's adds up gradients, until it meets a step that
    names itself: that one gets the sum. The frame is that of the extremum.
    """
    back, wide = replace(frame, reverse=not frame.reverse), tir.wide_dtype(dtype)
    with Loop() as loop:
        G = loop.array("G", frame.shape, dtype, wide)
        I = loop.array("I", frame.shape, "int64")
        Y = loop.array("Y", frame.shape, dtype, wide)
        C = loop.state(frame.lanes, wide)
        with loop.lanes(frame.names, *frame.lanes):
            with loop.begin() as lane:
                C[lane] = 0
            with loop.steps(frame.length) as (lane, step):
                here = back.at(lane, step)
                total, taken = C[lane] + G[here], I[here] == tirx.Cast("int64", back.time(step))
                Y[here] = tirx.Select(taken, total, const(0, wide))
                C[lane] = tirx.Select(taken, const(0, wide), total)
    return loop.func
