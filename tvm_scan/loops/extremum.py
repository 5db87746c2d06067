"""Running maxima and minima: their values and positions, and the gradient of the values.

As in NumPy and torch a NaN lasts: it wins over every number, and no comparison with it holds.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx

from tvm_scan import tir
from tvm_scan.loops.frame import Frame, framed
from tvm_scan.loops.writer import Loop, const


@framed
def extremum(
    frame: Frame,
    *,
    dtype: str,
    smallest: bool,
    has_values: bool = True,
    has_indices: bool = True,
) -> tirx.PrimFunc:
    """Build ``extremum(X, [V,] [I])``: the running maximum, or minimum, and where it was taken.

    Of ties the latest, of NaNs too. `I` is int64. Without `I` the values are the same, and the
    loop carries nothing else.
    """
    wide, is_float = tir.wide_dtype(dtype), "float" in dtype
    worst = (tirx.max_value if smallest else tirx.min_value)(wide)
    if is_float:
        worst = const(float("inf" if smallest else "-inf"), wide)
    with Loop() as loop:
        X = loop.array("X", frame.shape, dtype, wide)
        V = loop.array("V", frame.shape, dtype) if has_values else None
        I = loop.array("I", frame.shape, "int64") if has_indices else None
        best = loop.state(frame.lanes, wide, "best")
        taken = loop.state(frame.lanes, "int64", "taken") if has_indices else None
        with loop.lanes(frame.names, *frame.lanes):
            with loop.begin() as lane:
                # The first step wins over the worst value, also where it is as bad.
                best[lane] = worst
                if taken is not None:
                    taken[lane] = 0
            with loop.steps(frame.length) as (lane, step):
                here = frame.at(lane, step)
                wins = (tirx.LE if smallest else tirx.GE)(X[here], best[lane])
                if is_float:
                    wins = tirx.Or(tirx.isnan(X[here]), wins)
                if taken is not None:
                    taken[lane] = tirx.Select(wins, step, taken[lane])
                best[lane] = tirx.Select(wins, X[here], best[lane])
                if V is not None:
                    V[here] = best[lane]
                if I is not None and taken is not None:
                    I[here] = frame.time(taken[lane])
    return loop.func


@framed
def extremum_gradient(frame: Frame, *, dtype: str) -> tirx.PrimFunc:
    """Build ``extremum_gradient(G, I, Y)``: gradients, added up where `I` says.

    A running extremum is taken at one step until it is taken at a later one, and first at that
    step itself. So the scan against the extremum's adds up gradients, until it meets a step that
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
