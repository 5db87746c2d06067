"""Derivatives of operators for torch.func, which differentiates autograd.Functions alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tvm_scan.torch.declare.dispatch import forward_mode

#: Saves what the derivative needs: a context, the arguments, the results.
Setup = Callable[[Any, tuple[Any, ...], Any], None]


@dataclass(frozen=True)
class _Layout:
    """Numbers of tensors of the arguments that are lists; None for the other arguments."""

    counts: tuple[int | None, ...]

    def flat(self, values: Sequence[Any]) -> list[Any]:
        """The items of all lists among the values one by one; None stands for a list of None."""
        tensors: list[Any] = []
        for value, count in zip(values, self.counts, strict=True):
            if count is None:
                tensors.append(value)
            else:
                tensors += [None] * count if value is None else value
        return tensors

    def whole(self, flat: Sequence[Any]) -> tuple[Any, ...]:
        """Group flat items into lists again."""
        rest = iter(flat)
        return tuple(
            next(rest) if count is None else [next(rest) for _ in range(count)]
            for count in self.counts
        )


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
        As they are registered with the operator: a gradient or None for every argument.
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
            results = overload(*flat[-1].whole(flat[:-1]))
            return tuple(results) if isinstance(results, list) else results

        @staticmethod
        def vmap(info: Any, in_dims: Any, *flat: Any) -> Any:
            layout = flat[-1]
            results, dims = rule(info, layout.whole(in_dims[:-1]), *layout.whole(flat[:-1]))
            return (tuple(results), tuple(dims)) if isinstance(results, list) else (results, dims)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise NotImplementedError(forward_mode(name))

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.layout = inputs[-1]
        setup(ctx, ctx.layout.whole(inputs[:-1]), output)

    def pull(ctx: Any, *grads: Any) -> Any:
        gradients = backward(ctx, list(grads)) if gives_list else backward(ctx, *grads)
        return (*ctx.layout.flat(gradients), None)

    # How torch wants them; mypy holds them to the signatures of the base class.
    Function.setup_context = staticmethod(setup_context)  # type: ignore[method-assign]
    Function.backward = staticmethod(pull)  # type: ignore[method-assign]
    gives_list = str(overload._schema.returns[0].type) == "List[Tensor]"  # type: ignore[attr-defined]

    def call(arguments: Sequence[Any]) -> Any:
        counts = tuple(len(a) if isinstance(a, (list, tuple)) else None for a in arguments)
        layout = _Layout(counts)
        results = Function.apply(*layout.flat(arguments), layout)
        return list(results) if gives_list else results

    return call
