"""Matching the unrolled copies of a loop's body, and putting one loop in their place.

Theorem. Let ``V = (v[0], ..., v[L-1])`` be nodes of a graph of pure operators, and let `match`
give one node ``s`` of a step for them by these rules alone, for every ``t``: (1) the ``v[t]`` are
one node: ``s`` is shared; (2) ``v[t]`` selects step ``t`` of one input: ``s`` is its slice;
(3) ``v[t+1] = u[t]`` for the nodes ``U`` of a step, which may be a carry itself: ``s`` is a carry
with the initial value ``v[0]``, whose next value is the step of ``U``; (4) the ``v[t]`` apply one
operator with one set of constants to nodes that match: ``s`` applies it to their steps. Then by
induction over ``t`` the loop that computes the steps gives ``v[t]`` at step ``t``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tvm_scan.relax.import_torch.roll_collect import Collected, RolledLoop, step_read
from tvm_scan.relax.import_torch.scan_graph import add_scan, emit, kind_of, time_first

#: Orders of a recurrence that are looked for: steps by which a read may lag behind a write.
_MOST_LAG = 4


class _Mismatch(Exception):
    """The copies of the body are not alike."""


class LoopRoller:
    """Matches the steps below one anchor and builds the graph of one step."""

    def __init__(self, module: Any, whole: Collected, aten: Any) -> None:
        import torch

        self.module, self.whole, self.aten = module, whole, aten
        self.anchor, self.steps = whole.anchor, whole.steps
        self.graph = torch.fx.Graph()
        self.order = {node: i for i, node in enumerate(module.graph.nodes)}
        #: Vector of nodes -> node of the step; None while its arguments are matched.
        self.known: dict[tuple[Any, ...], Any] = {}
        self.shared: dict[Any, Any] = {}
        self.slices: dict[tuple[Any, int, int, int], Any] = {}
        #: Slices that keep the axis of their input.
        self.unsqueezed: dict[Any, Any] = {}
        #: Vector of the next values -> (placeholder, initial node).
        self.carries: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def match_all(self) -> bool:
        """Return whether all steps are alike, and at least one carry ties them together."""
        if any(kind_of(step) != kind_of(self.steps[0]) for step in self.steps):
            return False
        try:
            self.result = self._match(self.steps)
        except _Mismatch:
            return False
        return bool(self.carries) and all(self.known.get(v) is not None for v in self.carries)

    def _match(self, vector: tuple[Any, ...]) -> Any:
        """One node of the step for the nodes of all steps.

        A vector that ends with None has no node at the last steps, where nobody reads it.
        """
        present = tuple(node for node in vector if node is not None)
        lag, head = len(vector) - len(present), present[0]
        if all(node is head for node in present):
            return self._placeholder(self.shared, head, "shared", head.meta["val"])
        if self.known.get(vector) is not None:
            return self.known[vector]
        following = self._following(vector)
        if following is None and any(node.target is not head.target for node in present):
            if lag == _MOST_LAG or len(present) <= 2:
                raise _Mismatch
            # What a step reads before it computes the next: the state is met first as a carry.
            following = (*vector[1:], None)
            self._match(following)
            following = self._completed(following)
        if following is not None:
            self.known[vector] = self._carry(following, head)
            return self.known[vector]
        if vector in self.known or any(node.op != "call_function" for node in present):
            raise _Mismatch
        if any(node.kwargs != head.kwargs for node in present):
            raise _Mismatch
        sliced = self._slice(present)
        if sliced is not None:
            return sliced
        self.known[vector] = None
        args = self._match_args([node.args for node in present], lag)
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

    def _completed(self, vector: tuple[Any, ...]) -> tuple[Any, ...]:
        """The vector with what a carry has at the last step, which no step of the graph reads."""
        later = self._following(vector)
        if later is None or vector[-2] is None or later[-2] is None:
            return vector
        whole = (*vector[:-1], later[-2])
        self.known[whole] = self.known.pop(vector)
        return whole

    def _carry(self, following: tuple[Any, ...], initial: Any) -> Any:
        # A state that takes the dtype or the shape of what is added to it is none at first.
        if kind_of(initial) is None or kind_of(initial) != kind_of(following[0]):
            raise _Mismatch
        after = self.known.get(following)
        for other, (holder, first) in self.carries.items():
            # The same states, less a step at the end.
            if after is not None and first is initial and self.known.get(other) is after:
                return holder
        if following not in self.carries:
            holder = self.graph.placeholder(f"carry_{len(self.carries)}")
            holder.meta = {"val": initial.meta["val"]}
            self.carries[following] = (holder, initial)
        holder, first = self.carries[following]
        if first is not initial:
            raise _Mismatch
        return holder

    def _match_args(self, args: Sequence[Any], lag: int) -> list[Any]:
        if any(len(other) != len(args[0]) for other in args):
            raise _Mismatch
        return [self._match_arg(parts, lag) for parts in zip(*args, strict=True)]

    def _match_arg(self, parts: tuple[Any, ...], lag: int) -> Any:
        head = parts[0]
        if hasattr(head, "op"):
            if not all(hasattr(part, "op") for part in parts):
                raise _Mismatch
            return self._match((*parts, *[None] * lag))
        if isinstance(head, list | tuple):
            if not all(isinstance(part, list | tuple) for part in parts):
                raise _Mismatch
            return type(head)(self._match_args(parts, lag))
        # As text: 0.0 and -0.0 are equal, and no constant; NaN is one.
        if any(type(part) is not type(head) or repr(part) != repr(head) for part in parts):
            raise _Mismatch
        return head

    def _slice(self, present: tuple[Any, ...]) -> Any:
        """A slice of an input at step t, or None."""
        head = present[0]
        reads = [step_read(node, self.aten) for node in present]
        if reads[0] is None or reads[1] is None:
            return None
        source, axis, start, is_kept = reads[0]
        stride = reads[1][2] - start
        if any(read != (source, axis, start + t * stride, is_kept) for t, read in enumerate(reads)):
            return None
        shape = source.meta["val"].shape
        # Indices from the end are those of -1, -2, ... only.
        start += shape[axis] if start < 0 else 0
        end = start + (len(self.steps) - 1) * stride
        if stride == 0 or not 0 <= start < shape[axis] or not 0 <= end < shape[axis]:
            return None
        key = (source, axis, start, stride)
        value = head.meta["val"]
        like = value.select(axis, 0) if is_kept else value
        step = self._placeholder(self.slices, key, "x", like)
        if is_kept and key not in self.unsqueezed:
            unsqueezed = self.graph.call_function(self.aten.unsqueeze.default, (step, axis))
            unsqueezed.meta = {"val": value}
            self.unsqueezed[key] = unsqueezed
        return self.unsqueezed[key] if is_kept else step

    def _placeholder(self, table: dict[Any, Any], key: Any, label: str, like: Any) -> Any:
        if key not in table:
            table[key] = self.graph.placeholder(f"{label}_{len(table)}")
            table[key].meta = {"val": like}
        return table[key]

    def replace(self) -> RolledLoop:
        """Put the loop into the graph, and its results where those of the copies were."""
        label = f"rolled_step_{self.anchor.name}"
        graph, clone = self.module.graph, self.aten.clone.default
        initial = [init for _, init in self.carries.values()]
        inputs = [*initial, *(key[0] for key in self.slices), *self.shared]
        inputs += [*self.whole.bases[:1], *self.whole.before]
        last = max((node for node in inputs if node in self.order), key=self.order.__getitem__)
        while last.next.op == "placeholder":
            last = last.next
        with graph.inserting_before(last.next):
            # No two arrays of a scan may be views of one tensor; to import a copy costs nothing.
            states, shared = map(self._copies, (initial, self.shared))
            xs = [
                time_first(graph, self.aten, source, axis, start, len(self.steps), stride)
                for source, axis, start, stride in self.slices
            ]
            # Results of a scan must not share memory, so each is a tensor of its own.
            results = [*(self.known[vector] for vector in self.carries), self.result]
            self.graph.output([emit(self.graph, clone, result) for result in results])
            ordered = [holder for holder, _ in self.carries.values()]
            ordered += [*self.slices.values(), *self.shared.values()]
            *finals, stacked = add_scan(
                self.module, label, self.graph, ordered, (states, xs, shared)
            )
            collected = self.whole.rebuilt(stacked, graph, self.aten)
            apart = self._read_apart(self.order[last])
            singles = [emit(graph, self.aten.select.int, stacked, 0, t) for t in apart]
        # Readers of a state or a step, which come after the loop; the copies go away.
        for vector, final in zip(self.carries, finals, strict=True):
            if vector[-1] is not None:
                vector[-1].replace_all_uses_with(final, self._reads_later(self.order[last]))
        for t, single in zip(apart, singles, strict=True):
            self.steps[t].replace_all_uses_with(single, self._reads_later(self.order[last]))
        self.anchor.replace_all_uses_with(collected)
        calls = sum(node.op == "call_function" for node in self.graph.nodes) - len(results)
        return RolledLoop(len(self.steps), calls, len(initial), len(self.slices), self.anchor.name)

    def _reads_later(self, position: int) -> Callable[[Any], bool]:
        """Make the test that a node comes behind a position and is no part of the loop."""
        inside = {node for vector in self.known for node in vector}
        inside |= {self.anchor, *self.whole.collectors}
        return lambda user: user not in inside and self.order.get(user, -1) > position

    def _read_apart(self, position: int) -> list[int]:
        """Steps that someone reads alone, behind a position."""
        later = self._reads_later(position)
        finals = {vector[-1] for vector in self.carries}
        return [
            t
            for t, step in enumerate(self.steps)
            if step not in finals and any(later(user) for user in step.users)
        ]

    def _copies(self, nodes: Iterable[Any]) -> list[Any]:
        """A tensor of its own for each; what is none stays."""
        graph, clone = self.module.graph, self.aten.clone.default
        return [node if kind_of(node) is None else emit(graph, clone, node) for node in nodes]
