"""The scan of any traced step as a torch operator, without derivatives."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.declare.mapped import one_by_one
from tvm_scan.torch.declare.operator import operator as torch_operator
from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.runtime import aligned_empty
from tvm_scan.torch.kernels.spec import KernelSpec, dtype_name
from tvm_scan.torch.trace.graph import graph_module
from tvm_scan.torch.trace.results import result_types


@torch_operator(mapped=one_by_one)
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
            emitted_values = step(*tensors[:inits], *(x[t] for x in xs), *shared)[carries:]
            for emitted, value in zip(out[carries:], emitted_values, strict=True):
                emitted[t] = value
        return out
    kinds = _slice_types(tensors, carries, slices, prefix)
    options = (
        ("carries", carries),
        ("dtypes", tuple(dtype_name(dtype) for _, dtype in kinds)),
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
    types = result_types(graph, _slice_types(tensors, carries, slices, prefix))
    x = tensors[0 if prefix else carries]
    lasts = [] if prefix else types[:carries]
    emits = types if prefix else types[carries:]
    return [make(shape, dtype, x.device) for shape, dtype in lasts] + [
        make((x.shape[0], *shape), dtype, x.device) for shape, dtype in emits
    ]


@scan_slices.fake
def _(
    tensors: Sequence[Tensor], graph: str, carries: int, slices: int, prefix: bool
) -> list[Tensor]:
    return _slice_outputs(
        tensors, graph, carries, slices, prefix, lambda s, d, on: torch.empty(s, dtype=d, device=on)
    )
