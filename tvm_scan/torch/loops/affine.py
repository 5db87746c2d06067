"""``c = a c + x``, emitted in one of three ways that are each other's adjoints.

The annotations below are evaluated by the script parser, so this module must not postpone them.
"""

from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.library.arguments import Expr, alloc_state, keep_parameters

from .frame import ATTRS, Frame, carry_dtype, cast, const, unless


def affine(
    outer: Expr,
    inner: Expr,
    length: Expr,
    *,
    time_last: bool,
    dtype: str,
    emit: str,
    reverse: bool,
    has_initial: bool,
    has_reset: bool = False,
) -> tirx.PrimFunc:
    """Build ``affine(A, X, [R, H0,] Y)`` over the arrays of a `Frame`.

    `emit` is ``inclusive``: ``c = a c + x; y = c``, ``exclusive``: ``y = c; c = a c + x``, or
    ``late``: ``y = c + x; c = a y``, in which a gate acts after the step that it belongs to.
    Where `R` is not 0, the product with the gate is 0, whatever it would be.
    """
    frame = Frame(outer, inner, length, time_last, reverse)
    P, Q, L, wide = outer, inner, length, carry_dtype(dtype)
    at = frame.at

    def initial(H0: tirx.Var, p: Expr, q: Expr) -> Expr:
        return cast(H0[p, q], dtype, wide) if has_initial else const(0, wide)

    def gated(A: tirx.Var, R: tirx.Var, here: tuple[Expr, ...], carry: Expr) -> Expr:
        return unless(R, here, load(A, here) * carry, wide, has_reset)

    def load(buffer: tirx.Var, where: tuple[Expr, ...]) -> Expr:
        return cast(buffer[where], dtype, wide)

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer(frame.shape, dtype),
        X: T.Buffer(frame.shape, dtype),
        R: T.Buffer(frame.shape, "int8"),
        H0: T.Buffer(frame.state_shape, dtype),
        Y: T.Buffer(frame.shape, dtype),
    ) -> None:
        T.func_attr(ATTRS)
        C = T.meta_var(alloc_state(frame.state_shape, wide))
        for p, q in T.grid(P, Q):
            with T.sblock("init"):
                vp, vq = T.axis.remap("SS", [p, q])
                C[vp, vq] = initial(H0, vp, vq)
            for t in range(L):
                with T.sblock("scan"):
                    vp, vq = T.axis.remap("SS", [p, q])
                    vt = T.axis.scan(L, t)
                    here = T.meta_var(at(vp, vq, vt))
                    if emit == "late":
                        Y[here] = cast(C[vp, vq] + load(X, here), wide, dtype)
                        C[vp, vq] = gated(A, R, here, C[vp, vq] + load(X, here))
                    elif emit == "exclusive":
                        Y[here] = cast(C[vp, vq], wide, dtype)
                        C[vp, vq] = gated(A, R, here, C[vp, vq]) + load(X, here)
                    else:
                        C[vp, vq] = gated(A, R, here, C[vp, vq]) + load(X, here)
                        Y[here] = cast(C[vp, vq], wide, dtype)

    optional = (("R", has_reset), ("H0", has_initial))
    return keep_parameters(main, ["A", "X", *(name for name, given in optional if given), "Y"])
