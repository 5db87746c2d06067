"""Convolutions of torch in the dtype of their operands, where TVM 0.27 makes each one float32."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvm_scan import tir
from tvm_scan.relax.repairs.torch_casts import arguments_by_name, as_dtype, by_tvm

#: By the number of spatial axes: the operator and its transposed form.
_OPERATORS = {
    1: (relax.op.nn.conv1d, relax.op.nn.conv1d_transpose),
    2: (relax.op.nn.conv2d, relax.op.nn.conv2d_transpose),
    3: (relax.op.nn.conv3d, None),
}

#: Overloads that take the same arguments under the names of their schemas.
CONVOLUTIONS = (
    "conv1d.default",
    "conv2d.default",
    "conv3d.default",
    "conv_transpose1d.default",
    "conv_transpose2d.input",
    "convolution.default",
)


def convert_convolution(node: Any, importer: Any) -> relax.Expr:
    """Import a convolution; halves are summed in float32, as torch sums them.

    Parameters
    ----------
    node : torch.fx.Node
        A call of one of `CONVOLUTIONS`.
    importer : ExportedProgramImporter
        TVM's.

    Returns
    -------
    relax.Expr
        In the dtype of the operands.
    """
    builder, arguments = importer.block_builder, arguments_by_name(node)
    x, weight = importer.env[arguments["input"]], importer.env[arguments["weight"]]
    dtype, spatial = str(x.ty.dtype), len(x.ty.shape.values) - 2
    transposed = arguments.get("transposed", "output_padding" in arguments)
    operator = _OPERATORS.get(spatial, (None, None))[bool(transposed)]
    if dtype == "float32" or operator is None:
        return by_tvm(node, importer)
    wide = tir.wide_dtype(dtype)
    options = {"output_padding": arguments["output_padding"]} if transposed else {}
    result = operator(
        x,
        weight,
        strides=arguments["stride"],
        padding=arguments["padding"],
        dilation=arguments["dilation"],
        groups=arguments["groups"],
        out_dtype=wide,
        **options,
    )
    result = builder.emit(result)
    if arguments["bias"] is not None:
        bias = as_dtype(builder, importer.env[arguments["bias"]], wide)
        bias = builder.emit(relax.op.reshape(bias, (1, -1, *[1] * spatial)))
        result = builder.emit(relax.op.add(result, bias))
    return as_dtype(builder, result, dtype)
