"""The states after sequences that are packed into one row, as a loop; see `tvm_scan.torch`.

The annotations are evaluated by the script parser.
"""

from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.library.arguments import FUNC_ATTRS, Expr, keep_parameters

__all__ = ["states_of_sequences"]


def states_of_sequences(
    length: Expr,
    heads: Expr,
    features: Expr,
    groups: Expr,
    states: Expr,
    ends: Expr,
    *,
    dtype: str,
    offsets_dtype: str,
    has_first: bool,
    has_reset: bool,
) -> tirx.PrimFunc:
    """Build ``states_of_sequences(gates, drive, B, [first, reset,] offsets, last)``.

    ``h = exp(gates) h + drive B'`` over the steps from one of the `ends` offsets to the next; over
    the others the state stays. So each sequence walks the whole row, and each is a lane of one
    affine recurrence. Only the sequence that begins with the row begins with `first`, if it has
    steps.
    """
    P, Q, R, N, L = ends - 1, heads, features, states, length
    one, zero = tirx.const(1, dtype), tirx.const(0, dtype)

    def start(offsets: tirx.Var, first: tirx.Var, s: Expr, h: Expr, d: Expr, n: Expr) -> Expr:
        if not has_first:
            return zero
        none = tirx.const(0, offsets_dtype)
        begins = T.And(offsets[s] == none, offsets[s + 1] > none)
        return T.Select(begins, first[0, h, d, n], zero)

    def inside(offsets: tirx.Var, s: Expr, t: Expr) -> Expr:
        now = t if offsets_dtype == "int64" else T.Cast(offsets_dtype, t)
        return T.And(offsets[s] <= now, now < offsets[s + 1])

    def kept(reset: tirx.Var, offsets: tirx.Var, s: Expr, t: Expr, value: Expr) -> Expr:
        if not has_reset:
            return value
        anew = T.And(inside(offsets, s, t), reset[0, t] != T.int8(0))
        return T.Select(anew, zero, value)

    @T.prim_func(private=True, s_tir=True)
    def main(
        gates: T.Buffer((1, L, Q), dtype),
        drive: T.Buffer((1, L, Q, R), dtype),
        B: T.Buffer((1, L, groups, N), dtype),
        first: T.Buffer((1, Q, R, N), dtype),
        reset: T.Buffer((1, L), "int8"),
        offsets: T.Buffer((ends,), offsets_dtype),
        last: T.Buffer((P, Q, R, N), dtype),
    ) -> None:
        T.func_attr(FUNC_ATTRS)
        for s, h, d, n in T.grid(P, Q, R, N):
            with T.sblock("init"):
                vs, vh, vd, vn = T.axis.remap("SSSS", [s, h, d, n])
                last[vs, vh, vd, vn] = start(offsets, first, vs, vh, vd, vn)
            for t in range(L):
                with T.sblock("step"):
                    vs, vh, vd, vn = T.axis.remap("SSSS", [s, h, d, n])
                    vt = T.axis.scan(L, t)
                    last[vs, vh, vd, vn] = kept(
                        reset,
                        offsets,
                        vs,
                        vt,
                        T.Select(inside(offsets, vs, vt), T.exp(gates[0, vt, vh]), one)
                        * last[vs, vh, vd, vn],
                    ) + T.Select(
                        inside(offsets, vs, vt),
                        drive[0, vt, vh, vd] * B[0, vt, vh // (Q // groups), vn],
                        zero,
                    )

    optional = (("first", has_first), ("reset", has_reset))
    names = ["gates", "drive", "B", *(n for n, given in optional if given), "offsets", "last"]
    return keep_parameters(main, names)
