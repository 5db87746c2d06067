"""Running extrema as torch operators: values, positions, and the gradient of the values.

On arrays (outer, length, inner). What is traced or differentiated in forward mode takes the
positions alone, and gathers: those are operators that everything knows.
"""

from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.runtime import aligned_empty
from tvm_scan.torch.kernels.spec import KernelSpec
from tvm_scan.torch.ops.affine import fold
from tvm_scan.torch.ops.direct import SIZES, frame_of
from tvm_scan.torch.ops.operator import operator

__all__ = ["extremum", "extremum_gradient", "positions", "run_extremum", "run_framed"]


def run_framed(factory: str, x: Tensor, arrays: tuple[Tensor, ...], **options: Any) -> None:
    """Run a kernel on arrays (outer, length, inner); its dtype is that of `x`."""
    sizes, time_last, shape = frame_of(x.shape)
    options |= {"dtype": str(x.dtype).removeprefix("torch."), "time_last": time_last}
    spec = KernelSpec(factory, tuple(sorted(options.items())), SIZES)
    run_kernel(spec, sizes, *(array.reshape(shape) for array in arrays))


def _positions(x: Tensor, smallest: bool, reverse: bool) -> Tensor:
    """Say where the running maximum (or minimum) along the middle axis was taken.

    As torch does it: of equal values the latest, and a NaN beats every number. The values are
    ``x.gather(1, positions)``, whose derivative is torch's own.
    """
    out = aligned_empty(x.shape, torch.int64, x.device)
    if not x.numel():
        return out
    options = {"smallest": smallest, "reverse": reverse}
    if x.dtype in (torch.float64, torch.int64):
        keys = aligned_empty(x.shape, torch.int64, x.device)
        run_framed("running_keys", x, (x, keys), **options)
        run_framed("positions_of_keys", x, (x, keys, out), **options)
    else:
        run_framed("positions_packed", x, (x, out), **options)
    return out


positions = operator(_positions, "positions", discrete=True)


@positions.fake
def _(x: Tensor, smallest: bool, reverse: bool) -> Tensor:
    return torch.empty_like(x, dtype=torch.int64, memory_format=torch.contiguous_format)


@positions.vmap
def _(info: Any, in_dims: Any, x: Tensor, smallest: bool, reverse: bool) -> tuple[Tensor, int]:
    out = positions(fold(x, in_dims[0], info.batch_size), smallest, reverse)
    return out.unflatten(0, (info.batch_size, -1)), 0


def run_extremum(x: Tensor, smallest: bool, reverse: bool) -> tuple[Tensor, Tensor]:
    """Running maximum (or minimum) along the middle axis, and the `positions` of it."""
    if x.dtype in (torch.float64, torch.int64):  # no room for a step beside the value
        where = _positions(x, smallest, reverse)
        return x.gather(1, where), where
    values = aligned_empty(x.shape, x.dtype, x.device)
    where = aligned_empty(x.shape, torch.int64, x.device)
    if x.numel():
        run_framed("extremum", x, (x, values, where), smallest=smallest, reverse=reverse)
    return values, where


extremum = operator(run_extremum, "extremum")


@extremum.fake
def _(x: Tensor, smallest: bool, reverse: bool) -> tuple[Tensor, Tensor]:
    values = torch.empty_like(x, memory_format=torch.contiguous_format)
    return values, torch.empty_like(values, dtype=torch.int64)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, _, ctx.reverse = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # or torch makes zeros for the positions
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None
    (where,) = ctx.saved_tensors
    return extremum_gradient(grad, where, ctx.reverse), None, None


extremum.gradient(_backward, _setup)


@extremum.vmap
def _(
    info: Any, in_dims: Any, x: Tensor, smallest: bool, reverse: bool
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    found = extremum(fold(x, in_dims[0], info.batch_size), smallest, reverse)
    values, where = (t.unflatten(0, (info.batch_size, -1)) for t in found)
    return (values, where), (0, 0)


@operator
def extremum_gradient(grad: Tensor, where: Tensor, reverse: bool) -> Tensor:
    """Add up the gradients of what was taken at each step."""
    out = aligned_empty(grad.shape, grad.dtype, grad.device)
    if grad.numel():
        run_framed("extremum_gradient", grad, (grad, where, out), reverse=reverse)
    return out


@extremum_gradient.fake
def _(grad: Tensor, where: Tensor, reverse: bool) -> Tensor:
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def _setup_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (where,) = ctx.saved_tensors
    return grad.gather(1, where), None, None


extremum_gradient.gradient(_backward_gradient, _setup_gradient)


@extremum_gradient.vmap
def _(info: Any, in_dims: Any, grad: Tensor, where: Tensor, reverse: bool) -> tuple[Tensor, int]:
    size = info.batch_size
    folded = (fold(t, dim, size) for t, dim in zip((grad, where), in_dims, strict=False))
    return extremum_gradient(*folded, reverse).unflatten(0, (size, -1)), 0
