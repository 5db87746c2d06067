"""Calls that autograd records, and nothing else sees, past torch's dispatcher.

It takes the arguments apart three times on the way to a derivative that is registered, and reads
the schema anew for each of them: of 14 arguments, 100 microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tvm_scan.torch.declare.transformed import Setup, gives_list, of_each
from tvm_scan.torch.kernels import events
from tvm_scan.torch.private import schema_of


def recorded(
    overload: Callable[..., Any],
    implementation: Callable[..., Any],
    backward: Callable[..., Any],
    setup: Setup,
) -> Callable[..., Any] | None:
    """Make a call of an implementation that autograd records.

    Parameters
    ----------
    overload : callable
        The operator.
    implementation : callable
        Its implementation.
    backward, setup : callable
        As they are registered with the operator.

    Returns
    -------
    callable or None
        Of the arguments. None where one is a list, whose tensors autograd would not see.
        `kernels.events` is told of its calls, with a function that makes one alike: it takes the
        arguments, and last what does the implementation's part.
    """
    kinds, is_list = [str(a.type) for a in schema_of(overload).arguments], gives_list(overload)
    if "List[Tensor]" in kinds:
        return None

    pull = of_each(backward, overload)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *passed: Any) -> Any:
            # Last, for backward asks by number which arguments need gradients.
            arguments, way = passed[:-1], passed[-1]
            results = implementation(*arguments) if way is None else way(*arguments)
            setup(ctx, arguments, results)
            return tuple(results) if is_list else results

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return (*pull(ctx, *grads), None)

    apply = Function.apply

    def call(*arguments: Any) -> Any:
        results = events.recorded(apply, arguments)
        return list(results) if is_list else results

    return call
