"""Nodes that collect the steps of an unrolled loop, and those for the loop once rolled up."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

from tvm_scan.relax.import_torch.scan_graph import emit, kind_of, time_at
from tvm_scan.relax.repairs.torch_casts import arguments_by_name


@dataclass(frozen=True)
class RolledLoop:
    """A loop that was rolled up.

    Attributes
    ----------
    steps : int
        Copies of the body that were found alike.
    operators : int
        Operators in one copy.
    carries, slices : int
        States that a step hands on, and inputs of which it reads one step.
    result : str
        Name of the node that had collected the steps.
    """

    steps: int
    operators: int
    carries: int
    slices: int
    result: str

    def __str__(self) -> str:
        return (
            f"{self.result}: {self.steps} steps of {self.operators} operators rolled into one "
            f"loop with {self.carries} carries and {self.slices} inputs"
        )


@dataclass(frozen=True, eq=False)
class Collected:
    """Nodes of consecutive steps, and the node that puts all of them into one array.

    Attributes
    ----------
    anchor : torch.fx.Node
        ``stack``, ``cat``, or the last of a chain of ``select_scatter``.
    steps : tuple of torch.fx.Node
        In the order in which they were computed or written.
    axis : int
        Of the anchor's array, counted from its front.
    before : tuple of torch.fx.Node
        Steps in front of them that are not theirs, of ``stack`` and ``cat``.
    bases : tuple of torch.fx.Node
        For each step of a chain the array that it was written into; else none.
    first : int
        Where along the axis the first step of a chain was written.
    stride : int
        Indices from one step to the next; -1 also of a list that was filled from its end.
    """

    anchor: Any
    steps: tuple[Any, ...]
    axis: int
    before: tuple[Any, ...] = ()
    bases: tuple[Any, ...] = ()
    first: int = 0
    stride: int = 1

    @property
    def collectors(self) -> list[Any]:
        """Nodes of a chain, and copies that only put a value into it."""
        writes = [*self.bases[1:], self.anchor] if self.bases else []
        return [node for write in writes for node in (write, write.args[1])]

    def without(self, count: int) -> Collected:
        """Return this without the first ``count`` steps, which are not of the loop."""
        return replace(
            self,
            steps=self.steps[count:],
            before=self.steps[:count],
            bases=self.bases[count:],
            first=self.first + count * self.stride,
        )

    @property
    def orders(self) -> list[Collected]:
        """Orders to try: as it is, and where a list may have been filled from its end, reversed."""
        if self.bases:
            return [self]
        return [self, replace(self, steps=self.steps[::-1], stride=-1)]

    def rebuilt(self, stacked: Any, graph: Any, aten: Any) -> Any:
        """Give what the anchor is, from the steps stacked with time first."""
        axis, value = self.axis, stacked
        if self.stride < 0:
            value = emit(graph, aten.flip.default, value, [0])
        value = time_at(graph, aten, value, axis)
        if self.bases:
            return self._written(value, graph, aten)
        target = self.anchor.target
        if target is aten.cat.default:
            shape = list(self.steps[0].meta["val"].shape)
            shape[axis] *= len(self.steps)
            value = emit(graph, aten.reshape.default, value, shape)
        if not self.before:
            return value
        parts = [emit(graph, target, list(self.before[:: self.stride]), axis), value]
        return emit(graph, aten.cat.default, parts[:: self.stride], axis)

    def _written(self, value: Any, graph: Any, aten: Any) -> Any:
        extent, count = self.anchor.meta["val"].shape[self.axis], len(self.steps)
        if count == extent:
            return value
        low = min(self.first, self.first + (count - 1) * self.stride)
        pace = abs(self.stride)
        stop = low + (count - 1) * pace + 1
        arguments = (self.bases[0], value, self.axis, low, stop, pace)
        return emit(graph, aten.slice_scatter.default, *arguments)


def collected(anchor: Any, aten: Any) -> Collected | None:
    """Find the nodes of the steps that an anchor collects along a new or present axis.

    Parameters
    ----------
    anchor : torch.fx.Node
        Any node.
    aten : module
        ``torch.ops.aten``.
    """
    if anchor.target in (aten.stack.default, aten.cat.default):
        steps, axis = arguments_by_name(anchor).values()
        return Collected(anchor, tuple(steps), axis % len(anchor.meta["val"].shape))
    if not _is_write(anchor, aten) or any(_is_write(user, aten) for user in anchor.users):
        return None  # no chain, or not the last one of it
    chain = [anchor]
    axis, last = _axis_and_step(anchor)
    stride: int | None = None
    while _is_write(chain[-1].args[0], aten):
        before = chain[-1].args[0]
        dim, index = _axis_and_step(before)
        pace = last - index
        if dim != axis or pace == 0 or (stride is not None and pace != stride):
            break
        stride, last = pace, index
        chain.append(before)
    if stride is None:
        return None
    chain.reverse()
    steps = tuple(_written_value(node, aten) for node in chain)
    bases = tuple(node.args[0] for node in chain)
    return Collected(anchor, steps, axis, bases=bases, first=last, stride=stride)


def forward_reads(graph: Any, aten: Any) -> None:
    """Let reads of what a chain has written read the value that was written.

    ``y[t]`` of an array into which ``y[t] = v`` was written is ``v``, and of one into which
    another step was written is that of the array before.

    Parameters
    ----------
    graph : torch.fx.Graph
        Changed in place.
    aten : module
        ``torch.ops.aten``.
    """
    for node in list(graph.nodes):
        if node.target is not aten.select.int or not _is_write(node.args[0], aten):
            continue
        axis, index = _axis_and_step(node)
        source, value = node.args[0], None
        while value is None and _is_write(source, aten):
            dim, at = _axis_and_step(source)
            if dim != axis:
                break
            if at == index:
                value = _written_value(source, aten)
            else:
                source = source.args[0]
        if value is None and source is not node.args[0]:
            with graph.inserting_before(node):
                value = graph.call_function(aten.select.int, (source, axis, index))
            value.meta = dict(node.meta)
        if value is not None:
            node.replace_all_uses_with(value)
            graph.erase_node(node)


def step_read(node: Any, aten: Any) -> tuple[Any, int, int, bool] | None:
    """Source, axis, and step of a node that reads one step of an array, and if it keeps the axis.

    Parameters
    ----------
    node : torch.fx.Node
        Any node.
    aten : module
        ``torch.ops.aten``.

    Returns
    -------
    tuple or None
        A step that is counted from the end is negative.
    """
    part, step = node.args if node.target is operator.getitem else (node, None)
    if part.target is aten.select.int:
        source, axis, step = part.args
    elif part.target is aten.slice.Tensor and len(part.args) == 4:
        source, axis, step, stop = part.args
        if not isinstance(step, int) or stop != step + 1 or stop == 0:
            return None
    elif step is None:
        return None
    elif part.target is aten.unbind.int:
        source, axis = arguments_by_name(part).values()
    elif part.target in (aten.split.Tensor, aten.split_with_sizes.default):
        source, sizes, axis = arguments_by_name(part).values()
        if any(size != 1 for size in (sizes if isinstance(sizes, list | tuple) else [sizes])):
            return None
    else:
        return None
    is_kept = part.target not in (aten.select.int, aten.unbind.int)
    return source, axis % len(source.meta["val"].shape), step, is_kept


def _is_write(node: Any, aten: Any) -> bool:
    """Return whether a node writes one known step of an array."""
    if getattr(node, "target", None) is not aten.select_scatter.default:
        return False
    extent = node.meta["val"].shape[node.args[2]]
    return isinstance(node.args[3], int) and isinstance(extent, int)


def _axis_and_step(node: Any) -> tuple[int, int]:
    """Axis and step of ``select`` and ``select_scatter``, from the front."""
    axis, index = node.args[-2:]
    shape = node.args[0].meta["val"].shape
    axis %= len(shape)
    return axis, index % shape[axis]


def _written_value(node: Any, aten: Any) -> Any:
    value = node.args[1]
    if value.target is aten.copy.default and kind_of(value.args[0]) == kind_of(value.args[1]):
        return value.args[1]  # the copy takes the index, not the value, of what it covers
    return value
