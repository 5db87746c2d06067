"""Cumulative sum, product, maximum and minimum.

Two loop forms on purpose. The inclusive scan reads its own history, ``Y[t - 1]``; the exclusive
scan keeps one value per row and emits it before the update. Both say the same recurrence.

The annotations below are values that the script parser evaluates, so this module must not
postpone them (no ``from __future__ import annotations``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script import tirx as T

from .arguments import FUNC_ATTRS, NUMBER_DTYPES, Expr, check_choice, check_flags, make_extent

_COMBINE: dict[str, Callable[..., Any]] = {
    "cumsum": lambda earlier, later: earlier + later,
    "cumprod": lambda earlier, later: earlier * later,
    "cummax": lambda earlier, later: T.max(earlier, later),
    "cummin": lambda earlier, later: T.min(earlier, later),
}

_NUMPY_COMBINE: dict[str, Callable[..., Any]] = {
    "cumsum": np.add,
    "cumprod": np.multiply,
    # Not np.maximum: the loop computes `carry > x ? carry : x`, which a NaN passes through for
    # one step only (see the NaN rule in `cummax`).
    "cummax": lambda carry, x: np.where(carry > x, carry, x),
    "cummin": lambda carry, x: np.where(carry < x, carry, x),
}


def _identity(name: str, dtype: str) -> int | float:
    """Return the value that leaves every other value as it is."""
    if name in ("cumsum", "cumprod"):
        return 0 if name == "cumsum" else 1
    if dtype.startswith("float"):
        return float("-inf") if name == "cummax" else float("inf")
    limits = np.iinfo(dtype)
    return int(limits.min if name == "cummax" else limits.max)


@dataclass(frozen=True)
class _Form:
    """The checked options of one cumulative function."""

    name: str
    rows: Expr
    length: Expr
    dtype: str
    time_first: bool
    reverse: bool

    @property
    def shape(self) -> tuple[Expr, Expr]:
        """The shape of the arrays."""
        return (self.length, self.rows) if self.time_first else (self.rows, self.length)

    @property
    def attrs(self) -> dict[str, object]:
        """Attributes of the function."""
        return {**FUNC_ATTRS, "global_symbol": self.name}

    def at(self, row: Expr, step: Expr) -> tuple[Expr, Expr]:
        """Return the indices of the element that the loop reaches at `step`."""
        time = self.length - 1 - step if self.reverse else step
        return (time, row) if self.time_first else (row, time)


def _history_loop(form: _Form) -> tirx.PrimFunc:
    """``Y[t] = combine(t > 0 ? Y[t - 1] : identity, X[t])``."""
    R, L, shape, dtype, attrs, at = (
        form.rows, form.length, form.shape, form.dtype, form.attrs, form.at
    )  # fmt: skip
    combine, identity = _COMBINE[form.name], tirx.const(_identity(form.name, dtype), dtype)

    @T.prim_func(s_tir=True)
    def history_rows(X: T.Buffer(shape, dtype), Y: T.Buffer(shape, dtype)) -> None:
        T.func_attr(attrs)
        for r, t in T.grid(R, L):
            with T.sblock("scan"):
                vr = T.axis.spatial(R, r)
                vt = T.axis.scan(L, t)
                T.reads(Y[at(vr, vt - 1)], X[at(vr, vt)])
                T.writes(Y[at(vr, vt)])
                Y[at(vr, vt)] = combine(
                    T.if_then_else(vt > 0, Y[at(vr, vt - 1)], identity), X[at(vr, vt)]
                )

    @T.prim_func(s_tir=True)
    def history_time_first(X: T.Buffer(shape, dtype), Y: T.Buffer(shape, dtype)) -> None:
        T.func_attr(attrs)
        for t, r in T.grid(L, R):
            with T.sblock("scan"):
                vt = T.axis.scan(L, t)
                vr = T.axis.spatial(R, r)
                T.reads(Y[at(vr, vt - 1)], X[at(vr, vt)])
                T.writes(Y[at(vr, vt)])
                Y[at(vr, vt)] = combine(
                    T.if_then_else(vt > 0, Y[at(vr, vt - 1)], identity), X[at(vr, vt)]
                )

    return history_time_first if form.time_first else history_rows


def _state_loop(form: _Form) -> tirx.PrimFunc:
    """``Y[t] = carry; carry = combine(carry, X[t])``."""
    R, L, shape, dtype, attrs, at = (
        form.rows, form.length, form.shape, form.dtype, form.attrs, form.at
    )  # fmt: skip
    combine, identity = _COMBINE[form.name], tirx.const(_identity(form.name, dtype), dtype)

    @T.prim_func(s_tir=True)
    def state_rows(X: T.Buffer(shape, dtype), Y: T.Buffer(shape, dtype)) -> None:
        T.func_attr(attrs)
        carry = T.sblock_alloc_buffer((R,), dtype)
        for r in range(R):
            with T.sblock("init"):
                vr = T.axis.spatial(R, r)
                T.reads()
                T.writes(carry[vr])
                carry[vr] = identity
            for t in range(L):
                with T.sblock("scan"):
                    vr = T.axis.spatial(R, r)
                    vt = T.axis.scan(L, t)
                    T.reads(carry[vr], X[at(vr, vt)])
                    T.writes(Y[at(vr, vt)], carry[vr])
                    Y[at(vr, vt)] = carry[vr]
                    carry[vr] = combine(carry[vr], X[at(vr, vt)])

    @T.prim_func(s_tir=True)
    def state_time_first(X: T.Buffer(shape, dtype), Y: T.Buffer(shape, dtype)) -> None:
        T.func_attr(attrs)
        carry = T.sblock_alloc_buffer((R,), dtype)
        for r in range(R):
            with T.sblock("init"):
                vr = T.axis.spatial(R, r)
                T.reads()
                T.writes(carry[vr])
                carry[vr] = identity
        for t, r in T.grid(L, R):
            with T.sblock("scan"):
                vt = T.axis.scan(L, t)
                vr = T.axis.spatial(R, r)
                T.reads(carry[vr], X[at(vr, vt)])
                T.writes(Y[at(vr, vt)], carry[vr])
                Y[at(vr, vt)] = carry[vr]
                carry[vr] = combine(carry[vr], X[at(vr, vt)])

    return state_time_first if form.time_first else state_rows


@lru_cache(maxsize=None, typed=True)
def _cumulative(
    name: str,
    rows: int | None,
    length: int | None,
    dtype: str,
    axis: int,
    reverse: bool,
    exclusive: bool,
) -> tirx.PrimFunc:
    check_choice(name, "dtype", dtype, NUMBER_DTYPES)
    check_choice(name, "axis", axis, (-1, 0, 1))
    check_flags(name, reverse=reverse, exclusive=exclusive)
    R, L = make_extent(name, "rows", rows), make_extent(name, "length", length)
    form = _Form(name, R, L, dtype, axis == 0, reverse)
    return _state_loop(form) if exclusive else _history_loop(form)


def _cumulative_reference(
    name: str, x: np.ndarray, axis: int, reverse: bool, exclusive: bool
) -> np.ndarray:
    x = np.asarray(x)
    dtype = np.dtype(np.float64) if x.dtype.kind == "f" else x.dtype
    steps = np.moveaxis(x.astype(dtype), axis, 0)
    y = np.empty_like(steps)
    carry = np.full(steps.shape[1:], _identity(name, dtype.name), dtype)
    times = range(len(steps))
    with np.errstate(all="ignore"):
        for t in reversed(times) if reverse else times:
            after = _NUMPY_COMBINE[name](carry, steps[t])
            y[t] = carry if exclusive else after
            carry = after
    return np.moveaxis(y, 0, axis)


def cumsum(
    rows: int | None,
    length: int | None,
    dtype: str = "float32",
    *,
    axis: int = -1,
    reverse: bool = False,
    exclusive: bool = False,
) -> tirx.PrimFunc:
    """Build the sequential cumulative sum ``y[t] = y[t-1] + x[t]``, ``y[-1] = 0``.

    Parameters
    ----------
    rows, length : int or None
        Number of independent rows and of time steps, 0 or more. None makes the extent symbolic:
        the function then takes any size.
    dtype : str
        ``float32``, ``float64``, ``int32`` or ``int64``. Integers wrap around.
    axis : int
        Where time lies: -1 or 1 for arrays of shape (rows, length), 0 for (length, rows).
    reverse : bool
        Scan from the last step to the first.
    exclusive : bool
        Emit the value before the update: the first emitted element is the identity.

    Returns
    -------
    tirx.PrimFunc
        ``cumsum(X, Y)``: both of one shape and of `dtype`; `Y` is written.

    Raises
    ------
    ValueError
        For an unknown dtype or axis, a negative or non-integer size, or a flag that is no bool.
    """
    return _cumulative("cumsum", rows, length, dtype, axis, reverse, exclusive)


def cumprod(
    rows: int | None,
    length: int | None,
    dtype: str = "float32",
    *,
    axis: int = -1,
    reverse: bool = False,
    exclusive: bool = False,
) -> tirx.PrimFunc:
    """Build the sequential cumulative product ``y[t] = y[t-1] * x[t]``, ``y[-1] = 1``.

    Parameters, result and errors are those of `cumsum`.
    """
    return _cumulative("cumprod", rows, length, dtype, axis, reverse, exclusive)


def cummax(
    rows: int | None,
    length: int | None,
    dtype: str = "float32",
    *,
    axis: int = -1,
    reverse: bool = False,
    exclusive: bool = False,
) -> tirx.PrimFunc:
    """Build the sequential running maximum ``y[t] = max(y[t-1], x[t])``.

    ``y[-1]`` is minus infinity, or the smallest integer. Parameters, result and errors are those
    of `cumsum`.

    Notes
    -----
    NaN: on the CPU ``max(carry, x)`` is ``carry > x ? carry : x``, so a NaN is emitted at its own
    step and the next step starts afresh from ``x``; on CUDA it is ``fmax``, which skips a NaN.
    Neither is ``numpy.maximum``, whose NaN lasts. With NaN the operator is not associative; data
    that may hold NaN should be masked first.
    """
    return _cumulative("cummax", rows, length, dtype, axis, reverse, exclusive)


def cummin(
    rows: int | None,
    length: int | None,
    dtype: str = "float32",
    *,
    axis: int = -1,
    reverse: bool = False,
    exclusive: bool = False,
) -> tirx.PrimFunc:
    """Build the sequential running minimum ``y[t] = min(y[t-1], x[t])``.

    ``y[-1]`` is infinity, or the largest integer. Parameters, result and errors are those of
    `cumsum`; for NaN see `cummax`.
    """
    return _cumulative("cummin", rows, length, dtype, axis, reverse, exclusive)


def cumsum_reference(
    x: np.ndarray, *, axis: int = -1, reverse: bool = False, exclusive: bool = False
) -> np.ndarray:
    """Compute `cumsum` step after step in NumPy: floats in float64, integers in their own dtype.

    `x` may have any number of axes. The result has the shape of `x`.
    """
    return _cumulative_reference("cumsum", x, axis, reverse, exclusive)


def cumprod_reference(
    x: np.ndarray, *, axis: int = -1, reverse: bool = False, exclusive: bool = False
) -> np.ndarray:
    """Compute `cumprod` step after step in NumPy; see `cumsum_reference`."""
    return _cumulative_reference("cumprod", x, axis, reverse, exclusive)


def cummax_reference(
    x: np.ndarray, *, axis: int = -1, reverse: bool = False, exclusive: bool = False
) -> np.ndarray:
    """Compute `cummax` step after step in NumPy, with the CPU's NaN rule (see `cummax`)."""
    return _cumulative_reference("cummax", x, axis, reverse, exclusive)


def cummin_reference(
    x: np.ndarray, *, axis: int = -1, reverse: bool = False, exclusive: bool = False
) -> np.ndarray:
    """Compute `cummin` step after step in NumPy, with the CPU's NaN rule (see `cummax`)."""
    return _cumulative_reference("cummin", x, axis, reverse, exclusive)
