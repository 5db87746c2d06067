"""A CUDA device simulated on the CPU: runs the CUDA source that TVM emits, without a GPU.

Call :func:`install` before ``tvm`` is imported; ``tvm.cuda(0)`` is then a device, and everything
from ``tvm.compile`` to the Relax VM works on it.  README.md says how, and what is not simulated.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import _toolchain
from ._toolchain import KernelBuildError

__all__ = [
    "KernelBuildError",
    "Settings",
    "available",
    "build",
    "bytes_at",
    "clear_error",
    "configure",
    "current_settings",
    "explain",
    "install",
    "is_simulated",
    "last_blocks",
    "last_error",
    "last_source",
    "rewritten_source",
    "settings",
    "unbuilt",
    "why_unavailable",
]


@dataclass(frozen=True)
class Settings:
    """How the next launches run.

    Attributes
    ----------
    seed
        The order of threads and blocks: 0 ascending, 1 descending, larger values at random.  It
        also selects the rubbish that fresh device and shared memory holds.
    race
        Whether the race detector watches; it also finds accesses out of bounds.
    """

    seed: int = 0
    race: bool = False


_EXPLAIN = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t
)


class _State:
    """What the process holds of the simulator; libraries and the callback must never be freed."""

    driver: ctypes.CDLL | None = None
    cudart: ctypes.CDLL | None = None
    callback: object = None
    settings = Settings(
        seed=int(os.environ.get("CUSIM_SEED", "0")), race=os.environ.get("CUSIM_RACE", "0") != "0"
    )
    last_source = ""
    last_error = ""
    rewrite: Callable[[str], str] | None = None
    builds = True


# ---- installation ----------------------------------------------------------------------------


def why_unavailable() -> str | None:
    """The reason why kernels cannot be simulated on this machine, or None."""
    if not sys.platform.startswith("linux"):
        return f"cusim: expected Linux, got {sys.platform}"
    if _toolchain.compiler() is None:
        return "cusim: expected g++ on the PATH, got none"
    if _toolchain.compiler_version() < (9,):
        return f"cusim: expected g++ 9 or later, got {_toolchain.compiler_version()}"
    return None


def available() -> bool:
    """Whether kernels can be simulated on this machine; see :func:`why_unavailable`."""
    return why_unavailable() is None


def is_simulated() -> bool:
    """Whether ``tvm.cuda(0)`` is the simulated device."""
    return _State.driver is not None


def _real_gpu_requested_and_visible() -> bool:
    if os.environ.get("TVM_SCAN_REAL_GPU", "0") in ("", "0"):
        return False
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return (
        driver.cuInit(0) == 0
        and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
        and count.value > 0
    )


def install() -> None:
    """Makes ``tvm.cuda(0)`` the simulated device.

    Does nothing the second time, nor where ``TVM_SCAN_REAL_GPU=1`` is set and a GPU is visible.
    Call it before ``tvm`` is imported: TVM looks for the CUDA libraries once, at its import.

    Raises
    ------
    RuntimeError
        If the simulator cannot run here; the message is that of :func:`why_unavailable`.
    """
    if is_simulated() or _real_gpu_requested_and_visible():
        return
    reason = why_unavailable()
    if reason is not None:
        raise RuntimeError(reason)
    driver_path, cudart_path = _toolchain.build_runtime()
    # Global, so that these satisfy what libtvm_runtime_cuda.so asks of libraries of these names.
    driver = ctypes.CDLL(str(driver_path), mode=ctypes.RTLD_GLOBAL)
    _State.cudart = ctypes.CDLL(str(cudart_path), mode=ctypes.RTLD_GLOBAL)
    _State.callback = _EXPLAIN(_explain_callback)
    driver.cusim_set_callback(_State.callback)
    driver.cusim_bytes_at.restype = ctypes.c_void_p
    _State.driver = driver
    configure(_State.settings.seed, _State.settings.race)

    import tvm
    import tvm_ffi

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", _compile_callback, override=True)
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        # TVM was imported first and did not find the libraries then.
        library = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


# ---- settings --------------------------------------------------------------------------------


def current_settings() -> Settings:
    """How the next launches will run."""
    return _State.settings


def configure(seed: int = 0, race: bool = False) -> None:
    """Sets the order of threads and blocks and the race detector for all launches to come."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"cusim: expected a seed of 32 bits, got {seed}")
    _State.settings = Settings(seed, race)
    if _State.driver is not None:
        _State.driver.cusim_configure(ctypes.c_uint(seed), ctypes.c_int(race))


@contextmanager
def settings(*, seed: int | None = None, race: bool | None = None) -> Iterator[Settings]:
    """The same within a ``with`` block; what is not given stays as it is."""
    before = _State.settings
    configure(
        before.seed if seed is None else seed,
        before.race if race is None else race,
    )
    try:
        yield _State.settings
    finally:
        configure(before.seed, before.race)


