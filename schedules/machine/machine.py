"""``Machine``: the numbers of one target: threads, shared memory, cores, constants of a CPU."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from functools import cache
from timeit import repeat
from typing import Any

from tvm.target import Target

from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_constants import chip_of
from tvm_scan.schedules.machine.device import Device, compute_capability, device_of, has_feature
from tvm_scan.schedules.machine.gpu_chip import H200, GpuChip, gpu_chip_of

#: Times that the processors are counted, of which the quickest tells what it takes.
_COUNTED = 20


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
    gpu : GpuChip
        The largest GPU of the target's architecture, since a target does not say; that of the
        nearest architecture below one that is not known, and an H200 where it names none.
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
    counting : float
        Seconds in which TVM's pool counts the processors, at every call of it.
    """

    device: Device
    threads: int
    shared_bytes: int
    warp: int
    cores: int = 1
    gpu: GpuChip = H200
    ldexp: bool = False
    line_stores: bool = False
    async_copies: bool = True
    processor: str = "a generic CPU"
    chip: CpuChip = field(default_factory=CpuChip)
    counting: float = 0.0

    @property
    def multiprocessors(self) -> int:
        """Streaming multiprocessors of the GPU."""
        return self.gpu.multiprocessors

    @property
    def predicted_for(self) -> str:
        """The GPU whose numbers predictions take, in words; empty for a CPU."""
        if not self.device.is_gpu:
            return ""
        wanted = compute_capability(self.processor)
        if wanted in (0, self.gpu.capability):
            return self.gpu.name
        where = "below" if self.gpu.capability < wanted else "above"
        return (
            f"{self.gpu.name}, of {self.gpu.arch}: the nearest architecture {where} "
            f"{self.processor} whose numbers are known"
        )

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
            # Of another machine's pool nothing is known.
            counting=0.0 if device.is_gpu or "num-cores" in attrs else host_counting(),
            ldexp=has_feature(target, "avx512f"),
            line_stores=has_feature(target, "avx"),
            gpu=gpu_chip_of(capability, str(attrs.get("model") or "")),
            async_copies=device.async_copies and capability >= 80,
            chip=CpuChip() if device.is_gpu else chip_of(target),
            processor=str(attrs.get("mcpu") or attrs.get("arch") or Machine.processor),
        )


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
    if wanted := _wanted_threads():
        return min(wanted, processors)
    return max(
        1, processors // 2 if platform.machine().lower() in ("x86_64", "amd64") else processors
    )


def host_counting() -> float:
    """Seconds in which TVM's pool counts the processors, at every call of it.

    It asks the system unless a variable says how many threads it has: with Linux's C library a file
    is read for it, which takes some microseconds (TVM 0.27, MaxConcurrency; a pool of one thread
    took 6.5 us a call on a Zen 4, 0.3 with TVM_NUM_THREADS=1).
    """
    return 0.0 if _wanted_threads() else _counting()


@cache
def _counting() -> float:
    if not hasattr(os, "sysconf") or "SC_NPROCESSORS_ONLN" not in os.sysconf_names:
        return 0.0
    return min(repeat(lambda: os.sysconf("SC_NPROCESSORS_ONLN"), number=1, repeat=_COUNTED))


def _wanted_threads() -> int:
    """Threads that a variable says TVM's pool has; 0 where none does."""
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        wanted = os.environ.get(name, "")
        if wanted.isdigit() and int(wanted) > 0:
            return int(wanted)
    return 0
