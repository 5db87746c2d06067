"""The affine scan as a torch operator, differentiable any number of times.

On arrays (outer, length, inner), time in the middle, there are three scans: with ``c = h0`` at
first, and for each step in the order of the scan,

- ``inclusive``: ``c = a c + x; y = c``
- ``exclusive``: ``y = c; c = a c + x``
- ``late``: ``y = c + x; c = a y``

Where there is a reset, the product with the gate is 0, whatever the carry is: what was before it
is forgotten, a NaN or an infinity too.

For fixed gates each is linear in x, and its adjoint is one of the three, scanned the other way:
that of ``exclusive`` is ``exclusive``; those of ``inclusive`` and ``late`` are each other. So no
gate is ever shifted in memory, and every derivative is made of the same operator.
"""

from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.declare.operator import operator
from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.runtime import aligned_like
from tvm_scan.torch.ops.direct import run_direct
from tvm_scan.torch.ops.frame import frame_of, framed_kernel

#: The kernel of one of the scans.
affine_spec = framed_kernel("affine", "emit", "has_initial", "has_reset", "reverse")
_ADJOINT = {"inclusive": "late", "late": "inclusive", "exclusive": "exclusive"}


@operator
def affine_scan(
    a: Tensor, x: Tensor, h0: Tensor | None, reset: Tensor | None, emit: str, reverse: bool
) -> Tensor:
    """Run one of the three scans.

    `a` and `x` (outer, length, inner), `h0` (outer, inner), `reset` like `x`, int8.
    """
    if x.is_complex():
        return _complex(a, x, h0, reset, emit, reverse)
    if h0 is None and reset is None:
        quick = run_direct(affine_spec, (emit, False, False, reverse), 1, (a, x))
        if quick is not None:
            return quick
    out = aligned_like(x)
    if x.numel():
        sizes, time_last, shape = frame_of(x.shape)
        spec = affine_spec(x.dtype, emit, h0 is not None, reset is not None, reverse, time_last)
        # Not .view: an input may have any strides.
        inputs = [t.reshape(shape) for t in (a, x, reset) if t is not None]
        if h0 is not None:
            inputs.append(h0.reshape(sizes[:2]))
        run_kernel(spec, sizes, *inputs, out.view(shape))
    return out


def _complex(
    a: Tensor, x: Tensor, h0: Tensor | None, reset: Tensor | None, emit: str, reverse: bool
) -> Tensor:
    """Turn complex gates into real ones by following their phase.

    With ``p[t]`` the sum of the gates' angles before step t, ``h e^{-ip}`` has the gates ``|a|``,
    and its real and imaginary part are two real recurrences. Angles are summed in float64, anew
    from a reset on.
    """
    a = unless(reset, a)
    phases = affine_scan(
        torch.ones_like(a.real, dtype=torch.float64),
        a.to(torch.complex128).angle().contiguous(),
        None,
        reset,
        "exclusive" if emit in ("exclusive", "late") else "inclusive",
        reverse,
    )
    unit = torch.polar(torch.ones_like(phases), phases)
    if emit == "exclusive":  # x enters at the phase after its own gate
        gate_phase = torch.polar(torch.ones_like(phases), a.to(torch.complex128).angle())
        entering = (
            torch.where(reset.bool(), gate_phase, unit * gate_phase)
            if reset is not None
            else unit * gate_phase
        )
    else:
        entering = unit
    # No view with a bit: below a dispatch mode torch does not resolve it.
    real = torch.view_as_real((x * entering.conj_physical()).to(x.dtype)).flatten(2)
    initial = None if h0 is None else torch.view_as_real(h0).flatten(1)
    gates = a.abs().repeat_interleave(2, dim=2)
    both = None if reset is None else reset.repeat_interleave(2, dim=2)
    rotated = affine_scan(gates, real, initial, both, emit, reverse)
    rotated = torch.view_as_complex(rotated.view(*x.shape, 2))
    return (rotated * unit).to(x.dtype)


def first(tensor: Tensor, reverse: bool) -> Tensor:
    """Return what lies where the scan starts, (outer, inner)."""
    return tensor[:, -1] if reverse else tensor[:, 0]


def unless(reset: Tensor | None, tensor: Tensor) -> Tensor:
    """Return `tensor`, and 0 where there is a reset, for every order of derivative."""
    return tensor if reset is None else tensor.masked_fill(reset.bool(), 0)


def shifted(tensor: Tensor, before: Tensor | None, reverse: bool) -> Tensor:
    """Return the value of the step before, and `before` (zero if None) where there is none."""
    if not tensor.shape[1]:
        return tensor
    head = torch.zeros_like(first(tensor, reverse)) if before is None else before
    head = head.unsqueeze(1)
    if reverse:
        return torch.cat((tensor[:, 1:], head), 1)
    return torch.cat((head, tensor[:, :-1]), 1)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, h0, reset, y = ctx.saved_tensors
    emit, reverse = ctx.emit, ctx.reverse
    wants_a, _, wants_h0 = ctx.needs_input_grad[:3]
    gates = a.conj() if a.is_complex() else a
    back = affine_scan(gates, grad, None, reset, _ADJOINT[emit], not reverse)
    grad_a = grad_h0 = None
    if wants_a:
        # The gate of a step multiplies the carry before it; in `late`, what the step emits. What
        # lies beyond a reset is left out of the product, not of its result.
        if emit == "inclusive":
            grad_a = back * unless(reset, shifted(y, h0, reverse)).conj()
        elif emit == "exclusive":
            grad_a = back * unless(reset, y).conj()
        else:
            grad_a = unless(reset, shifted(back, None, not reverse)) * y.conj()
    if wants_h0 and h0 is not None:
        if not y.numel():
            grad_h0 = torch.zeros_like(h0)
        elif emit == "late":
            grad_h0 = first(back, reverse)
        else:
            start = None if reset is None else first(reset, reverse)
            grad_h0 = unless(start, first(gates, reverse)) * unless(start, first(back, reverse))
            if emit == "exclusive":
                grad_h0 = grad_h0 + first(grad, reverse)
    return grad_a, back, grad_h0


affine_scan.gradient(_backward, "a h0 reset results")
