"""Recursive digital filters as a torch operator, differentiable any number of times."""

import functools
import math
from typing import Annotated, Any

import torch
from torch import Tensor

from tvm_scan.filter_arguments import check_filters
from tvm_scan.torch.arguments import check, widened
from tvm_scan.torch.declare.checked import checked
from tvm_scan.torch.declare.operator import operator
from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.runtime import aligned_like
from tvm_scan.torch.kernels.spec import KernelSpec, dtype_name

#: Coefficients of a filter of order 4, the highest whose companion matrices are scanned.
MOST_TAPS = 5


@operator(name="lfilter", like="waveform")
def _lfilter(waveform: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Filter (outer, channels, time) by coefficients (channels, taps), at rest at first."""
    check_filters(waveform.shape, a.shape, b.shape, [dtype_name(t.dtype) for t in (waveform, a, b)])
    out = aligned_like(waveform)
    if a.shape[1] == 1:
        return waveform * (b / a)
    if waveform.numel():
        kind, sizes = dtype_name(waveform.dtype), ("outer", "channels", "length")
        spec = KernelSpec.of("lfilter", sizes, dtype=kind, taps=a.shape[1])
        run_kernel(spec, tuple(waveform.shape), waveform, a, b, out)
    return out


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    # With F = a * y - b * x = 0, the adjoint v of F solves the all-pole filter from the end.
    x, a, b, y = ctx.saved_tensors
    poles = torch.cat((torch.ones_like(b[:, :1]), torch.zeros_like(b[:, 1:])), 1)
    v = _lfilter(grad.flip(-1), a, poles).flip(-1)
    taps = range(a.shape[1])
    grad_x = sum(b[:, k, None] * _delayed(v, -k) for k in taps) if ctx.needs_input_grad[0] else None
    grad_a = torch.stack([-(v * _delayed(y, k)).sum((0, 2)) for k in taps], 1)
    grad_b = torch.stack([(v * _delayed(x, k)).sum((0, 2)) for k in taps], 1)
    return grad_x, grad_a, grad_b


def _delayed(x: Tensor, steps: int) -> Tensor:
    """``x`` moved along time, backwards where `steps` is negative, with zeros at the end."""
    if abs(steps) >= x.shape[-1]:
        return torch.zeros_like(x)
    return torch.nn.functional.pad(x, (steps, -steps))


_lfilter.gradient(_backward, "waveform a b results")


@_lfilter.vmap
def _(call: Any, size: int, dims: Any, tensors: Any) -> tuple[Tensor, int]:
    waveform, a, b = (
        t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, dims, strict=True)
    )
    channels = a.shape[1]
    together = waveform.transpose(0, 1).flatten(1, 2)
    out = call(together, a.flatten(0, 1), b.flatten(0, 1))
    return out.unflatten(1, (size, channels)), 1


@checked
def lfilter(
    waveform: Annotated[Tensor, "..."],
    a_coeffs: Annotated[Tensor, "..."],
    b_coeffs: Annotated[Tensor, "..."],
    clamp: bool = True,
) -> Tensor:
    """Filter along the last axis, as ``torchaudio.functional.lfilter``.

    ``a[0] y[t] = b[0] x[t] + ... + b[k] x[t-k] - a[1] y[t-1] - ... - a[k] y[t-k]``, at rest before
    the first sample. Up to order 4 it is a scan of companion matrices.

    Parameters
    ----------
    waveform : Tensor
        (..., time), or (..., channels, time) where each channel has a filter; floating
        point. All tensors are promoted to one dtype; halves are filtered in float32.
    a_coeffs, b_coeffs : Tensor
        (taps,), or (channels, taps); ``a_coeffs[..., 0]`` is not 0.
    clamp : bool
        Whether to limit the result to -1 ... 1.

    Returns
    -------
    Tensor
        Of the shape of the waveform, in the dtype to which all tensors are promoted.

    Raises
    ------
    ValueError
        If the arguments do not fit, or the order is above 4.
    """
    owner = "lfilter"
    check(waveform.dim() > 0, owner, "a waveform with a time axis", "a scalar", "unsqueeze it")
    taps, other = a_coeffs.shape, b_coeffs.shape
    if taps != other or a_coeffs.dim() not in (1, 2):
        expected = "a_coeffs and b_coeffs of one shape, (taps,) or (channels, taps)"
        found = f"{tuple(taps)} and {tuple(other)}"
        check(False, owner, expected, found, "pad the shorter with zeros")
    fix = "split the filter into sections of second order, as scipy.signal.tf2sos does"
    check(1 <= taps[-1] <= MOST_TAPS, owner, f"1 to {MOST_TAPS} coefficients", taps[-1], fix)
    if a_coeffs.dim() == 2 and (waveform.dim() < 2 or waveform.shape[-2] != taps[0]):
        expected = f"a waveform of (..., {taps[0]}, time)"
        check(False, owner, expected, tuple(waveform.shape), "give one filter for each channel")
    common, a, b = widened(waveform, a_coeffs, b_coeffs)
    a, b = (c if c.dim() == 2 else c.unsqueeze(0) for c in (a, b))
    outer = math.prod(waveform.shape[: -a_coeffs.dim()])  # -1 would not do for 0 elements
    folded = common.reshape(outer, a.shape[0], waveform.shape[-1])
    out = _lfilter(folded, a, b).reshape(waveform.shape)
    dtypes = (t.dtype for t in (waveform, a_coeffs, b_coeffs))
    out = out.to(functools.reduce(torch.promote_types, dtypes))
    return out.clamp(-1.0, 1.0) if clamp else out
