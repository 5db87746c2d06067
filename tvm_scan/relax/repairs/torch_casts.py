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


def arguments_by_name(node: Any) -> dict[str, Any]:
    """Return the arguments of a call in a graph of torch, with those that its schema adds."""
    values: dict[str, Any] = {a.name: a.default_value for a in node.target._schema.arguments}
    return values | dict(zip(values, node.args, strict=False)) | dict(node.kwargs)


def by_tvm(node: Any, importer: Any) -> Any:
    """Return what TVM's own converter makes of a call."""
    return importer.create_convert_map()[node.target.__name__](node)


def alike(operands: Sequence[Any], importer: Any, dtype: str) -> list[relax.Expr]:
    """Return tensors and numbers as tensors of one dtype."""
    return [
        as_dtype(importer.block_builder, importer.env[operand], dtype)
        if hasattr(operand, "op")
        else relax.const(operand, dtype)
        for operand in operands
    ]
