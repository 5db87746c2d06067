"""Functions with the names and arguments of mamba-ssm, for programs that were written for it.

Each calls a function of `tvm_scan.torch`, which can do more: `selective_scan` and `ssd`.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.arguments import check, widened
from tvm_scan.torch.declare.checked import checked
from tvm_scan.torch.functions.mamba import selective_scan
from tvm_scan.torch.functions.packed_states import PackedRow, states_of_sequences
from tvm_scan.torch.functions.ssd import ssd, terms

__all__ = ["mamba_chunk_scan_combined", "selective_scan_fn"]


def starts_of(numbers: Tensor) -> Tensor:
    """Mark where another sequence begins, by the number of that of each step, (batch, length).

    Before time is number 0.
    """
    return numbers != F.pad(numbers[:, :-1], (1, 0))


@checked
def mamba_chunk_scan_combined(
    x: Annotated[Tensor, "batch length heads features"],
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Annotated[Tensor | None, "integers batch length"] = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    return_varlen_states: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Run `ssd` with the arguments of mamba-ssm's function of this name.

    Parameters
    ----------
    x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, cu_seqlens
        As in `ssd`.
    chunk_size : int
        Ignored: the plan of the kernel says how time is cut.
    initial_states : Tensor, optional
        The state before the scan, (batch, heads, features, states).
    seq_idx : Tensor, optional
        (batch, length), integers from 0: where the number changes, another sequence begins.
        `initial_states` belong to number 0.
    return_final_states : bool
        Also return the state after the scan.
    return_varlen_states : bool
        Also return the state after each sequence that `cu_seqlens` packs into one row,
        (sequences, heads, features, states); of an empty one it is 0. This reads `cu_seqlens`,
        and so waits for a GPU.

    Returns
    -------
    Tensor, or tuple of Tensor
        The outputs as in `ssd`; with `return_final_states` then the last state, with
        `return_varlen_states` then those of the sequences.

    Raises
    ------
    ValueError
        As in `ssd`; if `seq_idx` has another shape; if states of sequences are asked for without
        `cu_seqlens`.

    Notes
    -----
    In mamba-ssm `cu_seqlens` says which states to return, and `seq_idx` has to separate the
    sequences. Here `cu_seqlens` separates them, too.
    """
    owner = "compat.mamba_chunk_scan_combined"
    reset = None if seq_idx is None else starts_of(seq_idx)
    y, last = ssd(
        *(x, dt, A, B, C, D, z, dt_bias),
        dt_softplus=dt_softplus,
        dt_limit=dt_limit,
        h0=initial_states,
        reset=reset,
        cu_seqlens=cu_seqlens,
        return_last=True,
    )
    results = [y, last] if return_final_states else [y]
    if return_varlen_states:
        if cu_seqlens is None:
            fix = "give the offsets of the sequences"
            check(False, owner, "cu_seqlens with return_varlen_states", None, fix)
        else:
            x, dt, A, B = widened(x, dt, A, B)
            gates, drive = terms(x, dt, A, dt_bias, dt_softplus, dt_limit)
            row = PackedRow(gates, drive, B, initial_states, reset, cu_seqlens)
            results.append(states_of_sequences(row))
    return results[0] if len(results) == 1 else tuple(results)


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run `selective_scan` with the signature of mamba-ssm's function of this name.

    Parameters
    ----------
    u, delta, A, B, C, D, z, delta_bias, delta_softplus
        As in `selective_scan`.
    return_last_state : bool
        Also return the state after the scan.

    Returns
    -------
    Tensor, or tuple of Tensor
        As in `selective_scan`.

    Raises
    ------
    ValueError
        As in `selective_scan`.
    """
    operands = (u, delta, A, B, C, D, z, delta_bias)
    return selective_scan(*operands, delta_softplus=delta_softplus, return_last=return_last_state)
