"""The laws of rounding errors of docs/numerics.md, which stand beside proofs over the reals."""

from __future__ import annotations

from typing import Any

from tvm_scan.algebra.literal import is_float

#: Family -> roundings of one step (0: none), and the size of the terms before they cancel.
ROUNDINGS: dict[str, tuple[int, str]] = {
    "reduce add": (1, "the sum of absolute values"),
    "reduce mul": (1, "the product"),
    "reduce max": (0, ""),
    "reduce min": (0, ""),
    "affine": (2, "the same recurrence on absolute values"),
    "clamp": (2, "all that was added so far, plus the bounds"),
    "bounded affine": (2, "the recurrence on absolute values of a state that its bounds lie below"),
    "logsumexp affine": (8, "the sum of the shifts' sizes, the largest level, and 1"),
    "linear fractional": (10, "the result, where all terms are positive; else there is no law"),
    "complex affine": (6, "the affine recurrence of the moduli"),
    "matrix affine": (4, "the affine recurrence of the row sums of absolute values"),
}


def rounding_law(algebra: Any, dtypes: tuple[str, ...]) -> str:
    """The law of a family as text; empty where nothing is rounded."""
    if not any(is_float(dtype) for dtype in dtypes):
        return ""
    if algebra.name == "segmented":
        inner = rounding_law(algebra.inner, dtypes)
        return inner and f"{inner}, without the resets"
    if algebra.name == "interleaved":
        return rounding_law(algebra.inner, dtypes)
    name = f"{algebra.name} {algebra.op}" if algebra.name == "reduce" else algebra.name
    if name not in ROUNDINGS:
        return "the error is the operator's author's"
    k, size = ROUNDINGS[name]
    if k == 0:
        return "nothing is rounded"
    return f"|scan - exact| <= {k} (t + c) u M, M {size} (docs/numerics.md)"
