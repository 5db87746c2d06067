"""ONNX's ``CausalConvWithState`` by operators of Relax."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvm_scan import tir
from tvm_scan.errors import ScanError
from tvm_scan.relax.import_onnx.shapes import fitted


def causal_conv(
    builder: relax.BlockBuilder, inputs: list[relax.Expr | None], attrs: dict[str, Any]
) -> relax.Tuple:
    """Convert the operator; it is no recurrence, but stands before one in most models.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to emit.
    inputs : list of relax.Expr or None
        Input, weight, and if given the bias and the past state.
    attrs : dict
        Of the node.

    Returns
    -------
    relax.Tuple
        The output, and the last inputs, for the next call.

    Raises
    ------
    ScanError
        If the activation is not one of ONNX's, or the inputs do not fit each other.
    """
    parts: list[Any] = [*inputs, None, None]
    x, weight, bias, past = parts[:4]
    activation = attrs.get("activation", "none")
    activation = activation.decode() if isinstance(activation, bytes) else str(activation)
    if activation not in ("none", "silu", "swish"):
        raise ScanError(
            "CausalConvWithState: expected an activation of none, silu or swish, got "
            f"{activation}; name one of them"
        )
    batch, channels, length = _extents("input", x)
    width = tir.as_int(_extents("weight", weight)[2])
    count = tir.as_int(_extents("weight", weight)[0] if tir.as_int(channels) is None else channels)
    if count is None or not width:
        raise ScanError(
            "CausalConvWithState: expected a constant number of channels and a constant width, "
            f"got weight of {list(_extents('weight', weight))}; give its shape"
        )

    def fit(name: str, value: relax.Expr, *shape: Any) -> relax.Expr:
        dtype = str(x.ty.dtype)
        return fitted(builder, "CausalConvWithState", name, value, shape, dtype)

    x = fit("input", x, batch, count, length)
    weight = fit("weight", weight, count, 1, width)
    padded = x
    if past is not None:
        past = fit("past_state", past, batch, count, width - 1)
    if past is not None and width > 1:
        padded = builder.emit(relax.op.concat([past, x], 2))
    elif width > 1:
        padded = builder.emit(relax.op.nn.pad(x, [0, 0, 0, 0, width - 1, 0]))
    y = builder.emit(relax.op.nn.conv1d(padded, weight, groups=count))
    if bias is not None:
        bias = fit("bias", bias, count)
        y = builder.emit(relax.op.add(y, builder.emit(relax.op.expand_dims(bias, [0, 2]))))
    if activation != "none":
        wide = builder.emit(relax.op.astype(y, "float32"))
        y = builder.emit(relax.op.astype(builder.emit(relax.op.nn.silu(wide)), str(x.ty.dtype)))
    state = builder.emit(relax.op.strided_slice(padded, [2], [length], [length + width - 1]))
    return relax.Tuple([y, state])


def _extents(name: str, value: relax.Expr) -> list[Any]:
    shape = value.ty.shape
    if not isinstance(shape, relax.ShapeExpr) or len(shape.values) != 3:
        raise ScanError(
            f"CausalConvWithState: expected {name} of three known extents, got {shape}; give its "
            "shape"
        )
    return list(shape.values)
