"""Chains of `tvm_scan.reads` by operators of Relax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax

from tvm_scan.reads import LEAST, Chain

_FUNCTIONS: Mapping[str, Callable[[relax.Expr], relax.Expr]] = {
    "exp": relax.op.exp,
    "sigmoid": relax.op.sigmoid,
    "softplus": relax.op.nn.softplus,
}


def value_of(
    builder: Any, chain: Chain, x: relax.Expr, parameters: Mapping[str, Any]
) -> relax.Expr:
    """Emit what a chain makes of a tensor.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Emits.
    chain : Chain
        The functions.
    x : relax.Expr
        Rows along the last axis.
    parameters : mapping
        Numbers and tensors by their names; those are (heads,), or have an axis for that of `x`
        after its heads, which are its third axis.

    Returns
    -------
    relax.Expr
        Like `x`.
    """
    dtype, axes, emit = str(x.ty.dtype), len(x.ty.shape.values), builder.emit
    for link in chain:
        by = parameters[link.by] if isinstance(link.by, str) else link.by
        if isinstance(by, (int, float)):
            by = relax.const(by, dtype)
        elif by is not None:
            # Heads are the third axis.
            missing = axes - 2 - len(by.ty.shape.values)
            by = emit(relax.op.expand_dims(by, -1)) if missing else by
        if link.name == "unit":
            squares = emit(relax.op.sum(emit(relax.op.multiply(x, x)), axis=-1, keepdims=True))
            norm = emit(relax.op.add(squares, relax.const(LEAST, dtype)))
            x = emit(relax.op.multiply(x, emit(relax.op.rsqrt(norm))))
        elif link.name in ("times", "plus"):
            x = emit((relax.op.multiply if link.name == "times" else relax.op.add)(x, by))
        elif link.name == "rate":
            x = emit(relax.op.multiply(emit(relax.op.exp(by)), x))
        else:
            x = emit(_FUNCTIONS[link.name](x))
    return x
