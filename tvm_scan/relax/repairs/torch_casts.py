"""Dtypes, casts and arguments, as the repairs of torch's operators need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

#: Takes the node and TVM's importer; gives an expression, or one for each result.
Converter = Callable[[Any, Any], Any]


def dtype_of(value: Any) -> str:
    """TVM's name of the dtype of a tensor of torch."""
    return str(value.dtype).removeprefix("torch.")


def as_dtype(builder: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    """Return a tensor in a dtype, cast where it has another."""
    return value if str(value.ty.dtype) == dtype else builder.emit(relax.op.astype(value, dtype))


def argument(node: Any, position: int | None, name: str) -> Any:
    """Return an argument of a node of torch, given by position or by name; None if by neither."""
    if position is None:
        return None
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def alike(operands: Sequence[Any], importer: Any, dtype: str) -> list[relax.Expr]:
    """Return tensors and numbers as tensors of one dtype."""
    return [
        as_dtype(importer.block_builder, importer.env[operand], dtype)
        if hasattr(operand, "op")
        else relax.const(operand, dtype)
        for operand in operands
    ]