@contextmanager
def last_blocks(count: int) -> Iterator[None]:
    """Within a ``with`` block, only the last ``count`` blocks of every grid run.

    Allocations from 64 MiB on take no memory but the pages that are written, so that the end of
    arrays of more than 2^31 elements can be looked at; they begin with zeros.
    """
    if _State.driver is None:
        raise RuntimeError("cusim: expected the simulated device, got none; call install() first")
    _State.driver.cusim_run_last_blocks(ctypes.c_uint(count))
    try:
        yield
    finally:
        _State.driver.cusim_run_last_blocks(ctypes.c_uint(0))


def bytes_at(address: int) -> int:
    """Where the bytes lie that the host knows by this address, which leads nowhere itself.

    Parameters
    ----------
    address
        Of a tensor on the device, or within it.

    Returns
    -------
    int
        The address that kernels get instead; 0 if it is not memory of the device.
    """
    if _State.driver is None:
        raise RuntimeError("cusim: expected the simulated device, got none; call install() first")
    return _State.driver.cusim_bytes_at(ctypes.c_void_p(address)) or 0


# ---- modules ---------------------------------------------------------------------------------


def build(src: str) -> Path:
    """Compiles CUDA source emitted by TVM for the CPU.

    Parameters
    ----------
    src
        The source, as ``executable.mod.imports[0].inspect_source()`` gives it.

    Returns
    -------
    Path
        A shared object, which the simulated driver takes for a cubin.

    Raises
    ------
    KernelBuildError
        With g++'s messages, in which the file is called ``kernel.cu``.
    """
    _State.last_source = src
    try:
        return _toolchain.build_kernel(src)
    except KernelBuildError as error:
        _State.last_error = str(error)
        raise


def last_source() -> str:
    """The CUDA source compiled last, empty if none was."""
    return _State.last_source


@contextmanager
def rewritten_source(rewrite: Callable[[str], str]) -> Iterator[None]:
    """Within the ``with`` block, changes each emitted source before it is compiled.

    For showing that a defect is found: a dropped barrier, say.
    """
    before = _State.rewrite
    _State.rewrite = rewrite
    try:
        yield
    finally:
        _State.rewrite = before


def is_rewritten() -> bool:
    """Whether emitted source is changed before it is compiled."""
    return _State.rewrite is not None


@contextmanager
def unbuilt() -> Iterator[None]:
    """Within the ``with`` block, emitted source is not compiled: for tests that read it only.

    What TVM makes meanwhile cannot be launched.
    """
    before = _State.builds
    _State.builds = False
    try:
        yield
    finally:
        _State.builds = before


def _compile_callback(code: str, *_: object) -> bytes:
    if not _State.builds:
        return b""
    source = str(code)
    return build(source if _State.rewrite is None else _State.rewrite(source)).read_bytes()


# ---- errors ----------------------------------------------------------------------------------


def last_error() -> str:
    """The last launch or build that failed, with source lines; empty if none did.

    The exception that TVM raises for a failed launch holds the same text.
    """
    return _State.last_error


def clear_error() -> None:
    """Forgets the last error."""
    _State.last_error = ""


_PLACE = re.compile(r"\{(pc|line):(\w+)\}")


def explain(msg: str, source: str | None = None) -> str:
    """Replaces the places in a message of the simulator by source lines.

    Parameters
    ----------
    msg
        Text with places such as ``{pc:0x1a2b}`` or ``{line:40}``.
    source
        The source of the module that the message is about; by default the one compiled last.
    """
    source = _State.last_source if source is None else source
    lines = source.splitlines()
    library = _toolchain.library_path(_toolchain.module_key(source))

    def place(match: re.Match[str]) -> str:
        kind, value = match.groups()
        number = int(value) if kind == "line" else _toolchain.line_of(library, int(value, 16))
        if number is None or not 0 < number <= len(lines):
            return f"{kind} {value}"
        return f"line {number} `{lines[number - 1].strip()}`"

    return _PLACE.sub(place, msg)


def _source_of(module_key: bytes) -> str:
    path = _toolchain.source_path(module_key.decode())
    return path.read_text() if path.exists() else ""


def _return_text(text: str, address: int, capacity: int) -> None:
    encoded = text.encode()[: capacity - 1] + b"\0"
    ctypes.memmove(address, encoded, len(encoded))


def _explain_callback(module_key: bytes, message: bytes, address: int, capacity: int) -> None:
    text = explain(message.decode(), _source_of(module_key))
    _State.last_error = text
    _return_text(text, address, capacity)
