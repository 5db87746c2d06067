"""``from_onnx``: an ONNX model as a Relax module, its recurrences as sequential loops."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst, IRModule

from tvm_scan.errors import ScanError
from tvm_scan.relax.import_onnx.attention import linear_attention
from tvm_scan.relax.import_onnx.causal_conv import causal_conv
from tvm_scan.relax.import_onnx.scan import scan
from tvm_scan.relax.repairs.onnx_extents import as_tensor, computed


def from_onnx(model: Any, shapes: dict[str, list[int]] | None = None) -> IRModule:
    """Import an ONNX model with its recurrences as sequential loops.

    Beyond what TVM 0.27 imports: ``Scan`` (opset 9 and later, every axis and direction, values of
    the enclosing graph), ``CumProd``, ``LinearAttention`` and ``CausalConvWithState`` (opset 27);
    ``CumSum`` runs from the end where it is told to.

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
        If it is no model, an input has no known rank, an operator is known neither to TVM nor
        here, or a loop cannot be built.
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
    from tvm.relax.frontend.onnx.onnx_frontend import (
        ONNXGraphImporter,
        get_constant,
        parse_shape_name,
    )

    class Importer(ONNXGraphImporter):
        """TVM's importer, with operators of ours before its own."""

        def _parse_graph_input(self, graph: Any) -> None:
            # TVM 0.27 takes all extents without a name for one and the same.
            names: dict[str, tirx.Var] = {}

            def extent(dim: Any) -> Any:
                if dim.dim_value or dim.dim_param:
                    return dim.dim_value or parse_shape_name(dim.dim_param, names)
                return tirx.Var("unknown", "int64")

            for value in graph.input:
                kind = value.type.tensor_type
                fed = value.name not in self._nodes and value.name not in self._shape
                if fed and value.type.HasField("tensor_type") and not kind.HasField("shape"):
                    raise ScanError(
                        f"from_onnx: expected an input {value.name} of known rank, got one without "
                        f"a shape; pass its shape, as shapes={{{value.name!r}: [...]}}"
                    )
                if kind.HasField("shape") and value.name not in self._nodes:
                    self._shape.setdefault(value.name, [extent(d) for d in kind.shape.dim])
            super()._parse_graph_input(graph)

        def _check_for_unsupported_ops(self, graph: Any) -> None:
            others = type(graph)()
            others.node.extend(node for node in graph.node if node.op_type not in _OPERATORS)
            super()._check_for_unsupported_ops(others)

        def _construct_nodes(self, graph: Any) -> None:
            for node in graph.node:
                known = ("", "ai.onnx", *_OTHER_DOMAINS.get(node.op_type, ()))
                if node.op_type in _OPERATORS and node.domain not in known:
                    raise ScanError(
                        f"from_onnx: expected {node.op_type} of ONNX's own domain, got one of "
                        f"{node.domain}; replace it"
                    )
                try:
                    self._construct_node(type(graph)(node=[node]))
                except (ScanError, NotImplementedError):
                    raise
                except Exception as error:
                    said = (str(error).strip() or type(error).__name__).splitlines()[0]
                    raise ScanError(
                        f"from_onnx: expected operators that TVM or tvm_scan imports, got "
                        f"{node.op_type} {node.name!r}: {said}; replace it"
                    ) from error

        def _construct_node(self, graph: Any) -> None:
            """Convert the one node of a graph; extents come as TVM's converters take them."""
            (node,) = graph.node
            inputs = [self._nodes[name] if name else None for name in node.input]
            extents = computed(node.op_type, inputs, self._parse_attr(node.attribute))
            if extents is not None:
                self._nodes[node.output[0]] = extents
                return
            names = [name for name in node.input if name]
            before = {name: self._nodes[name] for name in names}
            for name, value in before.items():
                self._nodes[name] = as_tensor(self.bb, node.op_type, value)
            super()._construct_nodes(graph)
            self._nodes.update(before)

        def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
            if op_name == "Constant" and "value" not in attrs:
                return _plain_constant(attrs)
            if op_name in _PAIRWISE and not all(isinstance(v, GenericConst) for v in inputs):
                # TVM stacks the operands and reduces over them, which hides a recurrence.
                return reduce(lambda a, b: self.bb.normalize(_PAIRWISE[op_name](a, b)), inputs)
            if op_name not in _OPERATORS:
                return super()._convert_operator(op_name, inputs, attrs, opset)
            if op_name == "Scan":
                return scan(self, list(inputs), attrs, opset)
            if op_name in _STATEFUL:
                operands = [None if v is None else self.bb.normalize(v) for v in inputs]
                return _STATEFUL[op_name](self.bb, operands, attrs)
            axis = get_constant(inputs[1], [self._nodes, self._params])
            if not isinstance(axis, GenericConst):
                raise ScanError(
                    f"from_onnx: expected {op_name} along a constant axis, got {inputs[1]}; "
                    "store the axis as an initializer"
                )
            return _cumulative(self.bb, op_name, inputs[0], int(axis.value.numpy().item()), attrs)

    return Importer


def _plain_constant(attrs: dict[str, Any]) -> relax.Expr:
    """A ``Constant`` whose value is a number or a list of numbers, which TVM 0.27 lacks."""
    for name, dtype in (("int", "int64"), ("float", "float32")):
        for key in (f"value_{name}", f"value_{name}s"):
            if key in attrs:
                return relax.const(np.asarray(attrs[key], dtype))
    found = ", ".join(key for key in attrs if key != "tvm_custom")
    raise ScanError(
        f"from_onnx: expected a Constant of numbers, got {found or 'none'}; store a dense tensor"
    )


_STATEFUL: dict[str, Any] = {
    "LinearAttention": linear_attention,
    "CausalConvWithState": causal_conv,
}
#: By operator: those of another domain that mean the same.
_OTHER_DOMAINS = {"LinearAttention": ("com.microsoft",)}
_PAIRWISE: dict[str, Any] = {
    "Max": relax.op.maximum,
    "Min": relax.op.minimum,
    "Sum": relax.op.add,
}
_OPERATORS: dict[str, Any] = {
    **_STATEFUL,
    "Scan": None,
    "CumSum": relax.op.cumsum,
    "CumProd": relax.op.cumprod,
}


def _cumulative(
    builder: relax.BlockBuilder, name: str, x: relax.Expr, axis: int, attrs: dict[str, Any]
) -> relax.Expr:
    rank, operator = builder.normalize(x).ty.ndim, _OPERATORS[name]
    if rank == 0 or (rank > 0 and not -rank <= axis < rank):
        raise ScanError(
            f"from_onnx: expected {name} along an axis of its input, got axis {axis} of {rank}; "
            "name an axis of the array"
        )
    backwards = bool(attrs.get("reverse", 0))
    if backwards:  # LegalizeScans makes one scan from the end of the three
        x = builder.emit(relax.op.flip(x, axis))
    x = builder.emit(operator(x, axis, exclusive=bool(attrs.get("exclusive", 0))))
    return builder.emit(relax.op.flip(x, axis)) if backwards else x
