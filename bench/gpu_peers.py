"""Peers in Python that ``bench.gpu`` finds on the machine; one that is missing says why.

They run in a process of their own, see ``bench.gpu_worker``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.gpu_cases import Case
from bench.gpu_ours import Times, summary

__all__ = ["PEERS", "device_inputs"]

_FLUSH_BYTES = 256 << 20


def _on_events(call: Callable[[], Any], repeat: int) -> Times:
    """Time a torch function by events, the second-level cache cold."""
    import torch

    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(3):
        call()
    seconds = []
    for _ in range(repeat):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000)
    return summary(seconds)


def _on_host(call: Callable[[], Any], repeat: int) -> Times:
    """Time a JAX function from the host, its end awaited."""
    import time

    call().block_until_ready()
    seconds = []
    for _ in range(repeat):
        begin = time.perf_counter()
        call().block_until_ready()
        seconds.append(time.perf_counter() - begin)
    return summary(seconds)


def device_inputs(case: Case) -> list[Any]:
    """Inputs of a case on the device, in the order of the parameters.

    Raises
    ------
    Exception
        Where there is no torch, or none that sees a GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")
    made, shapes = [], case.shapes()
    for name, (low, high) in case.ranges().items():
        values = torch.rand(shapes[name], device="cuda", dtype=getattr(torch, case.dtype))
        made.append(values * (high - low) + low)
    return made


def _needs(holds: bool, what: str) -> None:
    if not holds:
        raise NotImplementedError(what)


def _torch_cumsum(case: Case, inputs: list[Any], repeat: int) -> Times:
    return _on_events(lambda: inputs[0].cumsum(-1), repeat)


def _torch_loop(case: Case, inputs: list[Any], repeat: int) -> Times:
    import torch

    _needs(case.sizes[-1] <= 1024, "too slow beyond 1024 steps")
    a, x = inputs

    def call() -> Any:
        h, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
            states.append(h)
        return torch.stack(states, 1)

    return _on_events(call, min(repeat, 5))


def _torch_compiled(case: Case, inputs: list[Any], repeat: int) -> Times:
    import torch
    from torch._higher_order_ops.associative_scan import associative_scan

    _needs(case.sizes[-1] in (512, 4096), "compiling takes long: timed at 512 and 4096 steps")

    def combine(f: Any, g: Any) -> Any:
        return f[0] * g[0], g[0] * f[1] + g[1]

    compiled = torch.compile(lambda a, x: associative_scan(combine, (a, x), dim=1)[1])
    return _on_events(lambda: compiled(*inputs), repeat)


def _triton(case: Case, inputs: list[Any], repeat: int) -> Times:
    from bench.gpu_triton import affine

    return _on_events(lambda: affine(*inputs), repeat)


def _jax(case: Case, inputs: list[Any], repeat: int) -> Times:
    import jax

    _needs(jax.default_backend() == "gpu", "jax sees no GPU")
    a, x = (jax.dlpack.from_dlpack(t) for t in inputs)

    def combine(f: Any, g: Any) -> Any:
        return f[0] * g[0], g[0] * f[1] + g[1]

    scan = jax.jit(lambda a, x: jax.lax.associative_scan(combine, (a, x), axis=1)[1])
    return _on_host(lambda: scan(a, x), repeat)


def _accelerated_scan(case: Case, inputs: list[Any], repeat: int) -> Times:
    from accelerated_scan.warp import scan

    length = case.sizes[-1]
    _needs(length & (length - 1) == 0 and length >= 32, "takes powers of two")
    a, x = (t.reshape(8, -1, length) for t in inputs)
    return _on_events(lambda: scan(a, x), repeat)


def _mamba(case: Case, inputs: list[Any], repeat: int) -> Times:
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    named = dict(zip(case.ranges(), inputs, strict=True))
    order = [named[n] for n in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")]
    return _on_events(lambda: selective_scan_fn(*order, delta_softplus=True), repeat)


def _fla(case: Case, inputs: list[Any], repeat: int) -> Times:
    from fla.ops.rwkv6 import chunk_rwkv6

    r, k, v, w, u = inputs
    # Batch first, then time, then heads; decays as logarithms.
    args = [t.transpose(0, 1)[None].contiguous() for t in (r, k, v, w.log())]
    return _on_events(lambda: chunk_rwkv6(*args, u), repeat)


#: Family -> name of a peer -> how it is called.
PEERS: dict[str, dict[str, Callable[..., Times]]] = {
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
}
