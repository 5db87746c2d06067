"""``from_onnx``: an ONNX model as a Relax module, its recurrences as sequential loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.ir import GenericConst, IRModule

from tvm_scan import tir
from tvm_scan.errors import ScanError
from tvm_scan.relax.causal_conv import causal_conv
from tvm_scan.relax.loops import call_loop
from tvm_scan.relax.onnx_attention import linear_attention
from tvm_scan.relax.step import lower_step, time_loop

__all__ = ["from_onnx"]


def from_onnx(model: Any, shapes: dict[str, list[int]] | None = None) -> IRModule:
    """Import an ONNX model with its recurrences as sequential loops.

    Beyond what TVM 0.27 imports: ``Scan`` (opset 9 and later, every axis and direction, values of
    the enclosing graph), ``CumProd``, ``LinearAttention`` and ``CausalConvWithState`` (opset 27);
    ``CumSum`` walks from the end where it is told to.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.
    shapes : dict of str to list of int, optional
        Shapes of inputs that the model leaves open.

    Returns
    -------
    IRModule
        For ``tvm.compile(mod, target, relax_pipeline=get_pipeline(target))``.

    Raises
    ------
    ScanError
        If an operator is known neither to TVM nor here, or a loop cannot be built.
    """
    import onnx

    if not isinstance(model, onnx.ModelProto):
        raise ScanError(
            f"from_onnx: expected an onnx.ModelProto, got {type(model).__name__}; "
            "pass onnx.load(path)"
        )
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    importer = _importer_class()(shapes or {}, "float32")
    try:
        return importer.from_onnx(model.graph, opset)
    except Exception as error:
        if "not supported" not in str(error) and not isinstance(error, NotImplementedError):
            raise
        raise ScanError(
            f"from_onnx: expected operators that TVM or tvm_scan imports, got: {error}; "
            "replace these"
        ) from error


def _importer_class() -> type:
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, get_constant

    class Importer(ONNXGraphImporter):
        """TVM's importer, with operators of ours before its own."""

        def _check_for_unsupported_ops(self, graph: Any) -> None:
            others = type(graph)()
            others.node.extend(node for node in graph.node if node.op_type not in _OPERATORS)
            super()._check_for_unsupported_ops(others)

        def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
            if op_name not in _OPERATORS:
                return super()._convert_operator(op_name, inputs, attrs, opset)
            if op_name == "Scan":
                return relax.Tuple(_scan(self, list(inputs), attrs))
            if op_name in _STATEFUL:
                given = [None if v is None else self.bb.normalize(v) for v in inputs]
                return _STATEFUL[op_name](self.bb, given, attrs)
            axis = get_constant(inputs[1], [self._nodes, self._params])
            if not isinstance(axis, GenericConst):
                raise ScanError(
                    f"from_onnx: expected {op_name} along a constant axis, got {inputs[1]}; "
                    "store the axis as an initializer"
                )
            return _cumulative(
                self.bb, _OPERATORS[op_name], inputs[0], int(axis.value.numpy().item()), attrs
            )

    return Importer


_STATEFUL: dict[str, Any] = {
    "LinearAttention": linear_attention,
    "CausalConvWithState": causal_conv,
}
_OPERATORS: dict[str, Any] = {
    **_STATEFUL,
    "Scan": None,
    "CumSum": relax.op.cumsum,
    "CumProd": relax.op.cumprod,
}


def _cumulative(
    builder: relax.BlockBuilder, operator: Any, x: relax.Expr, axis: int, attrs: dict[str, Any]
) -> relax.Expr:
    backwards = bool(attrs.get("reverse", 0))
    if backwards:  # LegalizeScans makes one walk from the end of the three
        x = builder.emit(relax.op.flip(x, axis))
    x = builder.emit(operator(x, axis, exclusive=bool(attrs.get("exclusive", 0))))
    return builder.emit(relax.op.flip(x, axis)) if backwards else x


def _scan(importer: Any, inputs: list[relax.Expr], attrs: dict[str, Any]) -> list[relax.Expr]:
    builder, body = importer.bb, attrs["body"]
    slices = int(attrs["num_scan_inputs"])
    carries = len(inputs) - slices
    emits = len(body.output) - carries

    def listed(name: str, count: int) -> list[int]:
        return [int(v) for v in attrs.get(name, [0] * count)]

    xs = []
    directions = listed("scan_input_directions", slices)
    for x, axis, back in zip(
        inputs[carries:], listed("scan_input_axes", slices), directions, strict=True
    ):
        x = _moved(builder, x, axis % len(x.ty.shape.values), 0)
        xs.append(builder.emit(relax.op.flip(x, 0)) if back else x)
    inits = [builder.normalize(value) for value in inputs[:carries]]
    captured = _captured(importer, body)
    shared = [importer._nodes[name] for name in captured]
    steps = [relax.TensorType(x.ty.shape.values[1:], x.ty.dtype) for x in xs]
    types = [*(e.ty for e in inits), *steps, *(e.ty for e in shared)]
    names = [*(value.name for value in body.input), *captured]

    def write(inner: relax.BlockBuilder, params: list[relax.Var]) -> Sequence[relax.Expr]:
        step = type(importer)({}, "float32")
        step.bb, step.opset = inner, importer.opset
        step._parse_graph_initializers(body)
        step._nodes.update(zip(names, params, strict=True))
        step._construct_nodes(body)
        return [step._nodes[value.name] for value in body.output]

    lowered = lower_step(types, write)
    length = tir.as_int(xs[0].ty.shape.values[0])
    loop = time_loop(lowered, length=length, carries=carries, slices=slices)
    results = call_loop(builder, loop, [*inits, *xs, *shared], "scan")
    finals, outputs = results[:carries], results[carries:]
    directions = listed("scan_output_directions", emits)
    for i, (axis, back) in enumerate(
        zip(listed("scan_output_axes", emits), directions, strict=True)
    ):
        y = builder.emit(relax.op.flip(outputs[i], 0)) if back else outputs[i]
        outputs[i] = _moved(builder, y, 0, axis % len(y.ty.shape.values))
    return [*finals, *outputs]


def _captured(importer: Any, body: Any) -> list[str]:
    """Names of the enclosing graph that the body reads."""
    own = {value.name for value in body.input} | {value.name for value in body.initializer}
    own |= {name for node in body.node for name in node.output}
    read = [name for node in body.node for name in node.input if name and name not in own]
    read += [value.name for value in body.output if value.name not in own]
    return [name for name in dict.fromkeys(read) if name in importer._nodes]


def _moved(builder: relax.BlockBuilder, x: relax.Expr, source: int, target: int) -> relax.Expr:
    if source == target:
        return x
    order = [i for i in range(len(x.ty.shape.values)) if i != source]
    order.insert(target, source)
    return builder.emit(relax.op.permute_dims(x, order))
