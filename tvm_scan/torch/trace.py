"""What a user's function does in one step, as text.

The text is what a kernel is built from, found by on disk, and differentiated by; it holds torch's
own operators, so that nothing of TVM is needed to make it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["graph_module", "is_pointwise", "may_be_serial", "trace", "with_outputs"]

#: Operators that treat every element alike but are not tagged so by torch.
_ALSO_POINTWISE = (
    "_to_copy.default",
    "alias.default",
    "clone.default",
    "detach.default",
    "full_like.default",
    "ones_like.default",
    "scalar_tensor.default",
    "zeros_like.default",
)
#: Arguments that say nothing about values.
_LAYOUT = ("device", "layout", "memory_format", "non_blocking", "pin_memory")


def trace(
    function: Callable[..., Sequence[Tensor]], slices: Sequence[Tensor], owner: str
) -> tuple[str, list[Tensor]]:
    """Record a function of tensors.

    Parameters
    ----------
    function : callable
        Takes tensors, returns a sequence of tensors.
    slices : sequence of Tensor
        What it takes: only shapes and dtypes matter.
    owner : str
        Who asks, for errors.

    Returns
    -------
    text : str
        For `graph_module`; its inputs are those of the function, then the tensors below.
    shared : list of Tensor
        Tensors that the function reads beside its arguments.

    Raises
    ------
    ValueError
        If it depends on the values of its inputs other than by torch operators, or calls an
        operator that cannot be written down.
    """
    from torch._decomp import core_aten_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    stand_ins = [torch.empty(s.shape, dtype=s.dtype) for s in slices]
    with torch.no_grad():
        try:
            module = make_fx(
                torch.func.functionalize(function),
                # torch annotates the table more narrowly than it makes it.
                decomposition_table=core_aten_decompositions(),  # type: ignore[arg-type]
                tracing_mode="fake",
                _allow_non_fake_inputs=True,
            )(*stand_ins)
        except torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode as error:
            raise ValueError(
                f"tvm_scan.torch.{owner}: expected a function made of torch operators, got one "
                f"that branches on a value ({error}); use torch.where"
            ) from error
    return _write(module, owner)


def _write(module: torch.fx.GraphModule, owner: str) -> tuple[str, list[Tensor]]:
    module.graph.eliminate_dead_code()
    nodes = list(module.graph.nodes)
    names = {n: f"p{i}" for i, n in enumerate(n for n in nodes if n.op == "placeholder")}
    constants = [n for n in nodes if n.op == "get_attr"]
    inputs = len(names)
    names |= {n: f"p{inputs + i}" for i, n in enumerate(constants)}

    def value(item: Any) -> Any:
        if isinstance(item, torch.fx.Node):
            return {"node": names[item]}
        if isinstance(item, (list, tuple)):
            return [value(part) for part in item]
        if isinstance(item, torch.dtype):
            return {"dtype": str(item).removeprefix("torch.")}
        if item is None or isinstance(item, (bool, int, float, str)):
            return item
        raise ValueError(
            f"tvm_scan.torch.{owner}: expected operators with tensors and numbers, got the "
            f"argument {item!r}; compute it outside the function"
        )

    calls: list[list[Any]] = []
    for node in nodes:
        if node.op == "call_function":
            names[node] = f"v{len(calls)}"
            target = "getitem" if node.target.__name__ == "getitem" else str(node.target)
            kwargs = {k: value(v) for k, v in node.kwargs.items() if k not in _LAYOUT}
            calls.append([target, value(node.args), kwargs])
    results = [names[node] for node in nodes[-1].args[0]]
    whole = {"inputs": inputs + len(constants), "calls": calls, "outputs": results}
    return json.dumps(whole), [getattr(module, n.target) for n in constants]


@functools.lru_cache(maxsize=512)
def graph_module(text: str) -> torch.fx.GraphModule:
    """Make a callable graph of a text by `trace`; it returns a tuple of tensors."""
    whole = json.loads(text)
    graph = torch.fx.Graph()
    nodes = {f"p{i}": graph.placeholder(f"p{i}") for i in range(whole["inputs"])}

    def value(item: Any) -> Any:
        if isinstance(item, dict):
            return nodes[item["node"]] if "node" in item else getattr(torch, item["dtype"])
        return [value(part) for part in item] if isinstance(item, list) else item

    for i, (target, args, kwargs) in enumerate(whole["calls"]):
        called = {k: value(v) for k, v in kwargs.items()}
        nodes[f"v{i}"] = graph.call_function(_resolved(target), tuple(value(args)), called)
    graph.output(tuple(nodes[name] for name in whole["outputs"]))
    return torch.fx.GraphModule({}, graph)


def _resolved(target: str) -> Any:
    if target == "getitem":
        import operator

        return operator.getitem
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part)
    return found


@functools.lru_cache(maxsize=512)
def is_pointwise(text: str) -> bool:
    """Whether every element of the results depends on the inputs' elements at its place only."""
    for target, _, _ in json.loads(text)["calls"]:
        if target == "getitem":
            return False
        tagged = torch.Tag.pointwise in _resolved(target).tags
        if not tagged and target.removeprefix("aten.") not in _ALSO_POINTWISE:
            return False
    return True


@functools.lru_cache(maxsize=512)
def may_be_serial(text: str) -> bool:
    """Whether the graph, where it is no provable scan, may run one step after another."""
    return bool(json.loads(text).get("or_serial", False))


@functools.lru_cache(maxsize=512)
def with_outputs(text: str, inputs: int) -> str:
    """Return the graph that, after its results, also returns its first inputs."""
    whole = json.loads(text)
    whole["outputs"] += [f"p{i}" for i in range(inputs)]
    return json.dumps(whole)
