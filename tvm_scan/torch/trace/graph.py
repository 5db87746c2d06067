"""The step of a user's function, as text.

The text is what a kernel is built from, found by on disk, and differentiated by; it holds torch's
own operators, so that nothing of TVM is needed to make it.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.private import core_decompositions, fake_tensor_mode, schema_of
from tvm_scan.torch.trace.sizes import Kinds, has_names, sized

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
    function: Callable[..., Sequence[Tensor]], kinds: Kinds, owner: str, device: torch.device
) -> tuple[str, list[Tensor]]:
    """Record a function of tensors.

    Parameters
    ----------
    function : callable
        Takes tensors, returns a sequence of tensors.
    kinds : Kinds
        Shapes and dtypes of what it takes.
    owner : str
        Who asks, for errors.
    device : torch.device
        Where it takes them from, and finds what it reads beside them.

    Returns
    -------
    text : str
        For `graph_module`; its inputs are those of the function, then the tensors below.
    shared : list of Tensor
        Tensors that the function reads beside its arguments.

    Raises
    ------
    ValueError
        If it depends on the values of its inputs other than by torch operators, calls an
        operator that cannot be written down, or depends on a size that varies.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    stand_ins = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in sized(kinds)]
    sizes = None
    if has_names(kinds):
        stand_ins, sizes = _with_symbols(stand_ins, kinds)
    with torch.no_grad():
        try:
            module = make_fx(
                torch.func.functionalize(function),
                decomposition_table=core_decompositions(),
                tracing_mode="fake",
                _allow_non_fake_inputs=True,
            )(*stand_ins)
        except torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode as error:
            raise ValueError(
                f"tvm_scan.torch.{owner}: expected a function made of torch operators, got one "
                f"that branches on a value ({error}); use torch.where"
            ) from error
    if sizes is not None and (sizes.guards or sizes.replacements or _computes_sizes(module)):
        expected = "a function that does the same at every size"
        raise ValueError(f"tvm_scan.torch.{owner}: expected {expected}, got one that reads a size")
    return _write(module, owner)


def _with_symbols(stand_ins: Sequence[Tensor], kinds: Kinds) -> tuple[list[Tensor], Any]:
    """Return fake tensors with a symbol for every size that varies, and what is learned of them."""
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        ShapeEnv,
        StatelessSymbolicContext,
    )

    sizes = ShapeEnv()
    mode = fake_tensor_mode(sizes)

    def fake(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        # Symbols are shared where the numbers are the same, and so the names.
        dims = [DimDynamic.DUCK if n < 0 else DimDynamic.STATIC for n in shape]
        context: Any = StatelessSymbolicContext(dynamic_sizes=dims)
        symbolic: Tensor = mode.from_tensor(tensor, symbolic_context=context)
        return symbolic

    return [fake(t, shape) for t, (shape, _) in zip(stand_ins, kinds, strict=True)], sizes


def _computes_sizes(module: torch.fx.GraphModule) -> bool:
    calls = (node for node in module.graph.nodes if node.op == "call_function")
    return any(isinstance(node.meta.get("val"), torch.SymInt) for node in calls)


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
def graph_module(text: str, device: str | None = None) -> torch.fx.GraphModule:
    """Make a callable graph of a text by `trace`; it returns a tuple of tensors.

    Tensors that it makes of numbers alone are made on the device, which no text names.
    """
    whole = json.loads(text)
    graph = torch.fx.Graph()
    nodes = {f"p{i}": graph.placeholder(f"p{i}") for i in range(whole["inputs"])}

    def value(item: Any) -> Any:
        if isinstance(item, dict):
            return nodes[item["node"]] if "node" in item else getattr(torch, item["dtype"])
        return [value(part) for part in item] if isinstance(item, list) else item

    for i, (target, args, kwargs) in enumerate(whole["calls"]):
        called, function = {k: value(v) for k, v in kwargs.items()}, _resolved(target)
        if device is not None and _makes_tensors(function):
            called["device"] = torch.device(device)
        nodes[f"v{i}"] = graph.call_function(function, tuple(value(args)), called)
    graph.output(tuple(nodes[name] for name in whole["outputs"]))
    return torch.fx.GraphModule({}, graph)


def _makes_tensors(function: Any) -> bool:
    """Return whether an operator takes a device, and no tensor that would say one."""
    schema = schema_of(function)
    if schema is None:
        return False
    arguments = schema.arguments
    takes = any("Tensor" in str(argument.type) for argument in arguments)
    return not takes and any(argument.name == "device" for argument in arguments)


def _resolved(target: str) -> Any:
    if target == "getitem":
        return operator.getitem
    return operator.attrgetter(target)(torch.ops)


@functools.lru_cache(maxsize=512)
def is_pointwise(text: str) -> bool:
    """Return whether elements of results depend on the inputs' elements at their index only."""
    for target, _, _ in json.loads(text)["calls"]:
        if target == "getitem":
            return False
        tagged = torch.Tag.pointwise in _resolved(target).tags
        if not tagged and target.removeprefix("aten.") not in _ALSO_POINTWISE:
            return False
    return True


@functools.lru_cache(maxsize=512)
def may_be_serial(text: str) -> bool:
    """Return whether the graph, where it is no provable scan, may run one step after another."""
    return bool(json.loads(text).get("or_serial", False))


@functools.lru_cache(maxsize=512)
def with_outputs(text: str, inputs: int) -> str:
    """Return the graph that, after its results, also returns its first inputs."""
    whole = json.loads(text)
    whole["outputs"] += [f"p{i}" for i in range(inputs)]
    return json.dumps(whole)
