"""Checks of arguments, wider dtypes for halves, and folded axes, for all functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from itertools import pairwise
from numbers import Number
from types import MappingProxyType

import torch
from torch import Tensor

from tvm_scan.torch.kernels.devices import has_kernels
from tvm_scan.torch.kernels.events import converted, told
from tvm_scan.torch.private import is_mapped, is_watched

#: Dtypes without recurrences of their own.
SMALL_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16)
#: Dtypes of indices, offsets and numbers of sequences.
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
#: Dtypes of floats that kernels compute with.
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_DTYPES = {*FLOATS, torch.bool, *INTEGERS, torch.complex64, torch.complex128}


def check(holds: bool, owner: str, expected: str, found: object, fix: str) -> None:
    """Raise ``ValueError`` in the project's form unless `holds`.

    No size goes into a text before: a program that is traced would be bound to it.
    """
    if not holds:
        raise ValueError(f"tvm_scan.torch.{owner}: expected {expected}, got {found}; {fix}")


def check_tensors(
    owner: str, optional: Mapping[str, object] = MappingProxyType({}), /, **tensors: object
) -> None:
    """Raise unless all are tensors, on one CPU or GPU or all without data.

    Every function has all its tensors checked here: torch itself takes some mixtures, and gives
    memory that nobody wrote. Those of `optional` may be None.
    """
    for name, value in optional.items():
        if value is not None:
            tensors[name] = value
    for name, tensor in tensors.items():
        _check_tensor(owner, name, tensor)
    if len(tensors) > 1:
        check_devices(owner, tensors)  # type: ignore[arg-type]


def check_devices(owner: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise unless all tensors are on one device."""
    pairs = iter(tensors.items())
    first, like = next(pairs)
    device = like.device
    for name, tensor in pairs:
        if tensor.device != device:
            found = f"{first} on {device} and {name} on {tensor.device}"
            check(False, owner, "all tensors on one device", found, "move them with .to")


def _check_tensor(owner: str, name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        found = "None" if value is None else type(value).__name__
        fix = "pass one" if value is None else "convert it with torch.as_tensor"
        check(False, owner, f"{name} to be a tensor", found, fix)
    elif not has_kernels(value) and value.device.type != "meta":
        check(False, owner, f"{name} on a CPU or GPU", value.device, "move it with .cpu()")
    elif value.dtype not in _DTYPES:
        expected = f"{name} of floats of 16 bits or more, of complex64, integers or bool"
        check(False, owner, expected, value.dtype, "convert it with .to")
    elif value.is_nested:
        fix = "convert it with torch.nested.to_padded_tensor, or pack the rows"
        check(False, owner, f"{name} with strides", "a nested tensor", fix)
    elif value.layout is not torch.strided:
        check(False, owner, f"{name} with strides", value.layout, "convert it with .to_dense()")


def check_number(owner: str, name: str, value: object) -> None:
    """Raise unless the value is a number, where a tensor would be taken as well."""
    fits = isinstance(value, (Number, torch.SymInt, torch.SymFloat))
    found = "None" if value is None else type(value).__name__
    check(fits, owner, f"{name} as a tensor or a number", found, "convert it with torch.as_tensor")


def check_offsets(owner: str, offsets: Tensor, length: int) -> None:
    """Raise unless offsets of packed sequences rise from 0 to the length; reads them."""
    values = offsets.tolist()
    rises = all(start <= stop for start, stop in pairwise(values))
    fits = bool(values) and rises and values[0] == 0 and values[-1] == length
    fix = "give the start of every sequence, and the length"
    check(fits, owner, f"cu_seqlens rising from 0 to {length}", values, fix)


def offsets_of(owner: str, cu_seqlens: Tensor, length: int) -> Tensor:
    """Return offsets of packed sequences in int64, checked where their values can be asked."""
    offsets = converted(cu_seqlens, torch.int64)
    # Not without waiting for a GPU, and not at all while a program is traced.
    asked = offsets.is_cpu and not torch.compiler.is_compiling()
    if asked and not is_watched() and not is_mapped(offsets):
        told(check_offsets, owner, offsets, length)
    return offsets


def axis_of(owner: str, x: Tensor, dim: int) -> int:
    """Return the number of an axis from the front; raise where there is none."""
    dims = max(x.dim(), 1)
    if not isinstance(dim, int) or not -dims <= dim < dims:
        expected = f"dim between {-dims} and {dims - 1}"
        check(False, owner, expected, dim, "name an axis of the tensor")
    return dim % dims


def framed(x: Tensor, dim: int) -> Tensor:
    """Fold the axes before and after time: (outer, length, inner)."""
    shape = x.shape
    if not shape:
        return x.reshape(1, 1, 1)
    return x.reshape(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))


def wide_of(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which inputs are computed: float32, or float64 for float64 inputs."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def wide(tensor: Tensor) -> Tensor:
    """Convert to float32, unless it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def widened(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert to the one dtype to which they are promoted, float32 at least."""
    common = wide_dtype(*tensors)
    return tuple(tensor.to(common) for tensor in tensors)


def wide_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the dtype to which tensors are promoted, float32 at least."""
    return functools.reduce(torch.promote_types, (wide_of(tensor.dtype) for tensor in tensors))
