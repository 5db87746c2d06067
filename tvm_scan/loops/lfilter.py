"""Recursive digital filters."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

from tvm_scan.loops.writer import Cells, Loop, const


def lfilter(
    outer: Expr, channels: Expr, length: Expr, *, taps: int, dtype: str = "float32"
) -> tirx.PrimFunc:
    """Build ``lfilter(X, A, B, Y)``, at rest before the first step.

    ``a[0] y[t] = b[0] x[t] + ... + b[k] x[t-k] - a[1] y[t-1] - ... - a[k] y[t-k]``. The feedback
    is a recurrence of order k: up to k = 4 its companion matrices are scanned, beyond that it
    stays a loop.

    Parameters
    ----------
    outer, channels, length : Expr
        Extents of ``X`` and ``Y``; each channel has a filter of its own.
    taps : int
        Coefficients of a filter, ``k + 1``: ``A`` and ``B`` are (channels, taps).
    dtype : str
        ``float32`` or ``float64``.
    """
    with Loop() as loop:
        X = loop.array("X", (outer, channels, length), dtype)
        A, B = (loop.array(name, (channels, taps), dtype) for name in "AB")
        Y = loop.array("Y", (outer, channels, length), dtype)
        with loop.lanes("nc", outer, channels), loop.steps(length) as ((n, c), t):

            def delayed(array: Cells, steps: int) -> Expr:
                before = tirx.op.if_then_else(t >= steps, array[n, c, t - steps], const(0, dtype))
                return before if steps else array[n, c, t]

            value = B[c, 0] * X[n, c, t]
            for steps in range(1, taps):
                value = value + B[c, steps] * delayed(X, steps)
            for steps in range(1, taps):
                value = value - A[c, steps] * delayed(Y, steps)
            Y[n, c, t] = value / A[c, 0]
    return loop.func
