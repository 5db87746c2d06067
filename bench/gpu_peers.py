"""Peers in Python that ``bench.gpu`` finds on the machine; one that is missing says why.

They run in a process of their own, see ``bench.gpu_worker``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.gpu_cases import Arrays, Case
from bench.gpu_ours import Times, affordable, summary

__all__ = ["PEERS", "Call", "device_inputs", "error_of", "times_of"]

_FLUSH_BYTES = 256 << 20


@dataclass(frozen=True)
class Call:
    """How a peer is called on the inputs of a case.

    Attributes
    ----------
    run : callable
        One call; its result is on the device.
    back : callable
        The result as the case has it: of its shape, the axes in its order.
    on_host : bool
        Whether the host waits for its end, as JAX has no events.
    most : int, optional
        Calls at most, where one takes long.
    """

    run: Callable[[], Any]
    back: Callable[[Any], Any] = lambda result: result
    on_host: bool = False
    most: int | None = None


def times_of(call: Call, repeat: int) -> Times:
    """Time a peer, the second-level cache cold.

    Parameters
    ----------
    call : Call
        What is timed; warmed up first.
    repeat : int
        Calls, fewer where they take long.

    Returns
    -------
    Times
        By events, or from the host for JAX.
    """
    import torch

    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def once() -> float:
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if call.on_host:
            torch.cuda.synchronize()
            start = time.perf_counter()
            call.run().block_until_ready()
            return time.perf_counter() - start
        begin.record()
        call.run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    once()  # compiles
    warm = once()
    count = affordable(warm, min(repeat, call.most or repeat))
    return summary([once() for _ in range(count)])


def device_inputs(case: Case, arrays: Arrays | None = None) -> list[Any]:
    """Inputs of a case on the device, in the order of the parameters.

    Parameters
    ----------
    case : Case
        Whose inputs.
    arrays : dict, optional
        Their values; random ones if not given.

    Raises
    ------
    Exception
        Where there is no torch, or none that sees a GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise NotImplementedError("torch sees no GPU")
    dtype = getattr(torch, case.dtype)
    if arrays is not None:
        wide = [torch.from_numpy(array.astype(np.float32)) for array in arrays.values()]
        return [tensor.to("cuda", dtype) for tensor in wide]
    made, shapes = [], case.shapes()
    for name, (low, high) in case.ranges().items():
        values = torch.rand(shapes[name], device="cuda", dtype=dtype)
        made.append(values.mul_(high - low).add_(low))
    return made


def error_of(case: Case, call: Call, expected: np.ndarray) -> float:
    """Largest difference of a peer from float64, over the largest magnitude of a result."""
    result = call.back(call.run())
    if hasattr(result, "detach"):
        result = result.detach().float().cpu().numpy()
    got = np.asarray(result).astype(np.float64)
    if got.shape != expected.shape:
        raise ValueError(f"expected a result of shape {expected.shape}, got {got.shape}")
    worst = float(np.abs(got - expected).max() / np.abs(expected).max())
    return worst if np.isfinite(worst) else float("inf")


def _needs(holds: bool, what: str) -> None:
    if not holds:
        raise NotImplementedError(what)


def _torch_cumsum(case: Case, inputs: list[Any]) -> Call:
    return Call(lambda: inputs[0].cumsum(-1))


def _torch_loop(case: Case, inputs: list[Any]) -> Call:
    import torch

    _needs(case.sizes[-1] <= 1024, "too slow beyond 1024 steps")
    a, x = inputs

    def call() -> Any:
        h, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
            states.append(h)
        return torch.stack(states, 1)

    return Call(call, most=5)


def _torch_compiled(case: Case, inputs: list[Any]) -> Call:
    import torch
    from torch._higher_order_ops.associative_scan import associative_scan

    _needs(case.sizes[-1] in (512, 4096), "compiling takes long: timed at 512 and 4096 steps")

    def combine(f: Any, g: Any) -> Any:
        return f[0] * g[0], g[0] * f[1] + g[1]

    compiled = torch.compile(lambda a, x: associative_scan(combine, (a, x), dim=1)[1])
    return Call(lambda: compiled(*inputs))


