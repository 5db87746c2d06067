"""ONNX's ``CausalConvWithState`` by operators of Relax."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvm_scan import tir
from tvm_scan.relax.import_onnx.shapes import fitted, text_attribute, three_extents, wrong

_OPERATOR = "CausalConvWithState"


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
    activation = text_attribute(attrs, "activation", "none")
    if activation not in ("none", "silu", "swish"):
        expected = "an activation of none, silu or swish"
        raise wrong(_OPERATOR, expected, activation, "name one of them")
    batch, channels, length = three_extents(_OPERATOR, "input", x)
    of_weight = three_extents(_OPERATOR, "weight", weight)
    width = tir.as_int(of_weight[2])
    count = tir.as_int(of_weight[0] if tir.as_int(channels) is None else channels)
    if count is None or not width:
        expected = "a constant number of channels and a constant width"
        raise wrong(_OPERATOR, expected, f"weight of {of_weight}", "give its shape")

    def fit(name: str, value: relax.Expr, *shape: Any) -> relax.Expr:
        dtype = str(x.ty.dtype)
        return fitted(builder, _OPERATOR, name, value, shape, dtype)

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
