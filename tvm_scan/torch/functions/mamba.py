"""The selective scan of Mamba: Gu and Dao 2023, arXiv 2312.00752."""

from __future__ import annotations

import math
import operator
from typing import Annotated

import torch
from torch import Tensor

from tvm_scan.torch.arguments import check, offsets_of, wide_of
from tvm_scan.torch.declare.checked import checked
from tvm_scan.torch.ops.selective import selective_scan_grouped
from tvm_scan.torch.ops.selective_tensors import SelectiveTensors


@checked
def selective_scan(
    u: Annotated[Tensor, "batch channels length"],
    delta: Annotated[Tensor, "batch channels length"],
    A: Annotated[Tensor, "complex channels states"],
    B: Annotated[Tensor, "complex ..."],
    C: Annotated[Tensor, "complex ..."],
    D: Annotated[Tensor | None, "channels"] = None,
    z: Annotated[Tensor | None, "batch channels length"] = None,
    delta_bias: Annotated[Tensor | None, "channels"] = None,
    *,
    delta_softplus: bool = False,
    h0: Annotated[Tensor | None, "complex batch channels states"] = None,
    reset: Annotated[Tensor | None, "bool batch length"] = None,
    cu_seqlens: Annotated[Tensor | None, "integers sequences+1"] = None,
    reverse: bool = False,
    return_last: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run the selective scan of Mamba (Gu and Dao 2023, arXiv 2312.00752).

    ::

        dt[t]  = softplus(delta[t] + delta_bias)
        h[t]   = exp(dt[t] A) h[t-1] + dt[t] B[t] u[t]       for each of the states
        y[t]   = sum over the states of C[t] h[t] + D u[t]
        out[t] = y[t] silu(z[t])

    Parameters
    ----------
    u, delta : Tensor
        (batch, channels, length), floating point. `u`, `delta`, `B`, `C` and `z` are
        promoted to one dtype. The state is float32, or float64 with float64 inputs.
    A : Tensor
        (channels, states), real or complex.
    B, C : Tensor
        (batch, states, length), or (batch, groups, states, length) where the channels of a group
        share them, or (channels, states), constant in time. With a complex `A`, those that vary
        in time have length 2 L: real and imaginary parts alternating.
    D, delta_bias : Tensor, optional
        (channels,). Without `D` there is no skip connection.
    z : Tensor, optional
        The gate, (batch, channels, length).
    delta_softplus : bool
        Whether delta goes through softplus.
    h0 : Tensor, optional
        The state before the scan, (batch, channels, states); 0 if None.
    reset : Tensor, optional
        (batch, length), bool: where it is True the state starts anew from 0 before the step.
    cu_seqlens : Tensor, optional
        (sequences + 1,), integers: offsets of sequences packed into one row, from 0 to the
        length; batch must be 1. `h0` is the state before the one that is scanned first, the others
        start from 0.
    reverse : bool
        Scan from the last step to the first.
    return_last : bool
        Also return the state after the scan.

    Returns
    -------
    Tensor, or tuple of Tensor
        The output, with the shape and dtype of `u`; with `return_last` also the last state
        (batch, channels, states), in the state's dtype.

    Raises
    ------
    ValueError
        If a shape or dtype is not as above, or tensors are on different devices.

    Notes
    -----
    There are first and second derivatives. They scan each chunk of 32 steps again, and store no
    history of states: memory is that of the inputs, and a few times ``length / 32`` states. With
    a complex `A`, and in second derivatives, a chunk is made of torch's operators, which takes
    longer than a kernel.
    """
    owner = "selective_scan"
    channels = u.shape[1]
    for name, tensor in {"B": B, "C": C, "h0": h0}.items():
        if tensor is not None and tensor.is_complex() and not A.is_complex():
            check(False, owner, f"a real {name} with a real A", tensor.dtype, "make A complex")
    reset = with_packed(owner, reset, cu_seqlens, u.shape[::2], reverse)

    B, C = (_projection(owner, n, t, u, A) for n, t in (("B", B), ("C", C)))
    # Of the model, not of the data: a program that is traced is bound to them.
    counts = [operator.index(t.shape[1]) if t.dim() == 4 else 1 for t in (B, C)]
    groups = math.lcm(*counts)
    # What is fixed in time has its own value for each channel; groups that differ are repeated.
    B, C = (
        t.unflatten(0, (groups, -1))
        if t.dim() == 2
        else t
        if n == groups
        else t.repeat_interleave(groups // n, 1)
        for t, n in zip((B, C), counts, strict=True)
    )
    split = (groups, channels // groups)

    common = u.dtype
    for other in (delta, z, *(t for t in (B, C) if not t.is_complex())):
        if other is not None:
            common = torch.promote_types(common, other.dtype)
    wide = wide_of(common)
    carry = wide if not A.is_complex() else torch.promote_types(wide, torch.complex64)

    def grouped(tensor: Tensor, dtype: torch.dtype, axis: int) -> Tensor:
        tensor = tensor.to(dtype)
        # Torch's compiler cannot order the strides of a view with an axis of one and a length that
        # varies; of an axis that is put in, it can.
        in_groups: Tensor = tensor.unsqueeze(axis) if groups == 1 else tensor.unflatten(axis, split)
        return in_groups

    tensors = SelectiveTensors(
        grouped(u, common, 1),
        grouped(delta, common, 1),
        grouped(A, carry, 0),
        B if B.is_complex() else B.to(common),
        C if C.is_complex() else C.to(common),
        None if D is None else grouped(D, wide, 0),
        None if z is None else grouped(z, common, 1),
        None if delta_bias is None else grouped(delta_bias, wide, 0),
        None if reset is None else reset.to(torch.int8),
        None if h0 is None else grouped(h0, carry, 1),
    )
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    out, last, _ = selective_scan_grouped(*tensors, delta_softplus, reverse, keep)
    out = out.flatten(1, 2).to(u.dtype)
    return (out, last.flatten(1, 2)) if return_last else out


def _projection(owner: str, name: str, tensor: Tensor, u: Tensor, A: Tensor) -> Tensor:
    """Bring B or C to (batch, groups, states, length); one that is fixed in time stays."""
    batch, channels, length = u.shape
    states = A.shape[1]
    if tensor.dim() == 2:
        found = tuple(tensor.shape)
        expected = f"{name} of shape {(channels, states)}"
        check(found == (channels, states), owner, expected, found, "reshape it")
        return tensor
    if tensor.dim() == 3:
        tensor = tensor.unsqueeze(1)
    if A.is_complex() and not tensor.is_complex() and tensor.dim() == 4:
        parts = tensor.to(A.real.dtype).unflatten(3, (-1, 2))
        tensor = torch.complex(parts[..., 0], parts[..., 1])
    fits = tensor.dim() == 4 and (tensor.shape[0], *tensor.shape[2:]) == (batch, states, length)
    if not fits or tensor.shape[1] == 0 or channels % tensor.shape[1]:
        expected = (
            f"{name} of shape (batch={batch}, groups, states={states}, length={length}) with "
            f"groups dividing the {channels} channels"
        )
        check(False, owner, expected, tuple(tensor.shape), "reshape it")
    return tensor


def with_packed(
    owner: str,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    shape: torch.Size,
    reverse: bool,
) -> Tensor | None:
    """Return `reset` of the shape with the beginnings of sequences packed into one row."""
    if cu_seqlens is None:
        return reset
    batch, length = shape
    check(batch == 1, owner, "one row of packed sequences", tuple(shape), "pack them")
    offsets = offsets_of(owner, cu_seqlens, length)
    # One entry more than there are steps: a sequence that is empty has no first or last one. The
    # scan itself begins with the first sequence (or the last), whose state may be given.
    mask = torch.zeros((1, length + 1), dtype=torch.bool, device=offsets.device)
    mask = mask.index_fill(1, offsets[1:-1], True)
    starts = mask[:, 1:] if reverse else mask[:, :-1]
    return starts if reset is None else reset | starts
