"""The scan of any traced step as a torch operator, without derivatives."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.runtime import aligned_empty
from tvm_scan.torch.kernels.spec import KernelSpec
from tvm_scan.torch.ops.operator import operator as torch_operator
from tvm_scan.torch.trace.graph import graph_module
from tvm_scan.torch.trace.results import result_types

__all__ = ["scan_slices"]


@torch_operator
def scan_slices(
    tensors: Sequence[Tensor], graph: str, carries: int, slices: int, prefix: bool, reverse: bool
) -> list[Tensor]:
    """Scan any step over arrays with time as their first axis; shared tensors come last."""
    inits = 0 if prefix else carries
    xs = tensors[inits : inits + slices]
    out = _slice_outputs(tensors, graph, carries, slices, prefix, aligned_empty)
    if not len(xs[0]):
        for last, init in zip(out, tensors[:inits], strict=False):
            last.copy_(init)
        return out
    if not any(state.numel() for state in (xs if prefix else tensors[:inits])):
        # There is nothing to carry, and so no recurrence: each step stands alone.
        step, shared = graph_module(graph, str(xs[0].device)), tensors[inits + slices :]
        for t in range(0 if prefix else len(xs[0])):
            made = step(*tensors[:inits], *(x[t] for x in xs), *shared)[carries:]
            for emitted, value in zip(out[carries:], made, strict=True):
                emitted[t] = value
        return out
    kinds = _slice_types(tensors, carries, slices, prefix)
    options = (
        ("carries", carries),
        ("dtypes", tuple(str(dtype).removeprefix("torch.") for _, dtype in kinds)),
        ("graph", graph),
        ("prefix", prefix),
        ("reverse", reverse),
        ("shapes", tuple(shape for shape, _ in kinds)),
        ("slices", slices),
    )
    # An operator is declared to be one: without a proof it still runs, one step after another.
    spec = KernelSpec("sliced_step", options, ("length",), or_serial=prefix)
    run_kernel(spec, (len(xs[0]),), *tensors, *out)
    return out


def _slice_types(
    tensors: Sequence[Tensor], carries: int, slices: int, prefix: bool
) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    """Shapes and dtypes of what one step is given; of a traced program these are constants."""

    def sizes(shape: torch.Size) -> tuple[int, ...]:
        return tuple(operator.index(n) for n in shape)

    inits = 0 if prefix else carries
    xs = [(sizes(t.shape[1:]), t.dtype) for t in tensors[inits : inits + slices]]
    whole = [(sizes(t.shape), t.dtype) for t in tensors[:inits]]
    shared = [(sizes(t.shape), t.dtype) for t in tensors[inits + slices :]]
    return (*(xs if prefix else whole), *xs, *shared)


def _slice_outputs(
    tensors: Sequence[Tensor], graph: str, carries: int, slices: int, prefix: bool, make: Any
) -> list[Tensor]:
    found = result_types(graph, _slice_types(tensors, carries, slices, prefix))
    x = tensors[0 if prefix else carries]
    lasts = [] if prefix else found[:carries]
    emits = found if prefix else found[carries:]
    return [make(shape, dtype, x.device) for shape, dtype in lasts] + [
        make((x.shape[0], *shape), dtype, x.device) for shape, dtype in emits
    ]


@scan_slices.fake
def _(
    tensors: Sequence[Tensor], graph: str, carries: int, slices: int, prefix: bool, reverse: bool
) -> list[Tensor]:
    def make(shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return _slice_outputs(tensors, graph, carries, slices, prefix, make)


@scan_slices.vmap
def _(info: Any, in_dims: Any, tensors: Sequence[Tensor], *rest: Any) -> Any:
    """Run one mapped element after another: the graph is of slices of one shape."""
    dims = in_dims[0]
    rows = [
        scan_slices(
            [t if d is None else t.select(d, i) for t, d in zip(tensors, dims, strict=True)], *rest
        )
        for i in range(info.batch_size)
    ]
    found = [torch.stack(parts) for parts in zip(*rows, strict=True)]
    return found, [0] * len(found)
