"""Extents as operands of ONNX operators: TVM 0.27 refuses them in all but a few operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst

from tvm_scan import tir
from tvm_scan.errors import ScanError

#: Operators whose converters in TVM take a shape as it is.
_KNOWN_TO_TVM = {
    *("Cast", "CastLike", "Concat", "ConstantOfShape", "Equal", "Expand", "Gather", "Reshape"),
    *("Resize", "Shape", "Slice", "Squeeze", "Where"),
}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": tirx.truncdiv,
    "Mod": tirx.floormod,
    "Max": tirx.max,
    "Min": tirx.min,
}


def computed(
    operator: str, inputs: Sequence[relax.Expr | None], attributes: dict[str, Any]
) -> relax.Expr | None:
    """Compute with extents as extents, so that what is shaped by them has a known rank.

    Parameters
    ----------
    operator : str
        Of ONNX.
    inputs : sequence of relax.Expr or None
        Its operands.
    attributes : dict
        Of the node.

    Returns
    -------
    relax.ShapeExpr or None
        None where the operator is no arithmetic on extents and constants alone.

    Raises
    ------
    ScanError
        If a divisor is zero.
    """
    if not any(isinstance(value, relax.ShapeExpr) for value in inputs):
        return None
    if operator == "Identity":
        return inputs[0]
    operands = [_integers(value) for value in inputs]
    if operator not in _ARITHMETIC or None in operands or attributes.get("fmod"):
        return None
    present = [operand for operand in operands if operand is not None]
    count = max(map(len, present))
    if any(len(operand) not in (1, count) for operand in present):
        return None  # as tensors they are refused by their shapes
    divides = operator in ("Div", "Mod")
    if divides and any(tir.as_int(divisor) == 0 for divisor in present[1]):
        raise ScanError(
            f"from_onnx: expected {operator} of extents by what is not zero, got {present[1]}; "
            "correct the divisor"
        )
    wide = [operand * (count // len(operand)) for operand in present]
    step = _ARITHMETIC[operator]
    return relax.ShapeExpr([reduce(step, column) for column in zip(*wide, strict=True)])


def as_tensor(builder: relax.BlockBuilder, operator: str, value: relax.Expr) -> relax.Expr:
    """Give extents as a tensor of int64 to an operator that takes no extents."""
    if operator in _KNOWN_TO_TVM or not isinstance(value.ty, relax.ShapeType):
        return value
    known = [tir.as_int(n) for n in value.values] if isinstance(value, relax.ShapeExpr) else [None]
    if None not in known:
        return relax.const(np.asarray(known, "int64"))
    return builder.emit(relax.op.shape_to_tensor(value))


def _integers(value: relax.Expr | None) -> list[Any] | None:
    if isinstance(value, relax.ShapeExpr):
        return list(value.values)
    if not isinstance(value, GenericConst) or str(value.ty.dtype) != "int64" or value.ty.ndim > 1:
        return None
    return [tirx.IntImm("int64", int(n)) for n in value.value.numpy().reshape(-1)]
