"""``while_loop`` of torch as ``scan``, where it counts through the steps of arrays.

Such a loop has a counter that starts at a constant, grows by a constant and is compared with a
constant; it reads arrays at the counter by ``index_select`` and writes whole arrays at the counter
by ``index_put``. Everything else that it carries is a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm_scan.relax.import_torch.scan_graph import add_scan, emit, results_of, time_at, time_first


def scans_from_while_loops(module: Any, constants: Mapping[str, Any]) -> int:
    """Replace the ``while_loop`` nodes of a graph that are recurrences, in place.

    Parameters
    ----------
    module : torch.fx.GraphModule
        A decomposed graph of ATen operators.
    constants : mapping of str to torch.Tensor
        Values of placeholders that are constants, by name.

    Returns
    -------
    int
        How many were replaced; the others stay as they are.
    """
    import torch

    loops = [n for n in module.graph.nodes if n.target is torch.ops.higher_order.while_loop]
    replaced = 0
    for node in loops:
        loop = _Counted(module, node, constants, torch)
        if loop.is_counted() and loop.translate():
            loop.replace(f"while_step_{node.name}")
            replaced += 1
    if replaced:
        module.graph.eliminate_dead_code()
        module.graph.lint()
        module.recompile()
    return replaced


class _Counted:
    """One while loop, and the step that does the same under ``scan``."""

    def __init__(self, module: Any, node: Any, constants: Mapping[str, Any], torch: Any) -> None:
        self.module, self.node, self.constants, self.torch = module, node, constants, torch
        self.aten = torch.ops.aten
        condition, body, carried, shared = node.args
        self.condition = getattr(module, condition.target)
        self.body = getattr(module, body.target)
        self.carried, self.operands = list(carried), [*carried, *shared]
        self.holders = [n for n in self.body.graph.nodes if n.op == "placeholder"]
        self.results = results_of(self.body.graph)

    def is_counted(self) -> bool:
        """Find the counter; return whether the number of steps is a constant."""
        test = results_of(self.condition.graph)[0]
        holders = [n for n in self.condition.graph.nodes if n.op == "placeholder"]
        closed = {self.aten.lt.Scalar: 0, self.aten.le.Scalar: 1}.get(test.target)
        if closed is None or test.args[0] not in holders:
            return False
        self.counter = holders.index(test.args[0])
        if self.counter >= len(self.carried):
            return False
        grown = self.results[self.counter]
        start = self._constant(self.carried[self.counter])
        if start is None or grown.target is not self.aten.add.Tensor:
            return False
        base, self.stride = grown.args[:2]
        if base is not self.holders[self.counter] or grown.kwargs:
            return False
        if not isinstance(self.stride, int) or not isinstance(test.args[1], int):
            return False
        limit = test.args[1] + closed
        self.start, self.length = start, -(-(limit - start) // self.stride) if self.stride else 0
        return self.stride > 0 and self.length > 0

    def _constant(self, node: Any) -> int | None:
        while node.target is self.aten.clone.default:
            node = node.args[0]
        value = self.constants.get(node.name)
        if value is not None and value.numel() == 1 and not value.is_floating_point():
            return int(value)
        if node.target is self.aten.full.default and node.args[0] == []:
            return int(node.args[1])
        return None

    def translate(self) -> bool:
        """Build the graph of the body; return whether it is a step."""
        self.graph = self.torch.fx.Graph()
        self.slices: dict[tuple[int, int], Any] = {}
        arrays = {i: put for i, node in enumerate(self.results) if (put := self._written(i, node))}
        self.arrays = {i: axis for i, (axis, _) in arrays.items()}
        skip = {self.counter, *arrays}
        self.states = [i for i in range(len(self.carried)) if i not in skip]
        table: dict[Any, Any] = {}
        for i in [*self.states, *range(len(self.carried), len(self.operands))]:
            table[self.holders[i]] = self._holder(f"p{i}", self.holders[i].meta["val"])
        counter = self.holders[self.counter]
        writers = {self.results[i] for i in arrays}
        for node in self.body.graph.nodes:
            if node.op != "call_function" or node in writers or node is self.results[self.counter]:
                continue
            sliced = self._sliced(node)
            if sliced is not None:
                table[node] = sliced
            elif all(n in table or n is counter for n in node.all_input_nodes):
                if counter in node.all_input_nodes and counter not in table:
                    table[counter] = self._holder("counter", counter.meta["val"])
                table[node] = self.graph.node_copy(node, table.__getitem__)
            else:
                return False  # it reads an array that it writes
        self.table = table
        outputs = [table[self.results[i]] for i in self.states]
        for axis, value in arrays.values():
            outputs.append(emit(self.graph, self.aten.squeeze.dims, table[value], [axis]))
        self.graph.output([emit(self.graph, self.aten.clone.default, node) for node in outputs])
        self.graph.eliminate_dead_code()  # indices that became slices
        return True

    def _holder(self, name: str, value: Any) -> Any:
        with self.graph.inserting_before(next(iter(self.graph.nodes), None)):
            holder = self.graph.placeholder(name)
        holder.meta = {"val": value}
        return holder

    def _is_index(self, node: Any) -> bool:
        views = (self.aten.view.default, self.aten.unsqueeze.default, self.aten.reshape.default)
        counter = self.holders[self.counter]
        return getattr(node, "target", None) in views and node.args[0] is counter

    def _written(self, i: int, node: Any) -> tuple[int, Any] | None:
        """Axis and value of an array that is written at the counter, all of it in the end."""
        if node.target is not self.aten.index_put.default or i == self.counter:
            return None
        base, indices, value, *rest = node.args
        axis = len(indices) - 1
        if base is not self.holders[i] or len(base.users) != 1 or any(rest):
            return None
        if any(k is not None for k in indices[:-1]) or not self._is_index(indices[-1]):
            return None
        extent = base.meta["val"].shape[axis]
        # A dynamic extent has the value that it was traced with, and another one when it runs.
        whole = isinstance(extent, int) and (self.start, self.stride, self.length) == (0, 1, extent)
        fits = len(value.meta["val"].shape) == len(base.meta["val"].shape)
        return (axis, value) if whole and fits else None

    def _sliced(self, node: Any) -> Any:
        """The slice that ``index_select`` takes of an array that the loop leaves as it is."""
        if node.target is not self.aten.index_select.default or not self._is_index(node.args[2]):
            return None
        source, axis, _ = node.args
        i = self.holders.index(source) if source in self.holders else -1
        is_kept = i >= len(self.carried)
        last = self.start + (self.length - 1) * self.stride
        extent = source.meta["val"].shape[axis]
        if not is_kept or not isinstance(extent, int) or not 0 <= self.start <= last < extent:
            return None
        axis %= len(source.meta["val"].shape)
        if (i, axis) not in self.slices:
            value = source.meta["val"].select(axis, 0)
            self.slices[(i, axis)] = self._holder(f"x{len(self.slices)}", value)
        step = self.graph.call_function(self.aten.unsqueeze.default, (self.slices[(i, axis)], axis))
        step.meta["val"] = node.meta["val"]
        return step

    def replace(self, label: str) -> None:
        """Put ``scan`` where the loop was."""
        aten, graph, table = self.aten, self.module.graph, self.table
        states = [table[self.holders[i]] for i in self.states]
        counter = table.get(self.holders[self.counter])
        if not self.slices:  # something must say how many steps there are
            counter = counter or self._holder("counter", self.holders[self.counter].meta["val"])
        elif counter is not None and not counter.users:
            counter = None
        shared = range(len(self.carried), len(self.operands))
        ordered = [*states, *self.slices.values(), *([] if counter is None else [counter])]
        ordered += [table[self.holders[i]] for i in shared]
        stop = self.start + self.length * self.stride
        with graph.inserting_before(self.node):
            steps = (self.start, self.length, self.stride)
            xs = [
                time_first(graph, aten, self.operands[i], axis, *steps) for i, axis in self.slices
            ]
            if counter is not None:
                # The default dtype of integers is int64.
                xs.append(emit(graph, aten.arange.start_step, self.start, stop, self.stride))
            initial, constant = ([self.operands[i] for i in part] for part in (self.states, shared))
            operands = (initial, xs, constant)
            scanned = iter(add_scan(self.module, label, self.graph, ordered, operands))
            results = {i: next(scanned) for i in self.states}
            for i, axis in self.arrays.items():
                results[i] = time_at(graph, aten, next(scanned), axis)
            results[self.counter] = graph.call_function(aten.full.default, ([], stop))
            results[self.counter].kwargs = {"dtype": self.torch.int64}
        for user in list(self.node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(self.node)
