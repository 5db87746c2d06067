"""Inputs of ONNX operators that must fit each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from tvm_scan import tir
from tvm_scan.errors import ScanError


def wrong(operator: str, expected: str, found: object, fix: str) -> ScanError:
    """Make the error of an operator whose inputs or attributes are not as they must be."""
    return ScanError(f"{operator}: expected {expected}, got {found}; {fix}")


def three_extents(operator: str, name: str, value: relax.Expr | None) -> list[Any]:
    """Return the shape of an input with three axes; raise where that is not known."""
    shape = None if value is None else value.ty.shape
    if not isinstance(shape, relax.ShapeExpr) or len(shape.values) != 3:
        raise wrong(operator, f"{name} of three known extents", shape, "give its shape")
    return list(shape.values)


def text_attribute(attrs: Mapping[str, Any], name: str, default: str) -> str:
    """Return an attribute that is text, which a node holds as bytes."""
    value = attrs.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def may_agree(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Return whether two shapes are of one rank, and no two known extents differ."""
    pairs = [(tir.as_int(a), tir.as_int(b)) for a, b in zip(left, right, strict=False)]
    return len(left) == len(right) and all(None in pair or pair[0] == pair[1] for pair in pairs)


def fitted(
    builder: relax.BlockBuilder,
    operator: str,
    name: str,
    value: relax.Expr,
    shape: Sequence[Any],
    dtype: str | None = None,
) -> relax.Expr:
    """Give an input in the shape that it must have; what only a call can tell, a call checks.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to emit the check.
    operator, name : str
        Of the operator and of its input, for messages.
    value : relax.Expr
        The input.
    shape : sequence of int or Expr
        What it must have.
    dtype : str, optional
        What it must have; its own if left out.

    Returns
    -------
    relax.Expr
        `value` itself where its shape is known to fit.

    Raises
    ------
    ScanError
        If it is known not to fit.
    """
    known_shape = getattr(value.ty, "shape", None)
    extents = list(known_shape.values) if isinstance(known_shape, relax.ShapeExpr) else None
    kind = str(value.ty.dtype)
    if kind != (dtype or kind) or (extents is not None and not may_agree(extents, shape)):
        expected = f"{name} as {dtype or kind} of {[*shape]}"
        raise wrong(operator, expected, f"{kind} of {extents}", "give it this shape and dtype")
    if extents is not None and all(map(tir.same_extent, extents, shape)):
        return value
    return builder.match_cast(value, relax.TensorType([*shape], kind))
