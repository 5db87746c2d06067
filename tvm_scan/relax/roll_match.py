"""Matching the unrolled copies of a loop's body, and putting one loop in their place.

Theorem. Let ``V = (v[0], ..., v[L-1])`` be nodes of a graph of pure operators, and let `match`
give one node ``s`` of a step for them by these rules alone, for every ``t``: (1) the ``v[t]`` are
one node: ``s`` is shared; (2) ``v[t]`` selects step ``t`` of one input: ``s`` is its slice;
(3) ``v[t+1] = u[t]`` for the nodes ``U`` of a step: ``s`` is a carry with the initial value
``v[0]``, whose next value is the step of ``U``; (4) the ``v[t]`` apply one operator with one set
of constants to nodes that match: ``s`` applies it to their steps. Then by induction over ``t``
the loop that computes the steps gives ``v[t]`` at step ``t``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["LoopRoller", "RolledLoop"]


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


def _kind(node: Any) -> tuple[Any, Any] | None:
    """Shape and dtype of a tensor."""
    value = node.meta.get("val")
    return (tuple(value.shape), value.dtype) if hasattr(value, "shape") else None


class _Mismatch(Exception):
    """The copies of the body are not alike."""


class LoopRoller:
    """Matches the steps below one anchor and builds the graph of one step."""

    def __init__(self, module: Any, anchor: Any, steps: list[Any], aten: Any) -> None:
        import torch

        self.module, self.anchor, self.steps, self.aten = module, anchor, steps, aten
        self.graph = torch.fx.Graph()
        self.order = {node: i for i, node in enumerate(module.graph.nodes)}
        #: Vector of nodes -> node of the step; None while its arguments are matched.
        self.known: dict[tuple[Any, ...], Any] = {}
        self.shared: dict[Any, Any] = {}
        self.slices: dict[tuple[Any, int, int, int], Any] = {}
        #: Vector of the next values -> (placeholder, initial node).
        self.carries: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def match_all(self) -> bool:
        """Whether all steps are alike, and at least one carry ties them together."""
        try:
            self.result = self._match(tuple(self.steps))
        except _Mismatch:
            return False
        return bool(self.carries) and all(self.known.get(v) is not None for v in self.carries)

    def _match(self, vector: tuple[Any, ...]) -> Any:
        """One node of the step for the nodes of all steps.

        A vector that ends with None has no node at the last step, where nobody reads it.
        """
        present = vector if vector[-1] is not None else vector[:-1]
        head = present[0]
        if all(node is head for node in present):
            return self._placeholder(self.shared, head, "shared", head)
        if self.known.get(vector) is not None:
            return self.known[vector]
        following = self._following(vector)
        if following is None and head.target is not present[1].target:
            if vector[-1] is None:
                raise _Mismatch
            # What a step reads before it computes the next: the state is met first as a carry.
            following = (*vector[1:], None)
            self._match(following)
        if following is not None:
            return self._carry(following, head)
        if vector in self.known or any(node.op != "call_function" for node in present):
            raise _Mismatch
        if any(n.target is not head.target or n.kwargs != head.kwargs for n in present):
            raise _Mismatch
        sliced = self._slice(present)
        if sliced is not None:
            return sliced
        self.known[vector] = None
        args = self._match_args([node.args for node in present], len(present) < len(vector))
        step = self.graph.call_function(head.target, tuple(args), dict(head.kwargs))
        step.meta = dict(head.meta)
        self.known[vector] = step
        return step

    def _following(self, vector: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The vector whose value at each step this one has at the next."""
        for later in self.known:
            pairs = zip(vector[1:], later[:-1], strict=True)
            if all(here is there or here is None for here, there in pairs):
                return later
        return None

    def _carry(self, following: tuple[Any, ...], initial: Any) -> Any:
        # A state that takes the dtype or the shape of what is added to it is none at first.
        if _kind(initial) is None or _kind(initial) != _kind(following[0]):
            raise _Mismatch
        if following not in self.carries:
            holder = self.graph.placeholder(f"carry_{len(self.carries)}")
            holder.meta = {"val": initial.meta["val"]}
            self.carries[following] = (holder, initial)
        holder, first = self.carries[following]
        if first is not initial:
            raise _Mismatch
        return holder

    def _match_args(self, args: Sequence[Any], is_open: bool) -> list[Any]:
        if any(len(other) != len(args[0]) for other in args):
            raise _Mismatch
        return [self._match_arg(parts, is_open) for parts in zip(*args, strict=True)]

    def _match_arg(self, parts: tuple[Any, ...], is_open: bool) -> Any:
        head = parts[0]
        if hasattr(head, "op"):
            if not all(hasattr(part, "op") for part in parts):
                raise _Mismatch
            return self._match((*parts, None) if is_open else parts)
        if isinstance(head, list | tuple):
            if not all(isinstance(part, list | tuple) for part in parts):
                raise _Mismatch
            return type(head)(self._match_args(parts, is_open))
        # As text: 0.0 and -0.0 are equal, and no constant; NaN is one.
        if any(type(part) is not type(head) or repr(part) != repr(head) for part in parts):
            raise _Mismatch
        return head

    def _slice(self, present: tuple[Any, ...]) -> Any:
        """A slice of an input at step t, or None."""
        head = present[0]
        if head.target is not self.aten.select.int:
            return None
        source, axis, start = head.args
        stride = present[1].args[2] - start
        for t, node in enumerate(present):
            if node.args != (source, axis, start + t * stride):
                return None
        shape = source.meta["val"].shape
        axis %= len(shape)
        # Indices from the end are those of -1, -2, ... only.
        start += shape[axis] if start < 0 else 0
        end = start + (len(self.steps) - 1) * stride
        if stride == 0 or not 0 <= start < shape[axis] or not 0 <= end < shape[axis]:
            return None
        return self._placeholder(self.slices, (source, axis, start, stride), "x", head)

    def _placeholder(self, table: dict[Any, Any], key: Any, label: str, like: Any) -> Any:
        if key not in table:
            table[key] = self.graph.placeholder(f"{label}_{len(table)}")
            table[key].meta = {"val": like.meta["val"]}
        return table[key]

    def replace(self) -> RolledLoop:
        """Put the loop into the graph, and its results where those of the copies were."""
        import torch

        step = self._step_module()
        label = f"rolled_step_{self.anchor.name}"
        self.module.add_submodule(label, step)
        graph = self.module.graph
        initial = [init for _, init in self.carries.values()]
        inputs = [*initial, *(key[0] for key in self.slices), *self.shared]
        last = max(inputs, key=self.order.__getitem__)
        while last.next.op == "placeholder":
            last = last.next
        with graph.inserting_before(last.next):
            xs = [self._input(*key) for key in self.slices]
            body = graph.get_attr(label)
            scan = torch.ops.higher_order.scan
            loop = graph.call_function(scan, (body, initial, xs, tuple(self.shared)))
            finals = [graph.call_function(operator.getitem, (loop, i)) for i in range(len(initial))]
            stacked = graph.call_function(operator.getitem, (loop, len(initial)))
            values = [vector[0].meta["val"] for vector in self.carries]
            for final, value in zip(finals, values, strict=True):
                final.meta["val"] = value
            stacked.meta["val"] = torch.stack([self.steps[0].meta["val"]] * len(self.steps))
            loop.meta["val"] = (*values, stacked.meta["val"])
            collected = self._collect(stacked)
        position = self.order[last]
        inside = {node for vector in self.known for node in vector}
        for vector, final in zip(self.carries, finals, strict=True):
            if vector[-1] is not None:
                # Readers of the last state, which come after the loop; the copies go away.
                vector[-1].replace_all_uses_with(
                    final,
                    lambda user: user not in inside and self.order.get(user, -1) > position,
                )
        self.anchor.replace_all_uses_with(collected)
        operators = sum(node.op == "call_function" for node in self.graph.nodes)
        return RolledLoop(
            len(self.steps), operators, len(initial), len(self.slices), self.anchor.name
        )

    def _step_module(self) -> Any:
        """The step with placeholders in the order of ``scan``: carries, slices, shared."""
        import torch

        ordered = [holder for holder, _ in self.carries.values()]
        ordered += [*self.slices.values(), *self.shared.values()]
        graph, table = torch.fx.Graph(), {}
        for holder in ordered:
            table[holder] = graph.placeholder(holder.name)
            table[holder].meta = dict(holder.meta)
        for node in self.graph.nodes:
            if node.op != "placeholder":
                table[node] = graph.node_copy(node, lambda n: table[n])
        steps = [*(self.known[vector] for vector in self.carries), self.result]
        # Results of a scan must not share memory, so each is a tensor of its own.
        results = [graph.call_function(self.aten.clone.default, (table[s],)) for s in steps]
        for result, step in zip(results, steps, strict=True):
            result.meta["val"] = step.meta["val"]
        graph.output(results)
        return torch.fx.GraphModule({}, graph)

    def _input(self, source: Any, axis: int, start: int, stride: int) -> Any:
        """All steps of an input, time first."""
        aten, length = self.aten, len(self.steps)
        value = source
        rank, extent = len(source.meta["val"].shape), source.meta["val"].shape[axis]
        if stride < 0:
            value = self._emit(aten.flip.default, value, [axis])
            start, stride = extent - 1 - start, -stride
        stop = start + (length - 1) * stride + 1
        if (start, stop, stride) != (0, extent, 1):
            value = self._emit(aten.slice.Tensor, value, axis, start, stop, stride)
        if axis:
            order = [axis, *(i for i in range(rank) if i != axis)]
            value = self._emit(aten.permute.default, value, order)
        return value

    def _collect(self, stacked: Any) -> Any:
        """What the anchor was, from all steps stacked with time first."""
        rank = len(stacked.meta["val"].shape)
        is_cat = self.anchor.target is self.aten.cat.default
        if self.anchor.target is self.aten.select_scatter.default:
            axis = self.anchor.args[2]
        else:
            axis = self.anchor.args[1] if len(self.anchor.args) > 1 else 0
        axis %= rank - 1 if is_cat else rank
        if axis:
            order = [*range(1, rank)]
            order.insert(axis, 0)
            stacked = self._emit(self.aten.permute.default, stacked, order)
        if is_cat:
            shape = list(self.anchor.meta["val"].shape)
            stacked = self._emit(self.aten.reshape.default, stacked, shape)
        return stacked

    def _emit(self, target: Any, source: Any, *args: Any) -> Any:
        node = self.module.graph.call_function(target, (source, *args))
        node.meta["val"] = target(source.meta["val"], *args)
        return node
