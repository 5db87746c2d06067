"""The device of a tensor: its kernel, and what has to be set while that kernel runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.kernels.runtime import launch


@dataclass(frozen=True, eq=False)
class Device:
    """A kind of device that kernels are built for; equal GPUs share one object.

    Attributes
    ----------
    kind : str
        ``cpu`` or ``cuda``.
    arch : str
        Of a GPU its compute capability, as ``sm_90``.
    threads, shared_bytes : int
        Of a GPU the limits of a block.
    """

    kind: str
    arch: str = ""
    threads: int = 0
    shared_bytes: int = 0

    @property
    def is_gpu(self) -> bool:
        """Return whether kernels are launched there, rather than called."""
        return self.kind != "cpu"

    def __str__(self) -> str:
        """Name the device in keys of the cache."""
        if not self.is_gpu:
            return self.kind
        return f"{self.kind}/{self.arch}/{self.threads}/{self.shared_bytes}"


CPU = Device("cpu")


def has_kernels(tensor: Tensor) -> bool:
    """Return whether there are kernels for tensors like this one."""
    return tensor.is_cpu or tensor.is_cuda


def device_of(tensor: Tensor) -> Device:
    """Return the device of a tensor on a CPU or a GPU."""
    return CPU if tensor.is_cpu else _gpu(tensor.device.index)


@functools.cache
def _gpu(index: int) -> Device:
    about = torch.cuda.get_device_properties(index)
    return gpu_device(
        f"sm_{about.major}{about.minor}",
        int(getattr(about, "max_threads_per_block", 1024)),
        int(getattr(about, "shared_memory_per_block", 49152)),
    )


@functools.cache
def gpu_device(arch: str, threads: int = 1024, shared_bytes: int = 49152) -> Device:
    """Return the device of GPUs with these properties."""
    return Device("cuda", arch, threads, shared_bytes)


def target_of(device: Device) -> Any:
    """Return the target of TVM that kernels of a device are built for."""
    from tvm.target import Target

    from tvm_scan.arguments import host_target

    if not device.is_gpu:
        return host_target()
    return Target(
        {
            "kind": device.kind,
            "arch": device.arch,
            "max_threads_per_block": device.threads,
            "max_shared_memory_per_block": device.shared_bytes,
        },
        host=host_target(),
    )


def check_not_capturing(device: Device, what: str) -> None:
    """Raise if a kernel would have to be built or loaded while a CUDA graph is captured."""
    if device.is_gpu and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        from tvm_scan.errors import ScanError  # which imports TVM

        raise ScanError(
            f"tvm_scan.torch: expected {what} to be loaded before a CUDA graph is captured, got "
            "its first call in the capture; call it once on tensors of these sizes before"
        )


def run_at(device: Device, call: Callable[..., Any], arguments: list[Any]) -> None:
    """Run a kernel where its tensors lie; on a GPU, on torch's current stream, and not wait.

    TVM launches on the stream that tvm-ffi holds for the device. Both that and the current
    device are put back, since other kernels of the process may rely on them.
    """
    if not device.is_gpu:
        launch(call, *arguments)
        return
    import tvm_ffi

    index = arguments[-1].device.index
    stream = torch.cuda.current_stream(index).cuda_stream
    with torch.cuda.device(index), tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", index), stream):
        call(*arguments)
