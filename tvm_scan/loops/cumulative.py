"""Cumulative sums and products, and sums of exponentials."""

from __future__ import annotations

from tvm import tirx

from tvm_scan import tir
from tvm_scan.loops.frame import Frame, framed
from tvm_scan.loops.writer import Loop, const


@framed
def cumulative(
    frame: Frame,
    *,
    dtype: str,
    op: str,
    exclusive: bool,
    source: str | None = None,
) -> tirx.PrimFunc:
    """Build ``cumulative(X, Y)``: the running sum (``op="add"``) or product (``"mul"``).

    `X` is of dtype `source`, that of `Y` unless said otherwise.
    """
    wide = tir.wide_dtype(dtype)
    with Loop() as loop:
        X = loop.array("X", frame.shape, source or dtype, wide)
        Y = loop.array("Y", frame.shape, dtype, wide)
        C = loop.state(frame.lanes, wide)
        with loop.lanes(frame.names, *frame.lanes):
            with loop.begin() as lane:
                C[lane] = 1 if op == "mul" else 0
            with loop.steps(frame.length) as (lane, step):
                here = frame.at(lane, step)
                if exclusive:
                    Y[here] = C[lane]
                C[lane] = C[lane] * X[here] if op == "mul" else C[lane] + X[here]
                if not exclusive:
                    Y[here] = C[lane]
    return loop.func


@framed
def logcumsumexp(
    frame: Frame,
    *,
    dtype: str,
) -> tirx.PrimFunc:
    """Build ``logcumsumexp(X, M, Y)`` from the running maximum `M`.

    ``s = exp(m[t-1] - m[t]) s + exp(x[t] - m[t])`` and ``y = m[t] + log(s)``: an affine
    recurrence whose gates and inputs are at most 1, so nothing overflows. One of the two is 1: a
    step has one exponential.
    """
    wide = tir.wide_dtype(dtype)
    one, zero = const(1, wide), const(0, wide)
    with Loop() as loop:
        X, M, Y = (loop.array(name, frame.shape, dtype, wide) for name in "XMY")
        C = loop.state(frame.lanes, wide)
        with loop.lanes(frame.names, *frame.lanes):
            with loop.begin() as lane:
                C[lane] = 0
            with loop.steps(frame.length) as (lane, step):
                here = frame.at(lane, step)
                x, now = X[here], M[here]
                before = M[frame.at(lane, tirx.max(step - 1, const(0, "int64")))]
                stays = before == now
                less = tirx.exp(tirx.Select(stays, x, before) - now)
                # Equals may both be infinite, whose difference is no number.
                decay = tirx.Select(stays, one, less)
                weight = tirx.Select(x == now, one, less)
                none = x == const(float("-inf"), wide)
                C[lane] = decay * C[lane] + tirx.Select(none, zero, weight)
                Y[here] = now + tirx.log(C[lane])
    return loop.func
