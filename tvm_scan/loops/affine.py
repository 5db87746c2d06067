"""``c = a c + x``, emitted in one of three ways that are each other's adjoints."""

from __future__ import annotations

from tvm import tirx

from tvm_scan import tir
from tvm_scan.loops.frame import Frame, framed
from tvm_scan.loops.writer import Loop, unless


@framed
def affine(
    frame: Frame,
    *,
    dtype: str,
    emit: str,
    has_initial: bool,
    has_reset: bool = False,
) -> tirx.PrimFunc:
    """Build ``affine(A, X, [R, H0,] Y)`` over the arrays of a `Frame`.

    `emit` is ``inclusive``: ``c = a c + x; y = c``, ``exclusive``: ``y = c; c = a c + x``, or
    ``late``: ``y = c + x; c = a y``, in which a gate acts after the step that it belongs to.
    Where `R` is not 0, the product with the gate is 0, whatever it would be.
    """
    wide = tir.wide_dtype(dtype)
    with Loop() as loop:
        A, X = (loop.array(name, frame.shape, dtype, wide) for name in "AX")
        R = loop.array("R", frame.shape, "int8") if has_reset else None
        H0 = loop.array("H0", frame.lanes, dtype, wide) if has_initial else None
        Y = loop.array("Y", frame.shape, dtype, wide)
        C = loop.state(frame.lanes, wide)
        with loop.lanes(frame.names, *frame.lanes):
            with loop.begin() as lane:
                C[lane] = 0 if H0 is None else H0[lane]
            with loop.steps(frame.length) as (lane, step):
                here = frame.at(lane, step)
                if emit == "late":
                    Y[here] = C[lane] + X[here]
                    C[lane] = unless(R, here, A[here] * (C[lane] + X[here]))
                elif emit == "exclusive":
                    Y[here] = C[lane]
                    C[lane] = unless(R, here, A[here] * C[lane]) + X[here]
                else:
                    C[lane] = unless(R, here, A[here] * C[lane]) + X[here]
                    Y[here] = C[lane]
    return loop.func
