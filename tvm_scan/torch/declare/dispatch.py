"""Calls that only the implementation of an operator would see, past torch's dispatcher.

The dispatcher takes as long as a small kernel runs. It may be left out where nothing is recorded,
transformed, mapped or watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch.autograd import forward_ad

from tvm_scan.torch.kernels.devices import has_kernels
from tvm_scan.torch.private import (
    dual_level_is_open,
    is_watched,
    only_device_is_left,
    transforms_active,
)

NAMESPACE = "tvm_scan"
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_VALUES = frozenset({bool, int, float, str, type(None)})


class _Library(torch.library.Library):
    """Puts a shorter way in front of the derivatives that are registered.

    torch's own kernel for them is a Python function that asks the dispatcher again; where nothing
    is recorded and nothing else would see the call, the implementation can be called at once.
    """

    #: By operator: the implementation, and whether it gives integers.
    implementations: ClassVar[dict[str, tuple[Callable[..., Any], bool]]] = {}

    def impl(self, op_name: str, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        """Register a kernel, as torch does."""
        if dispatch_key == "Autograd" and op_name in self.implementations:
            implementation, discrete = self.implementations[op_name]
            fn = _unrecorded(fn, implementation, f"{NAMESPACE}::{op_name}", discrete)
        super().impl(op_name, fn, dispatch_key, **options)


def _unrecorded(
    recording: Callable[..., Any], implementation: Callable[..., Any], name: str, discrete: bool
) -> Callable[..., Any]:
    """Return a kernel that calls `recording` only where something is recorded or looks on."""

    def kernel(keyset: Any, *arguments: Any, **named: Any) -> Any:
        if dual_level_is_open() and not discrete:
            refuse_tangents(name, arguments)
        if not only_device_is_left(keyset) or named or _is_recorded(arguments):
            return recording(keyset, *arguments, **named)
        return implementation(*arguments)

    return kernel


def _is_recorded(arguments: Iterable[Any]) -> bool:
    if not torch.is_grad_enabled():
        return False
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if argument.requires_grad:
                return True
        elif isinstance(argument, (list, tuple)) and _is_recorded(argument):
            return True
    return False


library = _Library(NAMESPACE, "FRAGMENT")


def sees_nothing(arguments: Iterable[Any]) -> bool:
    """Return whether nothing but the implementation would see a call."""
    return not (
        torch.compiler.is_compiling()
        or transforms_active()
        or is_watched()
        or is_recorded(arguments) is not False
    )


def refuse_tangents(name: str, arguments: Iterable[Any]) -> None:
    """Raise where a dual number comes in: what comes out would silently have no tangent."""
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            refuse_tangents(name, argument)
        elif isinstance(argument, torch.Tensor) and (
            forward_ad.unpack_dual(argument).tangent is not None
        ):
            raise NotImplementedError(forward_mode(name))


def forward_mode(name: str) -> str:
    """Say that there are no derivatives in forward mode."""
    return (
        f"{name}: expected tensors without tangents, got a derivative in forward mode (jvp, "
        "jacfwd, hessian); take torch.func.vjp or jacrev, and jacrev of jacrev for a Hessian"
    )


def is_recorded(arguments: Iterable[Any]) -> bool | None:
    """Return whether autograd would record a call; None where more than the device would see it.

    That is, unless all tensors are torch's own, on a CPU or GPU, and stand for themselves.
    """
    recorded = False
    for argument in arguments:
        kind = type(argument)
        if kind in _PLAIN:
            if not has_kernels(argument):
                return None
            # torch resolves the first two on the way; the last is refused there.
            if argument.is_neg() or argument.is_conj() or argument.is_nested:
                return None
            if argument.requires_grad and torch.is_grad_enabled():
                recorded = True
        elif isinstance(argument, (list, tuple)):
            inner = is_recorded(argument)
            if inner is None:
                return None
            recorded = recorded or inner
        elif kind not in _VALUES and isinstance(argument, torch.Tensor):
            return None
    return recorded
