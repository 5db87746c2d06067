"""The exponential moving average ``h[t] = (1 - alpha) h[t-1] + alpha x[t]``.

The loop reads its own history; time is an opaque axis, as in loops that TVM's schedules leave
alone. The annotations below are evaluated by the script parser (see `cumulative`).
"""

import math
from functools import lru_cache

import numpy as np
from tvm import tirx
from tvm.script import tirx as T

from .arguments import (
    FLOAT_DTYPES,
    FUNC_ATTRS,
    Expr,
    check_choice,
    keep_parameters,
    make_extent,
)

EMA_LAYOUTS = ("dl", "ld")
EMA_INITIAL = ("zero", "first", "buffer")


def _check_alpha(alpha: float | str) -> None:
    if alpha == "lane":
        return
    number = isinstance(alpha, (int, float)) and not isinstance(alpha, bool)
    if not number or not math.isfinite(float(alpha)):
        raise ValueError(
            f"ema: expected alpha to be a finite number or 'lane', got {alpha!r}; "
            f"pass the weight of the newest sample, or 'lane' for one weight per lane in a buffer"
        )


@lru_cache(maxsize=None, typed=True)
def ema(
    lanes: int | None,
    length: int | None,
    dtype: str = "float32",
    *,
    alpha: float | str = 0.1,
    initial: str = "zero",
    layout: str = "dl",
) -> tirx.PrimFunc:
    """Build the sequential exponential moving average.

    ``h[t] = (1 - alpha) * h[t-1] + alpha * x[t]``

    Parameters
    ----------
    lanes, length : int or None
        Number of independent averages and of time steps; None makes the extent symbolic.
    dtype : str
        ``float32`` or ``float64``.
    alpha : float or str
        The weight of the newest sample, or ``"lane"``: one weight per lane, read from a buffer.
    initial : str
        What ``h[-1]`` is: ``"zero"``; ``"first"``, the first sample of the lane (so that the
        average starts at that sample); ``"buffer"``, read from a buffer.
    layout : str
        ``"dl"``: arrays of shape (lanes, length). ``"ld"``: (length, lanes).

    Returns
    -------
    tirx.PrimFunc
        ``ema(X, [ALPHA,] [H0,] H)``. ``ALPHA`` and ``H0`` have shape (lanes,) and are present
        for ``alpha="lane"`` and ``initial="buffer"``; `H` has the shape of `X` and is written.

    Raises
    ------
    ValueError
        For an argument outside these choices.
    """
    check_choice("ema", "dtype", dtype, FLOAT_DTYPES)
    check_choice("ema", "initial", initial, EMA_INITIAL)
    check_choice("ema", "layout", layout, EMA_LAYOUTS)
    _check_alpha(alpha)
    D = make_extent("ema", "lanes", lanes)
    L = make_extent("ema", "length", length)
    time_first = layout == "ld"
    shape = (L, D) if time_first else (D, L)
    attrs = {**FUNC_ATTRS, "global_symbol": "ema"}

    def at(lane: Expr, time: Expr) -> tuple[Expr, Expr]:
        return (time, lane) if time_first else (lane, time)

    def average(before: Expr, x: Expr, lane_alpha: Expr) -> Expr:
        if isinstance(alpha, str):
            return (tirx.const(1, dtype) - lane_alpha) * before + lane_alpha * x
        # Rounded once here, from float64, rather than at every step.
        return tirx.const(1 - alpha, dtype) * before + tirx.const(alpha, dtype) * x

    def start(first: Expr, buffer: Expr) -> Expr:
        return {"zero": tirx.const(0, dtype), "first": first, "buffer": buffer}[initial]

    @T.prim_func(s_tir=True)
    def lane_major(
        X: T.Buffer(shape, dtype),
        ALPHA: T.Buffer((D,), dtype),
        H0: T.Buffer((D,), dtype),
        H: T.Buffer(shape, dtype),
    ) -> None:
        T.func_attr(attrs)
        for d, t in T.grid(D, L):
            with T.sblock("average"):
                vd = T.axis.spatial(D, d)
                vt = T.axis.opaque(L, t)
                H[at(vd, vt)] = average(
                    T.if_then_else(vt > 0, H[at(vd, vt - 1)], start(X[at(vd, T.int64(0))], H0[vd])),
                    X[at(vd, vt)],
                    ALPHA[vd],
                )

    @T.prim_func(s_tir=True)
    def time_major(
        X: T.Buffer(shape, dtype),
        ALPHA: T.Buffer((D,), dtype),
        H0: T.Buffer((D,), dtype),
        H: T.Buffer(shape, dtype),
    ) -> None:
        T.func_attr(attrs)
        for t, d in T.grid(L, D):
            with T.sblock("average"):
                vt = T.axis.opaque(L, t)
                vd = T.axis.spatial(D, d)
                H[at(vd, vt)] = average(
                    T.if_then_else(vt > 0, H[at(vd, vt - 1)], start(X[at(vd, T.int64(0))], H0[vd])),
                    X[at(vd, vt)],
                    ALPHA[vd],
                )

    present = ["X", "ALPHA"] if alpha == "lane" else ["X"]
    present += ["H0", "H"] if initial == "buffer" else ["H"]
    return keep_parameters(time_major if time_first else lane_major, present)


def ema_reference(
    x: np.ndarray,
    alpha: float | np.ndarray = 0.1,
    h0: np.ndarray | None = None,
    *,
    initial: str = "zero",
    layout: str = "dl",
) -> np.ndarray:
    """Compute `ema` step after step in float64.

    Parameters
    ----------
    x : numpy.ndarray
        Shape (lanes, length) or (length, lanes), by `layout`.
    alpha : float or numpy.ndarray
        A number, or shape (lanes,).
    h0 : numpy.ndarray, optional
        Shape (lanes,); used, and needed, when `initial` is ``"buffer"``.

    Returns
    -------
    numpy.ndarray
        float64, the shape of `x`.
    """
    check_choice("ema_reference", "initial", initial, EMA_INITIAL)
    if (initial == "buffer") != (h0 is not None):
        raise ValueError(
            f"ema_reference: expected h0 exactly when initial is 'buffer', got initial={initial!r} "
            f"and h0 {'absent' if h0 is None else 'given'}; pass both or neither"
        )
    axis = 0 if layout == "ld" else -1
    steps = np.moveaxis(np.asarray(x, np.float64), axis, 0)
    weight = np.asarray(alpha, np.float64)
    h = np.empty_like(steps)
    carry = np.zeros(steps.shape[1:])
    if initial == "first" and len(steps):
        carry = steps[0]
    elif h0 is not None:
        carry = np.asarray(h0, np.float64)
    for t in range(len(steps)):
        carry = (1 - weight) * carry + weight * steps[t]
        h[t] = carry
    return np.moveaxis(h, 0, axis)
