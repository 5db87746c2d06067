"""Parts of torch that it does not publish, in one place.

They were checked on the version of torch that `CHECKED` names. ``tests/torch/test_private.py``
holds what is relied on, and fails with another version, so that somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

__all__ = [
    "CHECKED",
    "FAKE_TENSOR_LOG",
    "assumed_constant",
    "core_decompositions",
    "dual_level_is_open",
    "fake_tensor_mode",
    "is_mapped",
    "is_watched",
    "only_device_is_left",
    "pytree",
    "schema_of",
    "transforms_active",
]

#: The version of torch.
CHECKED = "2.13"
#: Name of torch's log of what its operators refuse of tensors without data.
FAKE_TENSOR_LOG = "torch._subclasses.fake_tensor"

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Whether a transform of torch.func is in progress.
transforms_active = torch._C._are_functorch_transforms_active


def dual_level_is_open() -> bool:
    """Whether derivatives in forward mode are being taken."""
    return forward_ad._current_level >= 0


def is_watched() -> bool:
    """Whether a mode of torch sees every operator, or derivatives in forward mode are taken."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or forward_ad._current_level >= 0
    )


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for those of a mapped axis, so that its values cannot be asked."""
    return bool(torch._C._functorch.is_batchedtensor(tensor))


def only_device_is_left(keyset: Any) -> bool:
    """Whether the dispatcher, given these keys, has only a device's kernel to call after autograd.

    Modes, transforms, conjugation and the rest stand before the device's own key.
    """
    left: Any = (keyset & torch._C._after_autograd_keyset).highestPriorityTypeId()
    return left in _DEVICES


_DEVICES = (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)


def core_decompositions() -> Any:
    """Return torch's table of operators in terms of fewer; it imports torch's compiler."""
    from torch._decomp import core_aten_decompositions

    return core_aten_decompositions()


def fake_tensor_mode(sizes: Any) -> Any:
    """Return a mode of tensors without data, whose sizes may be symbols of `sizes`."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=True)


def schema_of(function: Any) -> Any:
    """Return the schema of an operator of torch; None for any other function."""
    return function._schema if isinstance(function, torch._ops.OpOverload) else None


def assumed_constant(function: _Function) -> _Function:
    """Have torch.compile call a function while it compiles, and keep what it returns.

    As ``torch.compiler.assume_constant_result`` does, which imports torch's compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
