"""Slices of time of a delta rule: each is an affine map of the whole state.

A step is ``S' = A S + B`` with a matrix A that mixes the rows of the state. So is a slice: the
columns of ``A[n] .. A[1]`` are what the slice makes of the columns of the identity where nothing
is written. Both are had in one run, of the values and of as many more columns as keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.arguments import check
from tvm_scan.torch.sequence.exchange import Exchange

#: Arguments with a step of time along the second axis.
_TIMED = ("q", "r", "k", "v", "g", "w", "beta", "a", "b")


def run_delta(fn: Callable[..., Any], arguments: dict[str, Any], exchange: Exchange) -> Any:
    """Run a delta rule on this process's slice, from the state that the others leave it.

    Parameters
    ----------
    fn : callable
        Of `tvm_scan.torch`: ``delta_rule``, ``gated_delta_rule``, ``kda`` or ``rwkv7``.
    arguments : dict
        Its arguments by name.
    exchange : Exchange
        The other processes.

    Returns
    -------
    tuple of (Tensor, Tensor or None)
        Outputs of the slice, and the states after it if they are asked for.
    """
    in_place, name = arguments["inplace_final_state"], str(fn.__name__)
    fix = "decode in one process"
    check(not in_place, name, "no inplace_final_state over processes", in_place, fix)
    k, v, v_first = (arguments[n] for n in ("k", "v", "state_v_first"))
    # No steps: the function checks its arguments, and returns the state before time.
    none = {n: t[:, :0] for n, t in arguments.items() if n in _TIMED and t is not None}
    _, start = fn(**{**arguments, **none, "output_final_state": True})
    start = start.mT if v_first else start
    keys, width = k.shape[3], v.shape[3]
    identity = torch.eye(keys, dtype=start.dtype, device=k.device)
    identity = identity.expand(*start.shape[:2], keys, keys)
    columns = torch.cat((torch.zeros_like(start), identity), 3)
    values = torch.cat((v, v.new_zeros(*v.shape[:3], keys)), 3)
    alone = {"v": values, "initial_state": columns, "output_final_state": True}
    _, last_of_slice = fn(**{**arguments, **alone, "state_v_first": False})

    def entered(state: Tensor, part: Tensor) -> Tensor:
        return part[..., width:] @ state + part[..., :width]

    carry = exchange.carry(last_of_slice, start, entered)
    return fn(**{**arguments, "initial_state": carry.mT if v_first else carry})
