"""Parts of torch that it does not publish, in one place.

They were checked on the version of torch that `CHECKED` names. ``tests/torch/test_private.py``
holds what is relied on, and fails with another version, so that somebody looks.

Each says what it buys: an answer that torch gives nowhere else, or microseconds of a call of
`affine_scan` on 32 elements, measured on an AMD EPYC, Zen 4. The question whether any autocast is
on went, which bought 0.2 microseconds, and that for the number of a CUDA stream, which has a public
form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree

#: The version of torch.
CHECKED = "2.13"
#: Name of torch's log of what its operators refuse of tensors without data.
FAKE_TENSOR_LOG = "torch._subclasses.fake_tensor"

#: Trees of tensors: torch publishes them as a package of their own, which need not be there.
pytree = _pytree

#: The number of modes that see every function of torch. `tensor_check` answers for those that see
#: every operator, and this takes 0.06 instead of the 0.16 microseconds of `is_watched`.
function_modes = torch._C._len_torch_function_stack

#: Tells autograd that a kernel wrote to the tensors of a tuple. What torch publishes asks first
#: whether it is given one tensor: 0.1 microseconds, and twice that after an idle moment.
increment_version = torch._C._increment_version

#: Allocates a tensor, given its extents, strides and dtype. The public one that says the same takes
#: 0.74 instead of 0.43 microseconds (a Zen 5); compiled programs allocate by it.
empty_on_cpu: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
empty_on_cpu = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Whether a transform of torch.func is in progress: torch says so nowhere else. With `is_watched`
#: it lets a call go past the dispatcher: 7.4 instead of 9.9 microseconds, of which both take 0.2.
transforms_active = torch._C._are_functorch_transforms_active


def dual_level_is_open() -> bool:
    """Return whether derivatives in forward mode are being taken: torch says so nowhere else."""
    return forward_ad._current_level >= 0


def is_watched() -> bool:
    """Return whether a mode of torch sees every operator, or forward derivatives are taken.

    See `transforms_active` for what it buys.
    """
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or forward_ad._current_level >= 0
    )


def is_mapped(tensor: torch.Tensor) -> bool:
    """Return whether a tensor stands for those of a mapped axis: its values cannot be asked.

    Torch says so nowhere else.
    """
    return bool(torch._C._functorch.is_batchedtensor(tensor))


def only_device_is_left(keyset: Any) -> bool:
    """Return whether the dispatcher, given these keys, has only a device's kernel left to call.

    Modes, transforms, conjugation and the rest stand before the device's own key. A call through
    the dispatcher, as compiled programs make it, takes 9.9 instead of 15.7 microseconds.
    """
    return (keyset & _AFTER_AUTOGRAD).highestPriorityTypeId() in _DEVICES


_AFTER_AUTOGRAD: Any = torch._C._after_autograd_keyset
_DEVICES = frozenset({torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA})


def tensor_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return a function of as many tensors: whether they differ from these in their values alone.

    That is, in nothing that the dispatcher asks (a mode, a transform, a change of sign that is put
    off), nor in types, dtypes, devices, extents and strides, nor are two of them one. Compiled
    programs ask it of their arguments. Of six tensors it takes 1.0 instead of 7.8 microseconds that
    a key of public answers and its look-up take (an Emerald Rapids).
    """
    # Its types say otherwise; a list for each tensor is what torch's compiler passes.
    extents: Any = [list(tensor.shape) for tensor in tensors]
    strides: Any = [list(tensor.stride()) for tensor in tensors]
    guards = torch._C._dynamo.guards.TensorGuards(
        *tensors, dynamic_dims_sizes=extents, dynamic_dims_strides=strides
    )
    return cast("Callable[..., bool]", guards.check)


def core_decompositions() -> Any:
    """Return torch's table of operators in terms of fewer, which it publishes nowhere else.

    This imports torch's compiler, which takes two seconds.
    """
    from torch._decomp import core_aten_decompositions

    return core_aten_decompositions()


def fake_tensor_mode(sizes: Any) -> Any:
    """Return a mode of tensors without data, whose sizes may be symbols of `sizes`.

    Torch has no other.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=True)


def schema_of(function: Any) -> Any:
    """Return the schema of an operator, which is published nowhere; None for other functions."""
    return function._schema if isinstance(function, torch._ops.OpOverload) else None


def assumed_constant(function: _Function) -> _Function:
    """Have torch.compile call a function while it compiles, and keep what it returns.

    As ``torch.compiler.assume_constant_result`` does, which imports torch's compiler: two seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
