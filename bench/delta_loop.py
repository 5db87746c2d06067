"""The delta rule as a plain loop, which tvm_scan recognises and schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import tvm
from torch import Tensor
from tvm import tirx

from tvm_scan import loops, parallelize
from tvm_scan.arguments import host_target

__all__ = ["loop_call"]


def loop_call(tensors: Mapping[str, Tensor]) -> Callable[[], tuple[Tensor, Tensor]]:
    """Return a call of the loop on the tensors q, k, v, g, beta and state.

    It is called as functions in C are here, on tensors that are allocated once. The loop takes
    gates, not their logarithms, and queries with their scale: both are computed before.
    """
    q, v, state = tensors["q"], tensors["v"], tensors["state"]
    (batch, length, heads, keys), (values, columns) = q.shape, v.shape[2:]
    sizes = [tirx.IntImm("int64", n) for n in (batch, heads, length)]
    options = {"rule": "delta", "gate": "head", "group": values // heads, "dtype": "float32"}
    loop = loops.delta_rule(*sizes, keys=keys, values=columns, **options)
    target = host_target()
    scheduled = parallelize(loop, target).with_attr("global_symbol", "main")
    built = tvm.compile(scheduled, target=target)["main"]
    y, last = torch.empty_like(v), torch.empty_like(state)
    given = [q * keys**-0.5, tensors["k"], v, tensors["g"].exp(), tensors["beta"], state, last, y]

    def run() -> tuple[Tensor, Tensor]:
        built(*given)
        return y, last

    return run
