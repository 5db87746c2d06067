"""Results of a traced graph: shapes and dtypes, kept on disk."""

from __future__ import annotations

import functools

import torch

from tvm_scan.torch.trace.graph import graph_module
from tvm_scan.torch.trace.stored_traces import key_of, store_trace, stored_trace


@functools.lru_cache(maxsize=512)
def result_types(
    graph: str, types: tuple[tuple[tuple[int, ...], torch.dtype], ...]
) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    """Shapes and dtypes of a graph's results, given those of its inputs."""
    # torch's meta kernels import its compiler; what they said once is on disk.
    key = key_of((graph,), types)
    trace = stored_trace(key) if key is not None else None
    if trace is not None:
        return tuple((tuple(shape), getattr(torch, name)) for shape, name in trace[1])
    inputs = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in types]
    result = tuple((tuple(r.shape), r.dtype) for r in graph_module(graph, "meta")(*inputs))
    if key is not None:
        names = [(list(shape), str(dtype).removeprefix("torch.")) for shape, dtype in result]
        store_trace(key, "", names, "result types")
    return result
