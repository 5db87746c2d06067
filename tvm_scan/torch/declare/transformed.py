"""Derivatives of operators for torch.func, which differentiates autograd.Functions alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tvm_scan.torch.declare.dispatch import forward_mode
from tvm_scan.torch.private import pytree, schema_of

#: Saves what the derivative needs: a context, the arguments, the results.
Setup = Callable[[Any, tuple[Any, ...], Any], None]


def transformed(
    name: str,
    overload: Callable[..., Any],
    backward: Callable[..., Any],
    setup: Setup,
    rule: Callable[..., Any],
) -> Callable[[Sequence[Any]], Any]:
    """Make a call of an operator that the transforms of torch.func see through.

    Parameters
    ----------
    name : str
        Of the operator.
    overload : callable
        The operator.
    backward, setup : callable
        As they are registered with the operator: a gradient or None for every argument, for one
        that is a list a list of them.
    rule : callable
        As it is registered for vmap.

    Returns
    -------
    callable
        Of the arguments.
    """

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(*flat: Any) -> Any:
            results = overload(*_whole(flat))
            return tuple(results) if isinstance(results, list) else results

        @staticmethod
        def vmap(info: Any, in_dims: Any, *flat: Any) -> Any:
            results, dims = rule(info, _whole((*in_dims[:-1], flat[-1])), *_whole(flat))
            return (tuple(results), tuple(dims)) if isinstance(results, list) else (results, dims)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise NotImplementedError(forward_mode(name))

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        setup(ctx, _whole(inputs), output)

    backward = of_each(backward, overload)

    def pull(ctx: Any, *grads: Any) -> Any:
        return (*pytree.tree_leaves(backward(ctx, *grads)), None)

    # How torch wants them; mypy holds them to the signatures of the base class.
    Function.setup_context = staticmethod(setup_context)  # type: ignore[method-assign]
    Function.backward = staticmethod(pull)  # type: ignore[method-assign]
    is_list = gives_list(overload)

    def call(arguments: Sequence[Any]) -> Any:
        flat, structure = pytree.tree_flatten(tuple(arguments))
        results = Function.apply(*flat, structure)
        return list(results) if is_list else results

    return call


def of_each(backward: Callable[..., Any], overload: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator's derivative as a function of the gradient of each result.

    As it is registered, that of an operator with a list of results takes a list.
    """
    if not gives_list(overload):
        return backward
    return lambda ctx, *grads: backward(ctx, list(grads))


def gives_list(overload: Callable[..., Any]) -> bool:
    """Return whether the result of an operator is a list of tensors."""
    return str(schema_of(overload).returns[0].type) == "List[Tensor]"


def _whole(flat: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of which these are the leaves, followed by their structure."""
    *leaves, structure = flat
    whole: tuple[Any, ...] = pytree.tree_unflatten(leaves, structure)
    return whole
