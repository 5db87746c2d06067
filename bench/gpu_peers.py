"""Peers that ``bench.gpu`` finds on the machine; one that is missing says why, and is left out."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from bench.gpu_cases import Case
from bench.gpu_ours import Times, device_tensors, summary

__all__ = ["build_native", "native_copy", "peer_times"]

_SOURCE = Path(__file__).with_name("gpu_peers.cu")
_FLUSH_BYTES = 256 << 20


def build_native(folder: Path, arch: str, nvcc: str) -> ctypes.CDLL:
    """Compile the peers in CUDA, with CUB from the toolkit's own headers.

    Parameters
    ----------
    folder : Path
        Where the library goes.
    arch : str
        Such as ``sm_90``.
    nvcc : str
        The compiler.

    Returns
    -------
    ctypes.CDLL
    """
    made = folder / "gpu_peers.so"
    options = ["-std=c++17", "-O3", f"-arch={arch}", "--extended-lambda", "-shared"]
    command = [nvcc, *options, "-Xcompiler", "-fPIC", "-o", str(made), str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"nvcc rejects {_SOURCE.name}:\n{done.stderr[:2000]}")
    return ctypes.CDLL(str(made))


def _native(function: Any, tensors: list[Any], sizes: list[int], repeat: int) -> Times:
    """Call one of the functions of the library on TVM's tensors."""
    found = (ctypes.c_float * repeat)()
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    status = function(*pointers, *map(ctypes.c_size_t, sizes), ctypes.c_int(repeat), found)
    if status != 0:
        raise RuntimeError(f"CUDA error {status}")
    return summary([ms / 1000 for ms in found])


def native_copy(library: ctypes.CDLL, device: Any, count: int, repeat: int) -> float:
    """Bytes per second of ``cudaMemcpy`` from device to device."""
    tensors = [tvm.runtime.empty((count,), "float32", device) for _ in range(2)]
    return 8.0 * count / _native(library.peer_copy, tensors, [count], repeat).median


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


def _inputs(case: Case) -> list[Any]:
    import torch

    made, shapes = [], case.shapes()
    for name, (low, high) in case.ranges().items():
        values = torch.rand(shapes[name], device="cuda", dtype=getattr(torch, case.dtype))
        made.append(values * (high - low) + low)
    return made


def peer_times(
    case: Case, library: ctypes.CDLL | None, target: Target, repeat: int
) -> Iterator[tuple[str, Times | str]]:
    """Time every peer of a case, one after the other.

    Parameters
    ----------
    case : Case
        What to run.
    library : ctypes.CDLL or None
        Of ``build_native``.
    target : tvm.target.Target
        The GPU, for the kernels that make inputs.
    repeat : int
        Calls of each.

    Yields
    ------
    (str, Times or str)
        The peer's name, and its times or the reason why it has none.
    """
    for name, call in _NATIVE.get(case.family, {}).items():
        try:
            _needs(library is not None, "no nvcc")
            _needs(case.dtype == "float32", "written for float32")
            tensors = device_tensors(case, target, tvm.cuda(0))
            yield name, call(case, tensors, library, repeat)
        except Exception as error:
            yield name, f"{type(error).__name__}: {str(error)[:200]}"
    try:
        import torch

        _needs(torch.cuda.is_available(), "torch sees no GPU")
    except Exception as error:
        yield "all that torch calls", f"{type(error).__name__}: {error}"
        return
    inputs = _inputs(case)
    for name, run in _PEERS[case.family].items():
        try:
            yield name, run(case, inputs, repeat)
        except Exception as error:
            yield name, f"{type(error).__name__}: {str(error)[:200]}"
    del inputs
    torch.cuda.empty_cache()


def _needs(holds: bool, what: str) -> None:
    if not holds:
        raise NotImplementedError(what)


def _cub(case: Case, tensors: list[Any], library: Any, repeat: int) -> Times:
    rows, length = case.sizes
    if case.family == "cumsum":
        _needs(rows == 1, "CUB scans one row")
        return _native(library.peer_cub_sum, tensors, [length], repeat)
    return _native(library.peer_cub_affine, tensors, [rows, length], repeat)


def _sequential(case: Case, tensors: list[Any], library: Any, repeat: int) -> Times:
    return _native(library.peer_sequential_affine, tensors, list(case.sizes), repeat)


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

    _needs(case.sizes[-1] <= 4096, "compiled for at most 4096 steps here")

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


_NATIVE: dict[str, dict[str, Callable[..., Times]]] = {
    "affine": {"CUB DeviceScan": _cub, "CUDA, sequential": _sequential},
    "cumsum": {"CUB DeviceScan": _cub},
}
_PEERS: dict[str, dict[str, Callable[..., Times]]] = {
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
