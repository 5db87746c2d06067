"""Loops that ``torch.export`` unrolled, rolled up again into ``scan``.

A Python loop over time leaves one copy of its body for each step in the exported graph. Where
the copies are exactly alike, they are one body: the same operators with the same constants, which
differ only in the step of an input that they select, and in the copy of the body that they read.
"""

from __future__ import annotations

from typing import Any

from tvm_scan.relax.import_torch.roll_collect import (
    Collected,
    RolledLoop,
    collected,
    forward_reads,
)
from tvm_scan.relax.import_torch.roll_match import LoopRoller
from tvm_scan.relax.import_torch.scan_graph import results_of

#: Fewer copies are no loop worth a kernel of its own.
_LEAST_STEPS = 4
#: Steps in front of a loop that were written apart: the first, or the two of a second order.
_MOST_APART = 2


def roll_loops(module: Any) -> list[RolledLoop]:
    """Roll up the unrolled loops of a graph, in place.

    A loop is recognised by what collects its steps: ``stack``, ``cat``, or a chain of
    ``select_scatter`` (``y[:, t] = ...``) along an axis, in either direction. What is not exactly
    alike in all steps, but for the first or the first two, stays as it is, and so does a graph
    that writes to tensors in place.

    Parameters
    ----------
    module : torch.fx.GraphModule
        A graph of ATen operators without side effects, as of an exported program.

    Returns
    -------
    list of RolledLoop
        One for each loop, in the order of the graph.
    """
    import torch

    aten = torch.ops.aten
    if any(_has_effects(node) for node in module.graph.nodes):
        return []
    names = [getattr(node, "name", None) for node in results_of(module.graph)]
    reports = []
    forward_reads(module.graph, aten)
    for anchor in list(module.graph.nodes):
        loop = _matched(module, collected(anchor, aten), aten)
        if loop is not None:
            reports.append(loop.replace())
    if reports:
        module.graph.eliminate_dead_code(is_impure_node=_is_impure)
        _keep_names(module, names)
        module.graph.lint()
        module.recompile()
    return reports


def _matched(module: Any, whole: Collected | None, aten: Any) -> LoopRoller | None:
    """The loop of what was collected, with as few of its first steps apart as can be."""
    for apart in range(_MOST_APART + 1):
        for order in whole.orders if whole is not None else []:
            if len(order.steps) - apart < _LEAST_STEPS:
                return None
            roller = LoopRoller(module, order.without(apart), aten)
            if roller.match_all():
                return roller
    return None


def _keep_names(module: Any, names: list[str | None]) -> None:
    """Give the results the names that the signature of an exported program knows them by."""
    for node, name in zip(results_of(module.graph), names, strict=True):
        if name is None or node.name == name:
            continue
        for other in module.graph.nodes:
            if other.name == name:
                other.name = f"{name}_unrolled"
        node.name = name


def _has_effects(node: Any) -> bool:
    """Return whether a node writes to a tensor, or draws random numbers."""
    import torch

    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return True
    # These two mark tensors, they do not write to them.
    harmless = ("aten.detach_.default", "aten.lift_fresh.default")
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and str(node.target) not in harmless


def _is_impure(node: Any) -> bool:
    # A check of metadata that export has made already keeps the copies of a body alive.
    checks = "_assert_tensor_metadata" in str(node.target)
    return node.op in ("placeholder", "output") or (not checks and node.is_impure())
