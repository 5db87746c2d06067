"""A ``scan`` of torch in a graph: its step, the arrays that it goes over, and its results."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

#: Nodes of torch.fx, and graphs of them, which are imported by those who have them.
Node = Any


def emit(graph: Any, target: Any, *args: Any) -> Node:
    """Call an operator in a graph; the node knows its value."""
    from torch.fx.node import map_arg

    node = graph.call_function(target, args)
    node.meta["val"] = target(*map_arg(args, lambda part: part.meta["val"]))
    return node


def results_of(graph: Any) -> list[Node]:
    """Return what a graph returns, also where it is one node."""
    (results,) = graph.output_node().args
    return list(results) if isinstance(results, list | tuple) else [results]


def kind_of(node: Any) -> tuple[Any, Any] | None:
    """Shape and dtype of the tensor of a node; None for what is none."""
    value: Any = getattr(node, "meta", {}).get("val")
    return (tuple(value.shape), value.dtype) if hasattr(value, "shape") else None


def add_scan(
    module: Any,
    label: str,
    step: Any,
    ordered: Iterable[Node],
    operands: tuple[Sequence[Node], Sequence[Node], Sequence[Node]],
) -> list[Node]:
    """Put a scan into the graph of a module, and return its results.

    Parameters
    ----------
    module : torch.fx.GraphModule
        Whose graph says where to insert.
    label : str
        Name of the step in it.
    step : torch.fx.Graph
        What happens in a step, with its output.
    ordered : iterable of Node
        The placeholders of the step: states, slices, and what all steps share.
    operands : tuple of sequence of Node
        The same of the whole loop: first states, arrays with time first, what is shared.
    """
    import torch

    graph, table = torch.fx.Graph(), {}
    for holder in ordered:
        table[holder] = graph.placeholder(holder.name)
        table[holder].meta = dict(holder.meta)
    for node in step.nodes:
        if node.op != "placeholder":
            table[node] = graph.node_copy(node, table.__getitem__)
    module.add_submodule(label, torch.fx.GraphModule({}, graph))
    states, xs, shared = operands
    values = [result.meta["val"] for result in results_of(step)]
    arguments = (module.graph.get_attr(label), list(states), list(xs), tuple(shared))
    scan = module.graph.call_function(torch.ops.higher_order.scan, arguments)
    length = len(xs[0].meta["val"])
    stacked = [v.new_empty((length, *v.shape)) for v in values[len(states) :]]
    scan.meta["val"] = (*values[: len(states)], *stacked)
    results = []
    for number, value in enumerate(scan.meta["val"]):
        results.append(module.graph.call_function(operator.getitem, (scan, number)))
        results[-1].meta["val"] = value
    return results


def time_first(
    graph: Any, aten: Any, source: Node, axis: int, start: int, length: int, stride: int
) -> Node:
    """Take steps of an array, from a first one by a stride, with time as the first axis."""
    rank, extent = len(source.meta["val"].shape), source.meta["val"].shape[axis]
    if stride < 0:
        source = emit(graph, aten.flip.default, source, [axis])
        start, stride = extent - 1 - start, -stride
    stop = start + (length - 1) * stride + 1
    if (start, stop, stride) != (0, extent, 1):
        source = emit(graph, aten.slice.Tensor, source, axis, start, stop, stride)
    order = [axis, *(i for i in range(rank) if i != axis)]
    return emit(graph, aten.permute.default, source, order) if axis else source


def time_at(graph: Any, aten: Any, stacked: Node, axis: int) -> Node:
    """Put time, the first axis of steps one after the other, where an array has it."""
    order = [*range(1, len(stacked.meta["val"].shape))]
    order.insert(axis, 0)
    return emit(graph, aten.permute.default, stacked, order) if axis else stacked
