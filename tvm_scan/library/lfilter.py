"""Recursive digital filters: the loop behind ``tvm_scan.torch.lfilter``.

The annotations below are evaluated by the script parser (see `cumulative`).
"""

from tvm import tirx
from tvm.script import tirx as T

from .arguments import FLOAT_DTYPES, FUNC_ATTRS, Expr, check_choice

__all__ = ["lfilter"]


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

    Returns
    -------
    PrimFunc

    Raises
    ------
    ValueError
        For another dtype, or no taps.
    """
    check_choice("lfilter", "dtype", dtype, FLOAT_DTYPES)
    if taps < 1:
        raise ValueError(f"lfilter: expected at least one coefficient, got {taps}; pass a[0]")
    N, C, L, zero = outer, channels, length, tirx.const(0, dtype)

    def delayed(buffer: tirx.Var, n: Expr, c: Expr, t: Expr, back: int) -> Expr:
        if not back:
            return buffer[n, c, t]
        return T.if_then_else(t >= back, buffer[n, c, t - back], zero)

    def step(X: tirx.Var, A: tirx.Var, B: tirx.Var, Y: tirx.Var, *place: Expr) -> Expr:
        n, c, t = place
        value = B[c, 0] * X[n, c, t]
        for back in range(1, taps):
            value = value + B[c, back] * delayed(X, n, c, t, back)
        for back in range(1, taps):
            value = value - A[c, back] * delayed(Y, n, c, t, back)
        return value / A[c, 0]

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((N, C, L), dtype),
        A: T.Buffer((C, taps), dtype),
        B: T.Buffer((C, taps), dtype),
        Y: T.Buffer((N, C, L), dtype),
    ) -> None:
        T.func_attr(FUNC_ATTRS)
        for n, c, t in T.grid(N, C, L):
            with T.sblock("scan"):
                vn, vc = T.axis.remap("SS", [n, c])
                vt = T.axis.scan(L, t)
                Y[vn, vc, vt] = step(X, A, B, Y, vn, vc, vt)

    return main
