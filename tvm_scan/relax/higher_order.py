"""Converters for torch's ``scan``, ``associative_scan`` and ``while_loop``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from tvm_scan import tir
from tvm_scan.relax.step import LoweredStep, lower_step, time_loop

__all__ = ["convert_associative_scan", "convert_scan"]


def convert_scan(node: Any, importer: Any) -> list[relax.Expr]:
    """Convert ``scan(combine, inits, xs, shared)``: final carries, then what was emitted."""
    graph, inits, xs, shared = _arguments(node, importer)
    step = _step(importer, graph, inits, xs, shared)
    length = tir.as_int(xs[0].ty.shape.values[0])
    loop = time_loop(step, length=length, carries=len(inits), slices=len(xs))
    types = [relax.TensorType(e.ty.shape, e.ty.dtype) for e in inits]
    types += _stacked(step.outputs[len(inits) :], xs[0], _results(graph)[len(inits) :])
    return _call(importer, loop, [*inits, *xs, *shared], types, "scan")


def convert_associative_scan(node: Any, importer: Any) -> list[relax.Expr]:
    """Convert ``associative_scan(combine, xs, shared)``: an inclusive scan along axis 0."""
    combine, xs_nodes, shared_nodes = node.args[:3]
    graph = importer.env[combine]
    xs, shared = ([importer.env[n] for n in nodes] for nodes in (xs_nodes, shared_nodes))
    first = [relax.TensorType(x.ty.shape.values[1:], x.ty.dtype) for x in xs]
    step = _lowered(importer, graph, [*first, *first, *(e.ty for e in shared)])
    length = tir.as_int(xs[0].ty.shape.values[0])
    loop = time_loop(step, length=length, carries=len(xs), slices=len(xs), prefix=True)
    types = [relax.TensorType(x.ty.shape, x.ty.dtype) for x in xs]
    return _call(importer, loop, [*xs, *shared], types, "associative_scan")


def _arguments(node: Any, importer: Any) -> tuple[Any, list[Any], list[Any], list[Any]]:
    combine, *groups = node.args[:4]
    inits, xs, shared = ([importer.env[n] for n in group] for group in groups)
    return importer.env[combine], inits, xs, shared


def _results(graph: Any) -> list[Any]:
    (results,) = next(n for n in graph.graph.nodes if n.op == "output").args
    return list(results)


def _step(
    importer: Any, graph: Any, inits: list[Any], xs: list[Any], shared: list[Any]
) -> LoweredStep:
    slices = [relax.TensorType(x.ty.shape.values[1:], x.ty.dtype) for x in xs]
    return _lowered(importer, graph, [*(e.ty for e in inits), *slices, *(e.ty for e in shared)])


def _lowered(importer: Any, graph: Any, types: Sequence[relax.TensorType]) -> LoweredStep:
    """The graph of one step through TVM's importer."""

    def write(builder: relax.BlockBuilder, params: list[relax.Var]) -> Sequence[relax.Expr]:
        inner = type(importer)()
        inner.block_builder = builder
        nodes = list(graph.graph.nodes)
        inner._check_unsupported_func_type(nodes)
        holders = [n for n in nodes if n.op == "placeholder"]
        inner.env = dict(zip(holders, params, strict=True))
        return inner._translate_fx_graph(graph, nodes, {})

    return lower_step(types, write)


def _stacked(outputs: Sequence[Any], x: relax.Expr, nodes: Sequence[Any]) -> list[Any]:
    """Types of what is emitted: one more axis than in the step."""
    types = []
    for buffer, node in zip(outputs, nodes, strict=True):
        shape = [tir.as_int(extent) for extent in tir.shape_of(buffer)]
        if None in shape:
            raise ValueError(
                "tvm_scan.relax: expected what a scan emits to have a known shape in each step, "
                f"got {node}: {tir.shape_of(buffer)}; export the model with fixed lanes"
            )
        types.append(relax.TensorType([x.ty.shape.values[0], *shape], tir.dtype_of(buffer)))
    return types


def _call(
    importer: Any, loop: Any, args: list[Any], types: list[Any], name: str
) -> list[relax.Expr]:
    builder = importer.block_builder
    function = builder.add_func(loop, name)
    call = builder.emit(relax.call_tir(function, args, types))
    if len(types) == 1:
        return [call]
    return [builder.emit(relax.TupleGetItem(call, i)) for i in range(len(types))]