def _triton(case: Case, inputs: list[Any]) -> Call:
    from bench.gpu_triton import affine

    return Call(lambda: affine(*inputs))


def _jax(case: Case, inputs: list[Any]) -> Call:
    import jax

    _needs(jax.default_backend() == "gpu", "jax sees no GPU")
    a, x = (jax.dlpack.from_dlpack(t) for t in inputs)

    def combine(f: Any, g: Any) -> Any:
        return f[0] * g[0], g[0] * f[1] + g[1]

    scan = jax.jit(lambda a, x: jax.lax.associative_scan(combine, (a, x), axis=1)[1])
    return Call(lambda: scan(a, x), on_host=True)


def _accelerated_scan(case: Case, inputs: list[Any]) -> Call:
    from accelerated_scan.warp import scan

    rows, length = case.sizes
    _needs(length & (length - 1) == 0 and length >= 32, "takes powers of two")
    a, x = (t.reshape(8, -1, length) for t in inputs)
    return Call(lambda: scan(a, x), lambda h: h.reshape(rows, length))


def _mamba(case: Case, inputs: list[Any]) -> Call:
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    named = dict(zip(case.ranges(), inputs, strict=True))
    # Weights are float32, whatever the streams are.
    named |= {name: named[name].float() for name in ("A", "D", "delta_bias")}
    order = [named[n] for n in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")]
    return Call(lambda: selective_scan_fn(*order, delta_softplus=True))


def _fla(case: Case, inputs: list[Any]) -> Call:
    from fla.ops.rwkv6 import chunk_rwkv6

    r, k, v, w, u = inputs
    # Batch first, then time, then heads; decays as logarithms, and no factor for the size.
    args = [t.transpose(0, 1)[None].contiguous() for t in (r, k, v, w.log())]
    return Call(lambda: chunk_rwkv6(*args, u, scale=1.0)[0], lambda o: o[0].transpose(0, 1))


def _delta_arguments(inputs: list[Any], dtype: Any) -> tuple[list[Any], Any, Any, Any]:
    """Tokens as fla has them, of ``dtype``; rates, of it too; decays and state as they are."""
    query, key, value, state, decay, beta = inputs
    *tokens, rates = (t.to(dtype).contiguous() for t in (query[:, :, :, 0], key, value, beta))
    return tokens, rates, decay[..., 0].contiguous(), state


def _fla_delta_chunk(case: Case, inputs: list[Any]) -> Call:
    import torch
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    # Written for halves: what it multiplies are tf32 otherwise. Decays it takes in float32.
    tokens, beta, g, state = _delta_arguments(inputs, torch.bfloat16)
    named = {"scale": 1.0, "initial_state": state, "output_final_state": True}
    return Call(lambda: chunk_gated_delta_rule(*tokens, g, beta, **named)[0], _with_groups)


def _fla_delta_steps(case: Case, inputs: list[Any]) -> Call:
    import torch
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

    tokens, beta, g, state = _delta_arguments(inputs, torch.float32)
    named = {"beta": beta, "scale": 1.0, "initial_state": state, "output_final_state": True}
    return Call(lambda: fused_recurrent_gated_delta_rule(*tokens, g, **named)[0], _with_groups)


def _with_groups(output: Any) -> Any:
    """An output as the loop has it: between heads and values, queries that share a key."""
    return output.unsqueeze(3)


#: Family -> name of a peer -> how it is called.
PEERS: dict[str, dict[str, Callable[[Case, list[Any]], Call]]] = {
    "affine": {
        "Triton associative_scan": _triton,
        "accelerated-scan": _accelerated_scan,
        "torch.compile associative_scan": _torch_compiled,
        "torch, sequential": _torch_loop,
        "jax associative_scan": _jax,
    },
    "cumsum": {"torch.cumsum": _torch_cumsum},
    "selective": {"mamba-ssm": _mamba},
    "rwkv6": {"fla chunk": _fla},
    "delta": {"fla chunk, bfloat16": _fla_delta_chunk, "fla step after step": _fla_delta_steps},
}
