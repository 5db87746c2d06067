"""ONNX's ``CausalConvWithState`` by operators of Relax."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvm_scan.errors import ScanError

__all__ = ["causal_conv"]


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
        If the activation is not one of ONNX's.
    """
    x, weight, bias, past = [*inputs, None, None][:4]
    activation = attrs.get("activation", "none")
    activation = activation.decode() if isinstance(activation, bytes) else str(activation)
    if activation not in ("none", "silu", "swish"):
        raise ScanError(
            "CausalConvWithState: expected an activation of none, silu or swish, got "
            f"{activation}; name one of them"
        )
    _, channels, length = x.ty.shape.values
    width = int(weight.ty.shape.values[2])
    padded = x
    if past is not None and width > 1:
        padded = builder.emit(relax.op.concat([past, x], 2))
    elif width > 1:
        padded = builder.emit(relax.op.nn.pad(x, [0, 0, 0, 0, width - 1, 0]))
    y = builder.emit(relax.op.nn.conv1d(padded, weight, groups=int(channels)))
    if bias is not None:
        y = builder.emit(relax.op.add(y, builder.emit(relax.op.expand_dims(bias, [0, 2]))))
    if activation != "none":
        wide = builder.emit(relax.op.astype(y, "float32"))
        y = builder.emit(relax.op.astype(builder.emit(relax.op.nn.silu(wide)), str(x.ty.dtype)))
    kept = builder.emit(relax.op.strided_slice(padded, [2], [length], [length + width - 1]))
    return relax.Tuple([y, kept])
