"""Kernels of WebGPU by wgpu: on this machine's GPU, or on a driver without one (llvmpipe)."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tvm_scan.schedules.launch.program import Kernel

_HALF = "shader-f16"


class WebGpu:
    """A driver of WGSL, with the limits that every one has; see ``Driver``.

    Attributes
    ----------
    name : str
        Of the adapter, a GPU where there is one.
    features : list of str
        Of WebGPU, that the adapter has.
    """

    def __init__(self) -> None:
        adapter = min(_adapters(), key=lambda adapter: adapter.info["adapter_type"] == "CPU")
        self.name = f"{adapter.info['device']}, {adapter.info['description']}"
        self.features = sorted(str(feature) for feature in adapter.features)
        wanted = [_HALF] if _HALF in adapter.features else []
        self._device = adapter.request_device_sync(required_features=wanted)

    def buffer(self, content: np.ndarray) -> Any:
        """Allocate memory; see ``Driver``. It is a multiple of 4 bytes, and none is empty."""
        data = content.tobytes()
        data += bytes(max(4, -(-len(data) // 4) * 4) - len(data))
        return self._device.create_buffer_with_data(data=data, usage="STORAGE|COPY_SRC")

    def launch(
        self, kernel: Kernel, args: Sequence[Any], grid: list[int], block: list[int]
    ) -> None:
        """Run a kernel; see ``Driver``."""
        kinds = list(zip(kernel.parameters, args, strict=True))
        buffers = [arg for kind, arg in kinds if kind == "buffer"]
        scalars = [np.dtype(kind).type(arg).tobytes() for kind, arg in kinds if kind != "buffer"]
        uniform = self._device.create_buffer_with_data(data=b"".join(scalars), usage="UNIFORM")
        pipeline = self._pipeline(kernel)
        group = self._device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),
            entries=[
                {"binding": i, "resource": {"buffer": buffer}}
                for i, buffer in enumerate([*buffers, uniform])
            ],
        )
        encoder = self._device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(*grid)
        compute.end()
        self._device.queue.submit([encoder.finish()])

    def read(self, buffer: Any, size: int) -> bytes:
        """Return bytes; see ``Driver``."""
        return bytes(self._device.queue.read_buffer(buffer))[:size]

    @lru_cache(maxsize=256)  # noqa: B019 - the one driver lives as long as the process
    def _pipeline(self, kernel: Kernel) -> Any:
        module = self._device.create_shader_module(code=kernel.source)
        compute = {"module": module, "entry_point": kernel.name}
        return self._device.create_compute_pipeline(layout="auto", compute=compute)


def _adapters() -> list[Any]:
    # The loader of Vulkan looks there for a screen, and complains.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    # Loaded behind Mesa, z3 takes C++ symbols from there, and ends the process at its first number.
    with contextlib.suppress(ImportError):
        import z3  # noqa: F401
    import wgpu

    return list(wgpu.gpu.enumerate_adapters_sync())


@lru_cache(maxsize=1)
def driver() -> WebGpu:
    """Return the one driver of this process."""
    return WebGpu()


@lru_cache(maxsize=1)
def why_unavailable() -> str | None:
    """Say what is missing, and which package brings it; None where kernels run."""
    try:
        import wgpu  # noqa: F401
    except ImportError:
        return "expected wgpu, found none: pip install wgpu"
    if not _adapters():
        return "expected an adapter of WebGPU, found none: apt-get install mesa-vulkan-drivers"
    return None
