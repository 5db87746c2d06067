"""Signs that an expression has by its form."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Call

from tvm_scan import tir


def never_positive(x: Any) -> bool:
    """Return whether ``x`` is minus a magnitude by its form (or NaN)."""
    if isinstance(x, tirx.Sub):
        return _is_number(x.a, above=False) and _is_magnitude(x.b)
    if isinstance(x, tirx.Mul):
        pairs = ((x.a, x.b), (x.b, x.a))
        return any(_is_magnitude(a) and _is_number(b, above=False) for a, b in pairs)
    return isinstance(x, tirx.Min) and any(_is_number(part, above=False) for part in (x.a, x.b))


def _is_number(x: Any, *, above: bool) -> bool:
    """Return whether ``x`` is a constant of at least zero, or of at most zero."""
    if not isinstance(x, tirx.FloatImm):
        return False
    return bool(x.value >= 0 if above else x.value <= 0)


def _is_magnitude(x: Any) -> bool:
    if isinstance(x, tirx.Max):
        return any(_is_number(part, above=True) for part in (x.a, x.b))
    return isinstance(x, Call) and tir.call_name(x) in ("tirx.fabs", "prim.abs", "tirx.abs")
