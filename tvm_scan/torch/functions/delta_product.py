"""Several steps of the delta rule for each token."""

from __future__ import annotations

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from tvm_scan.torch.arguments import check, offsets_of
from tvm_scan.torch.declare.checked import checked
from tvm_scan.torch.functions.delta_call import DeltaCall


@checked
def gated_delta_product(
    q: Annotated[Tensor, "batch length heads keys"],
    k: Annotated[Tensor, "batch steps heads keys"],
    v: Annotated[Tensor, "batch steps value_heads values"],
    g: Annotated[Tensor | None, "batch length value_heads"],
    beta: Annotated[Tensor, "batch steps value_heads"],
    num_householder: int,
    scale: float | None = None,
    initial_state: Annotated[Tensor | None, "..."] = None,
    output_final_state: bool = False,
    *,
    cu_seqlens: Annotated[Tensor | None, "integers sequences+1"] = None,
    use_qk_l2norm_in_kernel: bool = False,
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Run the gated DeltaProduct (Siems et al. 2025, arXiv 2502.10297).

    ::

        S[t, 0] = exp(g[t]) S[t-1, n]
        S[t, j] = S[t, j-1] + k[t, j] (beta[t, j] (v[t, j] - S[t, j-1]' k[t, j]))'
        o[t] = S[t, n]' (scale q[t])

    Parameters
    ----------
    q : Tensor
        (batch, length, heads, keys), floating point.
    k, v : Tensor
        (batch, steps, heads, keys) and (batch, steps, value_heads, values): `num_householder`
        steps for each token, one token after another.
    g : Tensor, optional
        (batch, length, value_heads): logarithms of the gates of tokens; None without gates.
    beta : Tensor
        (batch, steps, value_heads): how much of what the state has for a key is replaced.
    num_householder : int
        The number n of steps for each token.
    scale, output_final_state, use_qk_l2norm_in_kernel, state_v_first
        As in `gated_delta_rule`.
    initial_state, cu_seqlens : Tensor, optional
        As in `gated_delta_rule`: (sequences, value_heads, keys, values), and (sequences + 1,), in
        tokens.

    Returns
    -------
    tuple of (Tensor, Tensor or None)
        The outputs of tokens, (batch, length, value_heads, values), and the states after time if
        they are asked for, as in `gated_delta_rule`.

    Raises
    ------
    ValueError
        If a shape or dtype is not as above, or tensors are on different devices.

    Notes
    -----
    It is the delta rule over all steps: a gate stands before the first of a token, and a query
    after the last.
    """
    owner, n, length = "gated_delta_product", num_householder, q.shape[1]
    whole = isinstance(n, int) and n > 0
    check(whole, owner, "num_householder of at least 1", n, "say how many steps a token has")
    fits, expected = k.shape[1] == n * length, f"{n} steps for each token in k, v and beta"
    check(fits, owner, expected, tuple(k.shape), "cut or pad them")
    queries = F.pad(q.unsqueeze(2), (0, 0, 0, 0, n - 1, 0)).flatten(1, 2)
    call = DeltaCall(owner, queries, k, v, scale, use_qk_l2norm_in_kernel)
    call.rate(beta, False, False)
    if g is not None:
        call.gate(F.pad(g.unsqueeze(2), (0, 0, 0, n - 1)).flatten(1, 2))
    # Offsets in steps may need more bits than those in tokens.
    offsets = None if cu_seqlens is None else n * offsets_of(owner, cu_seqlens, length)
    call.between(initial_state, offsets, state_v_first)
    out, last = call.run(output_final_state, False)
    return out[:, n - 1 :: n], last
