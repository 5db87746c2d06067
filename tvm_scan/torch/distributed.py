"""Functions whose time axis is spread over processes.

Each process holds a slice of time. What a slice does to the state before it is one small value:
for a linear recurrence its total gate and its last state from zero, for a cumulative function its
total. Those are gathered once; every process combines the ones before its own to the state that
its slice starts from.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tvm_scan.torch.arguments import check
from tvm_scan.torch.sequence.carries import CARRIES
from tvm_scan.torch.sequence.exchange import Exchange

__all__ = ["sequence_parallel"]


class _Gather(torch.autograd.Function):
    """All processes' tensors, stacked; the adjoint adds up what each process sends back."""

    @staticmethod
    def forward(tensor: Tensor, group: Any, timeout: float | None) -> Tensor:
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        sent = tensor.contiguous()
        _wait(lambda: dist.all_gather(parts, sent, group=group, async_op=True), group, timeout)
        return torch.stack(parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.group, ctx.timeout = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grad = grad.contiguous().clone()
        _wait(lambda: dist.all_reduce(grad, group=ctx.group, async_op=True), ctx.group, ctx.timeout)
        return grad[dist.get_rank(ctx.group)], None, None


def _wait(start: Callable[[], Any], group: Any, timeout: float | None) -> None:
    """Run a collective; a process that is gone or late is an error that says so."""
    try:
        work = start()
        if timeout is None:
            work.wait()
        else:
            work.wait(timedelta(seconds=timeout))
    except RuntimeError as error:
        raise RuntimeError(
            f"tvm_scan.torch.sequence_parallel: expected all {dist.get_world_size(group)} "
            f"processes of the group to take part, found that one ended or did not within the "
            f"timeout ({error}); look at the other processes' errors, and start the group anew"
        ) from error


def sequence_parallel(
    fn: Callable[..., Any], group: Any = None, *, timeout: float | None = None
) -> Callable[..., Any]:
    """Make a function run along a time axis that is spread over a process group.

    Every process of the group calls the result at the same time, and calls backward if one does.

    Parameters
    ----------
    fn : callable
        One of `tvm_scan.torch`: ``linear_recurrence``, ``rglru``, ``hgrn``, ``selective_scan``,
        ``compat.selective_scan_fn``, ``gla``, ``rwkv6``, ``ssd``, ``delta_rule``,
        ``gated_delta_rule``, ``kda``, ``rwkv7``, ``causal_conv1d``, ``cumsum``, ``cumprod``,
        ``cummax``, ``cummin``, ``logcumsumexp``.
    group : ProcessGroup, optional
        The processes; all by default.
    timeout : float, optional
        Seconds to wait for the other processes, forward and backward; the group's own by
        default.

    Returns
    -------
    callable
        With the parameters of `fn`. What varies in time is this process's slice of it, in the
        order of ranks; slices may have different lengths, and none. What does not vary in time,
        `h0` (the state before the whole sequence) among it, is the same in every process: its
        gradient is the sum of the gradients of the processes. The result is this process's slice of
        the result; a last state is the one after this slice; indices count from the beginning
        of the whole sequence.

    Raises
    ------
    ValueError
        If `fn` is none of these, or there is no process group; when called, as `fn` does, or if
        `cu_seqlens` are given, which `reset` stands for here.
    RuntimeError
        When called, if another process ended, or did not take part within the timeout.

    Notes
    -----
    One all-gather of a state and its total gate per process (of `cummax` and `cummin`, one of
    values and one of indices), and one all-reduce in the backward pass. Linear recurrences scan
    their slice twice, delta rules with as many columns more as they have keys: what a slice does
    to the state is a matrix for each head. Of a convolution the last inputs are gathered; of the
    cumulative functions the carry is one more element before the slice.
    """
    owner = "sequence_parallel"
    run: Any = next((run for function, run in CARRIES.items() if function is fn), None)
    known = ", ".join(sorted(function.__name__ for function in CARRIES))
    fix = "a recurrence of your own can be written with linear_recurrence"
    check(run is not None, owner, f"one of {known}", getattr(fn, "__name__", fn), fix)
    ready = dist.is_available() and dist.is_initialized()
    check(ready, owner, "a process group", "none", "call torch.distributed.init_process_group")
    signature = inspect.signature(fn)

    @functools.wraps(fn)
    def parallel(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        by_name = dict(bound.arguments)
        offsets = by_name.get("cu_seqlens")
        fix = "mark the first step of each sequence with reset"
        if "reset" not in by_name:
            fix = "give the first step of each sequence a gate of 0, whose logarithm is -inf"
        check(offsets is None, owner, "no cu_seqlens", "some", fix)
        exchange = Exchange(
            lambda tensor: _gathered(tensor, group, timeout),
            dist.get_rank(group),
            dist.get_world_size(group),
            bool(by_name.get("reverse")),
        )
        return run(fn, by_name, exchange)

    return parallel


def _gathered(tensor: Tensor, group: Any, timeout: float | None) -> Tensor:
    """All processes' tensors, stacked, also complex ones."""
    if tensor.is_complex():
        return torch.view_as_complex(_gathered(torch.view_as_real(tensor), group, timeout))
    gathered: Tensor = _Gather.apply(tensor, group, timeout)
    return gathered
