"""The adjoint of a recurrence whose step is a graph of elementwise operators.

With ``c[t] = f(c[t-1], x[t])`` the adjoint of the carries is the recurrence ``p[t] = s[t] +
J[t+1]' p[t+1]``, scanned the other way, where J is the derivative of the step with respect to the
carries: as many numbers per element as there are pairs of carries. Which of them are zero is
read off the graph. Carries that do not depend on each other in a circle are one affine scan each,
in order; those that do are one scan of a step of their own.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.ops.affine import affine_scan, shifted
from tvm_scan.torch.private import is_watched, transforms_active
from tvm_scan.torch.trace.graph import graph_module

#: Operators through which no derivative flows.
_OPAQUE: tuple[str, ...]
_OPAQUE = ("eq", "ne", "lt", "le", "gt", "ge", "detach", "full_like", "ones_like", "zeros_like")
_OPAQUE += ("sign", "floor", "ceil", "round", "trunc", "isnan", "isinf", "logical_not")

#: Runs the step of a graph: (tensors, graph, carries, reverse) -> results; see `step_scan`.
Runner = Callable[[list[Tensor], str, int, bool], Sequence[Tensor]]


@functools.lru_cache(maxsize=512)
def dependencies(graph: str) -> tuple[frozenset[int], ...]:
    """Numbers of the inputs by which each result may have a derivative that is not zero."""
    whole = json.loads(graph)
    known = {f"p{i}": frozenset((i,)) for i in range(whole["inputs"])}

    def read(item: object) -> frozenset[int]:
        if isinstance(item, dict):
            return known[item["node"]] if "node" in item else frozenset()
        if isinstance(item, list):
            return frozenset().union(*(read(part) for part in item))
        return frozenset()

    for i, (target, args, _) in enumerate(whole["calls"]):
        name = target.removeprefix("aten.").partition(".")[0]
        known[f"v{i}"] = frozenset() if name in _OPAQUE else read(args)
    return tuple(known[name] for name in whole["outputs"])


def solve_adjoint(
    run: Runner,
    graph: str,
    carries: int,
    inputs: Sequence[Tensor],
    sources: Sequence[Tensor],
    reverse: bool,
) -> list[Tensor]:
    """Solve ``p[t] = s[t] + J[t+1]' p[t+1]`` for every floating-point carry.

    Parameters
    ----------
    run : callable
        What scans the circles.
    graph : str
        The step; its first results are the carries after it.
    carries : int
        How many.
    inputs : sequence of Tensor
        Of the graph, at every step: (outer, length, inner).
    sources : sequence of Tensor
        ``s`` of each carry.
    reverse : bool
        Whether the recurrence itself runs backward.

    Returns
    -------
    list of Tensor
        ``p``; of carries that are no floats, their source.
    """
    live = [i for i in range(carries) if inputs[i].is_floating_point()]
    needs = dependencies(graph)
    feeds = {i: [j for j in live if i in needs[j]] for i in live}  # c[i] enters the new c[j]
    rows = _jacobian(graph, carries, inputs, live, needs)
    solved = list(sources)
    for group in _circles(live, feeds):
        terms = []
        for i in group:
            total = sources[i]
            for j in feeds[i]:
                if j not in group:
                    total = total + shifted(rows[j, i] * solved[j], None, not reverse)
            terms.append(total)
        if len(group) == 1:
            (i,) = group
            if i in feeds[i]:
                solved[i] = affine_scan(rows[i, i], terms[0], None, None, "late", not reverse)
            else:
                solved[i] = terms[0]
            continue
        pairs = [(j, i) for i in group for j in feeds[i] if j in group]
        step = _circle_step(tuple(group), tuple(pairs))
        starts = [torch.zeros_like(term[:, 0]) for term in terms]
        scanned = run([*starts, *terms, *(rows[p] for p in pairs)], step, len(group), not reverse)
        for i, value in zip(group, scanned[len(group) :], strict=True):
            solved[i] = value
    return solved


class _Seed(torch.autograd.Function):
    """A number whose derivative is given: torch imports a library of symbols for other seeds."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, cotangent: Tensor) -> Tensor:
        ctx.save_for_backward(cotangent)
        return value.new_zeros(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


def vjp(function: Callable[..., Any], *primals: Tensor) -> tuple[Any, Callable[[Any], Any]]:
    """``torch.func.vjp``, but where nothing is recorded and nothing looks on by autograd itself.

    The former imports torch's compiler, which takes a second.
    """
    watched = transforms_active() or is_watched()
    if torch.is_grad_enabled() or watched or torch.compiler.is_compiling():
        transformed: Any = torch.func.vjp(function, *primals)  # three only of one with has_aux
        return transformed[0], transformed[1]
    with torch.enable_grad():
        leaves = [primal.detach().requires_grad_() for primal in primals]
        values = function(*leaves)

    def pull(cotangents: Any) -> tuple[Tensor, ...]:
        single = isinstance(values, Tensor)
        in_pairs = [(values, cotangents)] if single else zip(values, cotangents, strict=True)
        pairs = [(value, cotangent) for value, cotangent in in_pairs if value.requires_grad]
        if not pairs:
            return tuple(torch.zeros_like(primal) for primal in primals)
        with torch.enable_grad():
            seeds = [_Seed.apply(value, cotangent) for value, cotangent in pairs]
        return torch.autograd.grad(seeds, leaves, allow_unused=True, materialize_grads=True)

    return values, pull


def _jacobian(
    graph: str,
    carries: int,
    inputs: Sequence[Tensor],
    live: list[int],
    needs: tuple[frozenset[int], ...],
) -> dict[tuple[int, int], Tensor]:
    """The derivatives of the new carries by the old ones, where they may not be zero."""
    module, entries = graph_module(graph), {}
    for j in live:
        wanted = [i for i in live if i in needs[j]]
        if not wanted:
            continue

        def new(*olds: Tensor, j: int = j, wanted: list[int] = wanted) -> Tensor:
            every = list(inputs)
            for i, old in zip(wanted, olds, strict=True):
                every[i] = old
            value: Tensor = module(*every)[j]
            return value

        value, pull = vjp(new, *(inputs[i] for i in wanted))
        for i, part in zip(wanted, pull(torch.ones_like(value)), strict=True):
            entries[j, i] = part
    return entries


def _circles(live: list[int], feeds: dict[int, list[int]]) -> list[list[int]]:
    """Groups of carries that feed each other, each after those that it feeds."""
    reach = {i: set(feeds[i]) for i in live}
    for k in live:  # everything that is fed on the way
        for i in live:
            if k in reach[i]:
                reach[i] |= reach[k]
    groups: list[list[int]] = []
    for i in live:
        if not any(i in group for group in groups):
            groups.append([i, *(j for j in live if j != i and j in reach[i] and i in reach[j])])
    return sorted(groups, key=lambda group: len(reach[group[0]] | set(group)))


@functools.lru_cache(maxsize=64)
def _circle_step(group: tuple[int, ...], pairs: tuple[tuple[int, int], ...]) -> str:
    """The step ``y[i] = c[i] + s[i]; c[i] = sum of J[j, i] y[j]``, emitting y."""
    count = len(group)
    calls: list[list[object]] = []

    def call(name: str, *nodes: str) -> str:
        calls.append([f"aten.{name}.Tensor", [{"node": n} for n in nodes], {}])
        return f"v{len(calls) - 1}"

    sums = {g: call("add", f"p{k}", f"p{count + k}") for k, g in enumerate(group)}
    new = []
    for i in group:
        total = ""
        for number, (j, to) in enumerate(pairs):
            if to == i:
                term = call("mul", f"p{2 * count + number}", sums[j])
                total = call("add", total, term) if total else term
        new.append(total)
    whole = {"inputs": 2 * count + len(pairs), "calls": calls, "outputs": [*new, *sums.values()]}
    # More than four carries in a circle are in no family.
    return json.dumps({**whole, "or_serial": True})
