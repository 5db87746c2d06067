"""The delta rule by the names of its papers: gated or not, a gate for each key, two vectors."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from tvm_scan.torch.arguments import check
from tvm_scan.torch.declare.checked import checked
from tvm_scan.torch.declare.repeated import repeated
from tvm_scan.torch.functions.delta_call import DeltaCall
from tvm_scan.torch.kernels.events import told


@repeated
@checked
def delta_rule(
    q: Annotated[Tensor, "batch length heads keys"],
    k: Annotated[Tensor, "batch length heads keys"],
    v: Annotated[Tensor, "batch length value_heads values"],
    beta: Annotated[Tensor, "batch length value_heads"],
    scale: float | None = None,
    initial_state: Annotated[Tensor | None, "..."] = None,
    output_final_state: bool = False,
    *,
    cu_seqlens: Annotated[Tensor | None, "integers sequences+1"] = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    inplace_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Run the delta rule (Yang et al. 2024, arXiv 2406.06484).

    ::

        u[t] = beta[t] (v[t] - S[t-1]' k[t])
        S[t] = S[t-1] + k[t] u[t]'
        o[t] = S[t]' (scale q[t])

    Parameters
    ----------
    q, k : Tensor
        (batch, length, heads, keys), floating point.
    v : Tensor
        (batch, length, value_heads, values): a multiple of the heads, each shared by so many
        neighbours.
    beta : Tensor
        (batch, length, value_heads): how much of what the state has for a key is replaced.
    scale, output_final_state, use_qk_l2norm_in_kernel, state_v_first, inplace_final_state
        As in `gated_delta_rule`.
    initial_state, cu_seqlens : Tensor, optional
        As in `gated_delta_rule`: (sequences, value_heads, keys, values), and (sequences + 1,).
    use_beta_sigmoid_in_kernel, allow_neg_eigval : bool
        As in `gated_delta_rule`.

    Returns
    -------
    tuple of (Tensor, Tensor or None)
        As in `gated_delta_rule`.

    Raises
    ------
    ValueError
        If a shape or dtype is not as above, or tensors are on different devices.
    """
    call = DeltaCall("delta_rule", q, k, v, scale, use_qk_l2norm_in_kernel)
    call.rate(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    call.between(initial_state, cu_seqlens, state_v_first)
    return call.run(output_final_state, inplace_final_state)


@repeated
@checked
def gated_delta_rule(
    q: Annotated[Tensor, "batch length heads keys"],
    k: Annotated[Tensor, "batch length heads keys"],
    v: Annotated[Tensor, "batch length value_heads values"],
    g: Annotated[Tensor, "batch length value_heads"],
    beta: Annotated[Tensor, "batch length value_heads"],
    scale: float | None = None,
    initial_state: Annotated[Tensor | None, "..."] = None,
    output_final_state: bool = False,
    *,
    cu_seqlens: Annotated[Tensor | None, "integers sequences+1"] = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Annotated[Tensor | None, "value_heads"] = None,
    dt_bias: Annotated[Tensor | None, "value_heads"] = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    inplace_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Run the gated delta rule (Yang et al. 2024, arXiv 2412.06464).

    ::

        u[t] = beta[t] (v[t] - exp(g[t]) S[t-1]' k[t])
        S[t] = exp(g[t]) S[t-1] + k[t] u[t]'
        o[t] = S[t]' (scale q[t])

    Parameters
    ----------
    q, k : Tensor
        (batch, length, heads, keys), floating point.
    v : Tensor
        (batch, length, value_heads, values): a multiple of the heads, each shared by so many
        neighbours.
    g : Tensor
        (batch, length, value_heads): logarithms of the gates, computed as they are, positive
        ones too; of ``-inf`` the state starts anew.
    beta : Tensor
        (batch, length, value_heads): how much of what the state has for a key is replaced: from 0
        to 1, or to 2.
    scale : float, optional
        ``keys ** -0.5`` by default.
    initial_state : Tensor, optional
        The states before time, (sequences, value_heads, keys, values); 0 if None. There is a
        sequence for each row, or for each two neighbours of `cu_seqlens`.
    output_final_state : bool
        Also return the states after time.
    cu_seqlens : Tensor, optional
        (sequences + 1,), integers: offsets of sequences packed into one row, from 0 to the length;
        batch must be 1. Each has a state.
    use_qk_l2norm_in_kernel : bool
        Divide `q` and `k` by the root of 1e-6 and the sum of their squares first.
    use_gate_in_kernel : bool
        Take ``-exp(A_log) softplus(g + dt_bias)`` for `g`.
    A_log, dt_bias : Tensor, optional
        (value_heads,); `A_log` must be given with `use_gate_in_kernel`.
    use_beta_sigmoid_in_kernel : bool
        Take ``sigmoid(beta)`` for `beta`.
    allow_neg_eigval : bool
        Take twice the sigmoid, so that a step may change the sign of what it replaces.
    state_v_first : bool
        Whether states are (sequences, value_heads, values, keys).
    inplace_final_state : bool
        Leave the states after time in `initial_state`, which is returned, and copy none: for
        decoding. There are no derivatives then.

    Returns
    -------
    tuple of (Tensor, Tensor or None)
        The outputs, with the shape and dtype of `v`; the states after time in float32 or float64
        if they are asked for, else None.

    Raises
    ------
    ValueError
        If a shape or dtype is not as above, or tensors are on different devices.

    Notes
    -----
    Halves are computed in float32. Where a derivative is wanted, a state for every 64 steps is
    kept, and an array like `v`; those of second and higher order are made of torch's operators.
    """
    call = DeltaCall("gated_delta_rule", q, k, v, scale, use_qk_l2norm_in_kernel)
    call.rate(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    call.gate(g, use_gate_in_kernel, A_log, dt_bias)
    call.between(initial_state, cu_seqlens, state_v_first)
    return call.run(output_final_state, inplace_final_state)


@repeated
@checked
def kda(
    q: Annotated[Tensor, "batch length heads keys"],
    k: Annotated[Tensor, "batch length heads keys"],
    v: Annotated[Tensor, "batch length value_heads values"],
    g: Annotated[Tensor, "batch length value_heads keys"],
    beta: Annotated[Tensor, "batch length value_heads"],
    scale: float | None = None,
    initial_state: Annotated[Tensor | None, "..."] = None,
    output_final_state: bool = False,
    *,
    cu_seqlens: Annotated[Tensor | None, "integers sequences+1"] = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Annotated[Tensor | None, "value_heads"] = None,
    dt_bias: Annotated[Tensor | None, "gates | value_heads keys"] = None,
    lower_bound: float | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    inplace_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Run Kimi delta attention (Kimi Team 2025, arXiv 2510.26692).

    ::

        u[t] = beta[t] (v[t] - (diag(exp(g[t])) S[t-1])' k[t])
        S[t] = diag(exp(g[t])) S[t-1] + k[t] u[t]'
        o[t] = S[t]' (scale q[t])

    Parameters
    ----------
    q, k : Tensor
        (batch, length, heads, keys), floating point.
    v : Tensor
        (batch, length, value_heads, values): a multiple of the heads, each shared by so many
        neighbours.
    g : Tensor
        (batch, length, value_heads, keys): logarithms of the gates, one for each row of the state.
    beta : Tensor
        (batch, length, value_heads): how much of what the state has for a key is replaced.
    scale, output_final_state, use_qk_l2norm_in_kernel, state_v_first, inplace_final_state
        As in `gated_delta_rule`.
    initial_state, cu_seqlens : Tensor, optional
        As in `gated_delta_rule`: (sequences, value_heads, keys, values), and (sequences + 1,).
    use_gate_in_kernel : bool
        Take ``-exp(A_log) softplus(g + dt_bias)`` for `g`.
    A_log : Tensor, optional
        (value_heads,); must be given with `use_gate_in_kernel`, unless there is a `lower_bound`.
    dt_bias : Tensor, optional
        (value_heads, keys), or (gates,), which are as many in one axis.
    lower_bound : float, optional
        Take ``lower_bound sigmoid(exp(A_log) (g + dt_bias))`` instead, with `use_gate_in_kernel`.
    use_beta_sigmoid_in_kernel, allow_neg_eigval : bool
        As in `gated_delta_rule`.

    Returns
    -------
    tuple of (Tensor, Tensor or None)
        As in `gated_delta_rule`.

    Raises
    ------
    ValueError
        If a shape or dtype is not as above, or tensors are on different devices.
    """
    call = DeltaCall("kda", q, k, v, scale, use_qk_l2norm_in_kernel)
    call.rate(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    if dt_bias is not None:
        fits, found = dt_bias.numel() == g.shape[2] * g.shape[3], tuple(dt_bias.shape)
        check(fits, "kda", "a dt_bias for every head and key", found, "reshape it")
        if dt_bias.dim() != 2:
            dt_bias = told(Tensor.reshape, dt_bias, g.shape[2:])
    call.gate(g, use_gate_in_kernel, A_log, dt_bias, lower_bound)
    call.between(initial_state, cu_seqlens, state_v_first)
    return call.run(output_final_state, inplace_final_state)


@repeated
@checked
def rwkv7(
    r: Annotated[Tensor, "batch length heads keys"],
    w: Annotated[Tensor, "batch length heads keys"],
    k: Annotated[Tensor, "batch length heads keys"],
    v: Annotated[Tensor, "batch length heads values"],
    a: Annotated[Tensor, "batch length heads keys"],
    b: Annotated[Tensor, "batch length heads keys"],
    scale: float = 1.0,
    initial_state: Annotated[Tensor | None, "..."] = None,
    output_final_state: bool = False,
    *,
    cu_seqlens: Annotated[Tensor | None, "integers sequences+1"] = None,
    state_v_first: bool = False,
    inplace_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Run the recurrence of RWKV-7 (Peng et al. 2025, arXiv 2503.14456).

    ::

        S[t] = diag(exp(w[t])) S[t-1] + k[t] v[t]' + b[t] (S[t-1]' a[t])'
        o[t] = S[t]' (scale r[t])

    Parameters
    ----------
    r, w, k, a, b : Tensor
        (batch, length, heads, keys), floating point; `w` are logarithms of the decays, `a` is
        what is read of the state before a step, and `b` what is added for it: in the model a
        normalised key with a minus, and the same times a rate.
    v : Tensor
        (batch, length, heads, values).
    scale : float
        1 by default.
    initial_state, cu_seqlens : Tensor, optional
        As in `gated_delta_rule`: (sequences, heads, keys, values), and (sequences + 1,).
    output_final_state, state_v_first, inplace_final_state : bool
        As in `gated_delta_rule`.

    Returns
    -------
    tuple of (Tensor, Tensor or None)
        As in `gated_delta_rule`.

    Raises
    ------
    ValueError
        If a shape or dtype is not as above, or tensors are on different devices.
    """
    call = DeltaCall("rwkv7", r, k, v, scale, False)
    call.gate(w)
    call.tensors |= {"a": a, "b": b}
    call.between(initial_state, cu_seqlens, state_v_first)
    return call.run(output_final_state, inplace_final_state)
