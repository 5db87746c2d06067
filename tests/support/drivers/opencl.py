"""OpenCL of this machine's processor: PoCL."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tests.support.environment import cache_folder
from tvm_scan.browser.program import Kernel

__all__ = ["BARRIER", "OpenCl", "driver", "why_unavailable"]

BARRIER = "barrier(CLK_LOCAL_MEM_FENCE)"


class OpenCl:
    """A driver of OpenCL; see ``Driver``."""

    def __init__(self) -> None:
        import pyopencl

        self.cl = pyopencl
        device = pyopencl.get_platforms()[0].get_devices()[0]
        self.name = f"{device.platform.version}, {device.name}"
        self.extensions = device.extensions.split()
        self.context = pyopencl.Context([device])
        self.queue = pyopencl.CommandQueue(self.context)

    def buffer(self, content: np.ndarray) -> Any:
        """Memory of the device; none is empty."""
        flags = self.cl.mem_flags.READ_WRITE | self.cl.mem_flags.COPY_HOST_PTR
        content = content if content.nbytes else np.zeros(1, "uint8")
        return self.cl.Buffer(self.context, flags, hostbuf=content)

    def launch(
        self, kernel: Kernel, args: Sequence[Any], grid: list[int], block: list[int]
    ) -> None:
        """Run a kernel."""
        scalars = [
            arg if kind == "buffer" else np.dtype(kind).type(arg)
            for kind, arg in zip(kernel.parameters, args, strict=True)
        ]
        size = [g * b for g, b in zip(grid, block, strict=True)]
        built = self._built(kernel)
        built.set_args(*scalars)
        self.cl.enqueue_nd_range_kernel(self.queue, built, size, block)

    def read(self, buffer: Any, size: int) -> bytes:
        """The first bytes of a buffer, all kernels having ended."""
        content = np.empty(size, "uint8")
        if size:
            self.cl.enqueue_copy(self.queue, content, buffer).wait()
        return content.tobytes()

    @lru_cache(maxsize=256)  # noqa: B019 - the one driver lives as long as the process
    def _built(self, kernel: Kernel) -> Any:
        program = self.cl.Program(self.context, kernel.source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the compiler says of unused variables
            return self.cl.Kernel(program.build(cache_dir=False), kernel.name)


@lru_cache(maxsize=1)
def driver() -> OpenCl:
    """The one driver of this process."""
    return OpenCl()


@lru_cache(maxsize=1)
def why_unavailable() -> str | None:
    """What is missing, and which package brings it; None where kernels run."""
    os.environ.setdefault("POCL_CACHE_DIR", str(cache_folder() / "pocl"))
    try:
        import pyopencl
    except ImportError:
        return "expected pyopencl, found none: pip install pyopencl"
    try:
        platforms = pyopencl.get_platforms()
    except pyopencl.LogicError:
        platforms = []
    if not platforms:
        return "expected a driver of OpenCL, found none: apt-get install pocl-opencl-icd"
    return None
