"""Set-up of a process before a kernel runs: TVM's runtime library, threads, and forks.

``import tvm`` takes seconds, and only building needs it. A kernel that comes from the cache needs
the runtime library alone, which is loaded here by its path.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import util
from pathlib import Path
from typing import Any

import torch

#: TVM declares buffers as aligned to this many bytes and uses it in vector loads.
ALIGNMENT = 64

#: Bytes of a tensor from which on large pages pay; one, and Linux's number of the advice.
LARGE, _PAGE, _HUGEPAGE = 8 << 20, 2 << 20, 14

_loaded: set[str] = set()
# In a forked child the workers of TVM's thread pool do not exist, and a kernel that waits for
# them waits for ever. The pool is one per calling thread, so there a new thread does the calls.
substitute: ThreadPoolExecutor | None = None


def configure_threads() -> None:
    """Let TVM's threads share the cores with torch's; variables that are set already win.

    As many workers as torch has; not pinned (TVM would pin the calling thread too, and with it
    torch's own); no busy waiting (two pools that spin in turns slow each other down).
    """
    os.environ.setdefault("TVM_NUM_THREADS", str(torch.get_num_threads()))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")


def load_runtime(gpu: str = "") -> None:
    """Load TVM's runtime libraries, which every built kernel calls.

    Parameters
    ----------
    gpu : str
        TVM's name of a device, as ``cuda``, whose library launches the kernels.

    Raises
    ------
    RuntimeError
        If a library is not where the installed TVM keeps it.
    """
    for name in ("libtvm_runtime", *([f"libtvm_runtime_{gpu}"] if gpu else [])):
        if name not in _loaded and "tvm" not in sys.modules:
            _load_library(name)
        _loaded.add(name)


def _load_library(name: str) -> None:
    spec = util.find_spec("tvm")
    home = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    for folder in (home / "lib", home / "lib64", home):
        for suffix in (".so", ".dylib", ".dll"):
            path = folder / f"{name}{suffix}"
            if path.is_file():
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
                return
    raise RuntimeError(
        f"tvm_scan.torch: expected {name} in the package of TVM at {home}, found none; "
        "reinstall apache-tvm"
    )


def launch(call: Callable[..., Any], *arguments: Any) -> None:
    """Run a kernel, also in a forked child."""
    if substitute is None:
        call(*arguments)
    else:
        substitute.submit(call, *arguments).result()


def _after_fork() -> None:
    global substitute
    substitute = ThreadPoolExecutor(1, thread_name_prefix="tvm_scan")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def aligned_empty(shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate a contiguous tensor that starts at a multiple of the alignment."""
    return _aligned(torch.empty(shape, dtype=dtype, device=device))


def aligned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Allocate another tensor of its shape, dtype and device, as `aligned_empty` does.

    To tell torch the shape takes two thirds of the time that a small tensor takes.
    """
    return _aligned(torch.empty_like(tensor, memory_format=torch.contiguous_format))


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor, or another one where it is not aligned."""
    if tensor.is_cpu and tensor.nbytes >= LARGE and sys.platform == "linux":
        _ask_for_large_pages(tensor)
    if tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    extra = ALIGNMENT // tensor.element_size()
    flat = torch.empty(tensor.numel() + extra, dtype=tensor.dtype, device=tensor.device)
    skip = (-flat.data_ptr() % ALIGNMENT) // tensor.element_size()
    return flat[skip : skip + tensor.numel()].view(tensor.shape)


def _ask_for_large_pages(tensor: torch.Tensor) -> None:
    """Advise Linux to have what is new of a tensor's memory in pages of 2 MB.

    The first access to each page waits for its zeros, those of 4 KB one by one (outputs of 32 MB
    on a Zen 4: 8193 times, a quarter of 2048 steps of 32 x 128 x 128 of a delta rule).
    """
    start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    start, stop = -(-start // _PAGE) * _PAGE, stop // _PAGE * _PAGE
    # What it returns is nothing to act on: without such pages there are others.
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _HUGEPAGE)


def prepared(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` as TVM takes it: compact strides, aligned; a copy only where needed."""
    if tensor.is_neg():  # torch has put off a change of sign
        tensor = tensor.resolve_neg()
    shape = tensor.shape
    strides = compact_strides(shape)
    if tensor.stride() == strides:
        if not tensor.data_ptr() % ALIGNMENT:
            return tensor
    elif not tensor.numel():
        return tensor.as_strided(shape, strides)
    elif tensor.is_contiguous() and not tensor.data_ptr() % ALIGNMENT:
        # torch leaves the stride of an axis of one element open; TVM wants the compact one.
        return tensor.as_strided(shape, strides)
    return aligned_like(tensor).copy_(tensor)


@functools.lru_cache(maxsize=4096)  # asked at every call
def compact_strides(shape: torch.Size) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor as TVM computes them."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
