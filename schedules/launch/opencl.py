"""Kernels of OpenCL by pyopencl: on this machine's GPU, or on its processor (PoCL)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tvm_scan.schedules.launch.program import Kernel

#: As TVM writes the barrier of a block.
BARRIER = "barrier(CLK_LOCAL_MEM_FENCE)"
#: PoCL (3.1, by LLVM 15) takes a condition on the thread out of a loop, then puts a barrier of its
#: own into the loop, which only some threads of the block reach now, and runs it for all of them.
_OPTIONS = {"Portable Computing Language": ["-cl-opt-disable"]}


class OpenCl:
    """A driver of OpenCL; see ``Driver``.

    Attributes
    ----------
    name : str
        Of the platform and its device, a GPU where there is one.
    extensions : list of str
        Of OpenCL, that the device has.
    """

    def __init__(self) -> None:
        import pyopencl

        self._cl = pyopencl
        devices = [d for platform in pyopencl.get_platforms() for d in platform.get_devices()]
        device = next((d for d in devices if d.type & pyopencl.device_type.GPU), devices[0])
        self.name = f"{device.platform.version}, {device.name}"
        self.extensions = device.extensions.split()
        self._options = _OPTIONS.get(device.platform.name, [])
        self._context = pyopencl.Context([device])
        self._queue = pyopencl.CommandQueue(self._context)

    def buffer(self, content: np.ndarray) -> Any:
        """Allocate memory; see ``Driver``. No buffer is empty."""
        flags = self._cl.mem_flags.READ_WRITE | self._cl.mem_flags.COPY_HOST_PTR
        content = content if content.nbytes else np.zeros(1, "uint8")
        return self._cl.Buffer(self._context, flags, hostbuf=content)

    def launch(
        self, kernel: Kernel, args: Sequence[Any], grid: list[int], block: list[int]
    ) -> None:
        """Run a kernel; see ``Driver``."""
        scalars = [
            arg if kind == "buffer" else np.dtype(kind).type(arg)
            for kind, arg in zip(kernel.parameters, args, strict=True)
        ]
        size = tuple(g * b for g, b in zip(grid, block, strict=True))
        built = self._built(kernel)
        built.set_args(*scalars)
        self._cl.enqueue_nd_range_kernel(self._queue, built, size, tuple(block))

    def read(self, buffer: Any, size: int) -> bytes:
        """Return bytes; see ``Driver``."""
        content = np.empty(size, "uint8")
        if size:
            self._cl.enqueue_copy(self._queue, content, buffer).wait()
        return content.tobytes()

    @lru_cache(maxsize=256)  # noqa: B019 - the one driver lives as long as the process
    def _built(self, kernel: Kernel) -> Any:
        program = self._cl.Program(self._context, kernel.source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the compiler says of unused variables
            built = program.build(self._options, cache_dir=False)  # type: ignore[arg-type]  # as its manual says
            return self._cl.Kernel(built, kernel.name)


@lru_cache(maxsize=1)
def driver() -> OpenCl:
    """Return the one driver of this process."""
    return OpenCl()


@lru_cache(maxsize=1)
def why_unavailable() -> str | None:
    """Say what is missing, and which package brings it; None where kernels run."""
    try:
        import pyopencl
    except ImportError:
        return "expected pyopencl, found none: pip install pyopencl"
    try:
        platforms = pyopencl.get_platforms()
    except pyopencl.LogicError:
        platforms = []
    if not any(platform.get_devices() for platform in platforms):
        return "expected a driver of OpenCL, found none: apt-get install pocl-opencl-icd"
    return None
