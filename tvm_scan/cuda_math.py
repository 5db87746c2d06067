"""Compiling for CUDA without fast math, which TVM turns on.

TVM hands ``--use_fast_math`` to nvcc and to NVRTC. It flushes denormals, divides by an approximate
reciprocal, and puts other functions in place of the C library's: ``expf(x)`` becomes ``exp2`` of a
rounded product, whose relative error grows with ``|x|`` to 2^-17, and NVRTC makes ``tanhf`` a
single instruction with an error of 2^-11. The errors that this project states hold without it, and
where special functions bind, its kernels ask for the bare instruction themselves
(``schedules/gpu/walk/exponentials.py``). So whatever compiles for CUDA here does so through this
module. ``TVM_SCAN_FAST_MATH=1`` keeps TVM's choice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from tvm_scan._locks import ForkSafeLock
from tvm_scan._toolkit import toolkit_environment

_FLAG = "--use_fast_math"
_lock = ForkSafeLock()


@contextmanager
def exact_math() -> Iterator[None]:
    """Let TVM compile CUDA code without fast math, and find the headers installed by pip.

    For code that calls ``tvm.compile`` itself, with a pipeline for example. Compilations of other
    threads within it are without fast math too, and other threads that want it wait.
    ``TVM_SCAN_FAST_MATH=1`` in the environment leaves TVM's choice.

    Yields
    ------
    None
    """
    with _lock:
        changes = toolkit_environment()
        if not os.environ.get("TVM_SCAN_FAST_MATH"):
            changes["TVM_CUDA_NVCC_NO_FAST_MATH"] = "1"
        before = {name: os.environ.get(name) for name in changes}
        os.environ.update(changes)
        try:
            with _nvrtc_without_flag():
                yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def build(mod: Any, target: Any, **options: Any) -> Any:
    """``tvm.compile`` for any target; code for CUDA is made without fast math.

    Parameters
    ----------
    mod : IRModule or PrimFunc
        What to compile.
    target : tvm.target.Target
        What for.
    **options
        Of ``tvm.compile``.
    """
    import tvm

    if str(target.kind.name) != "cuda":
        return tvm.compile(mod, target=target, **options)
    # TVM asks the current target for the architecture.
    with exact_math(), target:
        return tvm.compile(mod, target=target, **options)


@contextmanager
def _nvrtc_without_flag() -> Iterator[None]:
    """TVM has no variable for NVRTC, and options after the flag do not bring the functions back."""
    if os.environ.get("TVM_SCAN_FAST_MATH") or not has_nvrtc():
        yield
        return
    from cuda.bindings import nvrtc

    compiled = nvrtc.nvrtcCompileProgram

    def without(program: Any, _count: int, options: list[bytes]) -> Any:
        options_left = [option for option in options if option != _FLAG.encode()]
        return compiled(program, len(options_left), options_left)

    nvrtc.nvrtcCompileProgram = without
    try:
        yield
    finally:
        nvrtc.nvrtcCompileProgram = compiled


def has_nvrtc() -> bool:
    """Return whether the library NVRTC is there, from PyPI."""
    try:
        return find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:
        return False
