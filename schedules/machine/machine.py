"""``Machine``: the numbers of one target: threads, shared memory, cores, constants of a CPU."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from typing import Any

from tvm.target import Target
from tvm.target.codegen import target_has_features

from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_constants import chip_of
from tvm_scan.schedules.machine.device import Device, compute_capability, device_of

__all__ = ["Machine", "host_cores", "host_processors"]


#: Compute capability -> multiprocessors: V100, T4, A100, A40, Orin, L40, H100 and H200, B200, B300,
#: Thor, RTX PRO 6000.
_MULTIPROCESSORS = {
    70: 80,
    75: 40,
    80: 108,
    86: 84,
    87: 16,
    89: 142,
    90: 132,
    100: 148,
    103: 148,
    110: 20,
    120: 188,
}
#: Compute capability -> multiply-adds of tf32, dense, per clock and multiprocessor, for
#: instructions of a warp. From NVIDIA's documents, none measured by us: the whitepapers of A100
#: (156 TFLOPS, 108 multiprocessors at 1.41 GHz) and H100 SXM (495 TFLOPS, 132 at 1.83 GHz), the
#: data sheets of A40 (75 TFLOPS, 84 at 1.74 GHz) and L40 (91 TFLOPS, 142 at 2.49 GHz). Of sm_100
#: and sm_103 they have the rate of other instructions alone: those of a warp count as an H100's.
#: Others count as the slowest.
_TENSOR_RATES = {80: 512.0, 86: 256.0, 89: 128.0, 90: 1024.0, 100: 1024.0, 103: 1024.0}


@dataclass(frozen=True)
class Machine:
    """Numbers of a target: plans are checked against them, and times predicted from them.

    Attributes
    ----------
    device : Device
        What its interface offers.
    threads : int
        Largest number of threads in a block.
    shared_bytes : int
        Shared memory of a block in bytes.
    warp : int
        Threads of a warp.
    cores : int
        CPU cores that TVM's thread pool may use.
    multiprocessors : int
        Streaming multiprocessors: those of the largest device of the target's architecture, since a
        target does not say; an H200's where it has no known one.
    tensor_rate : float
        Multiply-adds of tf32 on tensor cores, per clock and multiprocessor, as documented: not
        measured.
    ldexp : bool
        Whether vectors are scaled by powers of two in one instruction (AVX-512).
    line_stores : bool
        Whether one or two instructions store a cache line past the caches (AVX, AVX-512).
    async_copies : bool
        Whether copies to shared memory go on while threads compute (CUDA's from sm_80).
    processor : str
        Name of the processor or architecture, for messages.
    chip : CpuChip
        Measured constants of a CPU.
    """

    device: Device
    threads: int
    shared_bytes: int
    warp: int
    cores: int = 1
    multiprocessors: int = 132
    tensor_rate: float = 128.0
    ldexp: bool = False
    line_stores: bool = False
    async_copies: bool = True
    processor: str = "a generic CPU"
    chip: CpuChip = field(default_factory=CpuChip)

    @staticmethod
    def of(target: Target) -> Machine:
        """Return the machine of a target, from its attributes where it has them."""
        device = device_of(target)
        attrs = dict(target.attrs) if target.attrs is not None else {}

        def attr(name: str, default: int) -> int:
            value: Any = attrs.get(name)
            return default if value is None else int(value)

        capability = compute_capability(str(attrs.get("arch") or ""))
        return Machine(
            device=device,
            # WebGPU's targets have the second name alone.
            threads=attr("max_threads_per_block", attr("max_num_threads", device.threads)),
            shared_bytes=attr("max_shared_memory_per_block", device.shared_bytes),
            warp=attr("thread_warp_size", device.warp),
            cores=attr("num-cores", host_cores()),
            ldexp=_has(target, "avx512f"),
            line_stores=_has(target, "avx"),
            multiprocessors=_MULTIPROCESSORS.get(capability, Machine.multiprocessors),
            tensor_rate=_TENSOR_RATES.get(capability, Machine.tensor_rate),
            async_copies=device.async_copies and capability >= 80,
            chip=CpuChip() if device.is_gpu else chip_of(target),
            processor=str(attrs.get("mcpu") or attrs.get("arch") or Machine.processor),
        )


def _has(target: Target, feature: str) -> bool:
    return device_of(target).has_features and bool(target_has_features(feature, target))


def host_processors() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def host_cores() -> int:
    """Threads of TVM's pool in this process.

    They are as many as ``TVM_NUM_THREADS`` or ``OMP_NUM_THREADS`` says, at most one for each
    processor that the process may run on; else one for each, on x86 for every second one (TVM 0.27,
    MaxConcurrency in threading_backend.cc).
    """
    processors = host_processors()
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        wanted = os.environ.get(name, "")
        if wanted.isdigit() and int(wanted) > 0:
            return min(int(wanted), processors)
    return max(
        1, processors // 2 if platform.machine().lower() in ("x86_64", "amd64") else processors
    )
