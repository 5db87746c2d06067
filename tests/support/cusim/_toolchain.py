"""Building the runtime and the kernels with g++, and where the results are kept."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
INCLUDE = HERE / "include"
RUNTIME = HERE / "runtime"

DRIVER = "libcuda.so.1"
CUDART = "libcudart.so.13"
DRIVER_SOURCES = (
    "driver.cc",
    "launch.cc",
    "scheduler.cc",
    "race.cc",
    "ordered.cc",
    "async_copy.cc",
    "matrix.cc",
    "memory.cc",
    "undefined.cc",
)

#: What nobody asked a cache for in this time is removed from it.
KEEP_SECONDS = 7 * 24 * 3600

KERNEL_FLAGS = (
    "-std=c++17",
    "-Og",
    "-g1",  # line numbers, for messages
    "-w",
    "-fPIC",
    "-ffp-contract=off",  # the same rounding whatever the processor
    # nvcc lets emitted code reinterpret vectors and overflow signed integers.
    "-fno-strict-aliasing",
    "-fwrapv",
    # What a device refuses, or lets hit a neighbour (undefined.cc has the functions called), and
    # every access, for the race detector: linked without the sanitizers' libraries, the hooks are
    # ours, and return at once where the detector does not watch.
    "-fsanitize=alignment,bounds-strict,object-size,thread",
)

#: The header before every emitted source; to read it takes longer than most kernels.
HEADER = "cusim.h"

_KERNEL = re.compile(
    r"__global__\s+void\s+(?:__launch_bounds__\(\s*(\d+)[^)]*\)\s+)?(\w+)\s*\([^)]*\)\s*\{"
)

_STATIC_SHARED = re.compile(
    r"__shared__\s+(?:(?:__align__|alignas)\(\d+\)\s+)?([\w ]+?)\s+\w+\[(\w+)\];"
)
_DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:(?:__align__|alignas)\(\d+\)\s+)?([\w ]+?)\s+(\w+)\[\];"
)

# A function in which TVM wraps one of the instructions for asynchronous copies.
_ASYNC = re.compile(
    r"(void tvm_builtin_ptx_cp_async_\w+\()([^)]*)(\) \{\n)"
    r'  asm volatile\("cp\.async\.([\w.]+)([^"]*)"[^\n]*\n'
)

# A function in which TVM wraps a load or store with an order.
_ORDERED = re.compile(
    r"(void tvm_builtin_ptx_(ld|st)_(acquire|release|relaxed)_gpu_global_\w+\()([^)]*)(\) \{\n)"
    r'  asm volatile\("[^\n]*\n'
)

# The special function unit's power of two and reciprocal, as the project's kernels ask for them.
_EX2 = re.compile(r'asm\("ex2\.approx\.ftz\.f32 %0, %1;" : "=f"\((\w+)\) : "f"\((\w+)\)\);')
_RCP = re.compile(r'asm\("rcp\.approx\.ftz\.f32 %0, %1;" : "=f"\((\w+)\) : "f"\((\w+)\)\);')

# Instructions that do the same with both halves of pairs of floats.
_PAIRS = re.compile(
    r'asm\("[^"]*\b(mul|add|fma)\.rn\.f32x2 [^"]*"\s*'
    r':\s*"=f"\(([^)]+)\),\s*"=f"\(([^)]+)\)\s*:\s*([^;]*)\);'
)

# A product of matrices on tensor cores, which all lanes of a warp make together.
_MATRIX_PRODUCT = re.compile(
    r'asm volatile\(\s*"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32\.tf32\.f32 '
    r'\{%0, %1, %2, %3\}, \{%4, %5, %6, %7\}, \{%8, %9\}, \{%10, %11, %12, %13\};"\s*'
    r':((?:\s*"=f"\([^)]+\),?){4})\s*'
    r':((?:\s*"r"\([^)]+\),?){6}(?:\s*"f"\([^)]+\),?){4})\s*\);'
)


def _in_halves(match: re.Match[str]) -> str:
    """An instruction on pairs as two IEEE operations."""
    name, *results, given = match.groups()
    operands = re.findall(r'"f"\(([^)]+)\)', given)
    form = {"mul": "{} * {}", "add": "{} + {}", "fma": "fmaf({}, {}, {})"}[name]
    halves = (f"{r} = {form.format(*operands[i::2])};" for i, r in enumerate(results))
    return " ".join(halves)


def _matrix_product(match: re.Match[str]) -> str:
    """The simulator's function for the instruction, on the same lines."""
    operands = re.findall(r'"(?:=f|r|f)"\(([^)]+)\)', match[1] + match[2])
    lines = "\n" * match[0].count("\n")
    return f"cusim::matrix_product({', '.join(operands)}, __builtin_LINE());{lines}"


class KernelBuildError(RuntimeError):
    """The emitted CUDA source does not compile; the message holds the compiler's words."""


@functools.cache
def compiler() -> str | None:
    """The C++ compiler: ``$CXX`` if it is a g++, or g++."""
    for name in (os.environ.get("CXX", ""), "g++"):
        path = shutil.which(name) if "g++" in name else None
        if path is not None:
            return path
    return None


@functools.cache
def compiler_version() -> tuple[int, ...]:
    """The version of the compiler, such as (12, 2, 0)."""
    gxx = compiler()
    if gxx is None:
        return ()
    words = subprocess.run(
        [gxx, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=True
    ).stdout.split()
    return tuple(int(part) for part in words[0].split("."))


@functools.cache
def fingerprint() -> str:
    """A hash of all that the outcome of a build depends on, but the kernel."""
    digest = hashlib.sha256()
    for path in sorted([*INCLUDE.iterdir(), *RUNTIME.iterdir(), Path(__file__)]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(f"{compiler()} {compiler_version()} {platform.machine()}".encode())
    return digest.hexdigest()[:16]


_VERSION = re.compile(r"[0-9a-f]{16}")


@functools.cache
def cache_directory() -> Path:
    """Where built files lie: one directory per version of the sources, outside the source tree."""
    roots = [
        os.environ.get("CUSIM_CACHE"),
        os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tvm_scan", "cusim"
        ),
        os.path.join(tempfile.gettempdir(), f"tvm_scan-cusim-{os.getuid()}"),
    ]
    for root in roots:
        if not root:
            continue
        directory = Path(root) / fingerprint()
        try:
            (directory / "kernels").mkdir(parents=True, exist_ok=True)
            # Code is loaded from here: nobody else may be able to write it.
            if directory.stat().st_uid == os.getuid() and os.access(directory, os.W_OK):
                return directory
        except OSError:
            continue
    raise OSError(f"cusim: expected a writable cache directory, tried {roots}")


def _run(arguments: list[str]) -> None:
    outcome = subprocess.run(arguments, capture_output=True, text=True)
    if outcome.returncode != 0:
        errors = [line for line in outcome.stderr.splitlines() if "error" in line]
        text = "\n".join(errors[:10]) + "\n\n" + outcome.stderr[:4000]
        raise KernelBuildError(f"cusim: {arguments[0]} rejects the source:\n{text}")


def build_runtime() -> tuple[Path, Path]:
    """Builds the two libraries, unless they are in the cache; safe in parallel processes."""
    gxx = compiler()
    assert gxx is not None

    def make(scratch: Path) -> None:
        common = [gxx, "-std=c++17", "-O2", "-shared", "-fPIC"]
        driver, cudart = str(scratch / DRIVER), str(scratch / CUDART)
        sources = [str(RUNTIME / name) for name in DRIVER_SOURCES]
        _run([*common, *sources, "-o", driver, f"-Wl,-soname,{DRIVER}", "-ldl"])
        # The version that the symbols of NVIDIA's library carry.
        versions = scratch / "cudart.map"
        versions.write_text(f"{CUDART} {{ global: cuda*; local: *; }};\n")
        link = [f"-Wl,-soname,{CUDART}", f"-Wl,--version-script={versions}", driver]
        _run([*common, str(RUNTIME / "cudart.cc"), "-o", cudart, *link])

    final = build_once(cache_directory() / "runtime", make)
    _remove_old_kernels()
    return final / DRIVER, final / CUDART


def build_once(final: Path, build: Callable[[Path], None]) -> Path:
    """A folder, filled by whoever asks first; safe in parallel processes.

    An error of `build` that is no OSError leaves nothing behind.
    """
    if not final.is_dir():
        scratch = Path(tempfile.mkdtemp(dir=final.parent, prefix="building-"))
        try:
            build(scratch)
            scratch.rename(final)
        except OSError:
            # Another process was first; its files are the same.
            if not final.is_dir():
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return final


def _remove_old_kernels() -> None:
    """Also those of other versions of the sources, with all that belongs to them."""
    here = cache_directory()
    os.utime(here / "kernels")  # in use, even if nothing new is compiled
    remove_unused((here / "kernels").iterdir())
    others = (p for p in here.parent.iterdir() if _VERSION.fullmatch(p.name) and p != here)
    remove_unused(others, lambda folder: folder / "kernels")


def remove_unused(
    paths: Iterable[Path], marker: Callable[[Path], Path] = lambda path: path
) -> None:
    """Remove files and folders whose marker was not touched for `KEEP_SECONDS`."""
    limit = time.time() - KEEP_SECONDS
    for path in paths:
        try:
            if marker(path).stat().st_mtime >= limit:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        except OSError:
            continue  # removed by another process


def compile_command() -> list[str]:
    """How a kernel is compiled, with the precompiled header; made where there is none yet."""
    gxx = compiler()
    assert gxx is not None
    command = [gxx, *KERNEL_FLAGS]
    if compiler_version() >= (11,):
        command.append("--param=tsan-distinguish-volatile=1")

    def make(scratch: Path) -> None:
        header = [str(INCLUDE / HEADER), "-o", str(scratch / f"{HEADER}.gch")]
        _run([*command, "-x", "c++-header", *header])

    return [*command, f"-I{build_once(cache_directory() / 'precompiled', make)}", f"-I{INCLUDE}"]


def module_key(source: str) -> str:
    """The name under which a module's source and its library are cached."""
    return hashlib.sha256((fingerprint() + source).encode()).hexdigest()[:20]


def source_path(key: str) -> Path:
    """Where the emitted source of a module lies."""
    return cache_directory() / "kernels" / f"{key}.cu"


def library_path(key: str) -> Path:
    """Where the compiled module lies."""
    return cache_directory() / "kernels" / f"{key}.so"


def _async_copies(match: re.Match[str]) -> str:
    """The simulator's function for the instruction; messages name the line of the call."""
    head, parameters, brace, kind, operands = match.groups()
    if kind.endswith("shared.global"):
        size = re.fullmatch(r" \[%0\], \[%1\], (\d+);", operands)
        if size is None:
            return match[0]  # a form that is not simulated: g++ will say so
        parameters += ", int line = __builtin_LINE()"
        call = f"cusim_async_copy(__dst_mem, __src_mem, {size[1]}, line)"
    else:
        call = {
            "commit_group": "cusim_async_commit()",
            "wait_group": f"cusim_async_wait({operands.strip(' ;') or 0})",
        }.get(kind, "")
    return f"{head}{parameters}{brace}  {call};\n" if call else match[0]


def _ordered_access(match: re.Match[str]) -> str:
    """The simulator's function for the instruction; messages name the line of the call."""
    head, kind, order, parameters, brace = match.groups()
    operands = "__d, __addr" if kind == "ld" else "__addr, __value"
    call = {"ld": "load", "st": "store"}[kind]
    orders = int(order != "relaxed")
    return (
        f"{head}{parameters}, int line = __builtin_LINE(){brace}"
        f"  cusim::ordered_{call}({operands}, {orders}, line);\n"
    )


def _translation_unit(source: str, key: str) -> str:
    source = _ASYNC.sub(_async_copies, source)
    source = _ORDERED.sub(_ordered_access, source)
    source = _EX2.sub(r"\1 = cusim::exp2_without_denormals(\2);", source)
    source = _RCP.sub(r"\1 = 1.0f / \2;", source)
    source = _PAIRS.sub(_in_halves, source)
    source = _MATRIX_PRODUCT.sub(_matrix_product, source)
    # Dynamic shared memory becomes a pointer to the arena, on the same line.
    source, dynamic = _DYNAMIC_SHARED.subn(r"\1* const \2 = (\1*)cusim::dynamic_arena();", source)
    shared = "CUSIM_DYNAMIC_SHARED" if dynamic else "CUSIM_NO_DYNAMIC_SHARED"
    # First of all, or it is not taken from the precompiled file.
    lines = [f'#include "{HEADER}"', shared, '#line 1 "kernel.cu"', source, '#line 1 "cusim"']
    lines.append(f'CUSIM_MODULE("{key}")')
    kernels = list(_KERNEL.finditer(source))
    starts = [kernel.start() for kernel in kernels]
    for kernel, end in zip(kernels, [*starts, len(source)][1:], strict=True):
        arrays = _STATIC_SHARED.findall(source, kernel.end(), end)
        taken = " + ".join(["0", *(f"sizeof({kind}) * ({count})" for kind, count in arrays)])
        lines.append(f"CUSIM_KERNEL({kernel[2]}, {kernel[1] or 1024}, {taken})")
    return "\n".join(lines) + "\n"


def build_kernel(source: str) -> Path:
    """Compiles an emitted module, unless it is in the cache; safe in parallel processes."""
    gxx = compiler()
    assert gxx is not None
    key = module_key(source)
    final = library_path(key)
    if final.exists():
        os.utime(final)
        return final
    with tempfile.TemporaryDirectory(prefix="cusim-") as scratch_name:
        scratch = Path(scratch_name)
        (scratch / "unit.cc").write_text(_translation_unit(source, key))
        unit, compiled, linked = (str(scratch / name) for name in ("unit.cc", "unit.o", "unit.so"))
        _run([*compile_command(), "-c", unit, "-o", compiled])
        link([compiled], linked)
        publish(source.encode(), source_path(key))
        publish(Path(linked).read_bytes(), final)
    return final


def link(objects: Sequence[str], library: str, *options: str) -> None:
    """Call the linker itself: g++ takes ten times as long to call it.

    What is not in libgcc, the process has: the runtime of the simulated device, or TVM, brings
    the libraries of C++ and of mathematics.
    """
    _run(["ld", "-shared", *options, *objects, _libgcc(), "-o", library])


@functools.cache
def _libgcc() -> str:
    """The functions that g++ calls where the processor has no instruction."""
    gxx = compiler()
    assert gxx is not None
    command = [gxx, "-print-libgcc-file-name"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def publish(content: bytes, final: Path) -> None:
    """Writes a file so that other processes see all of it or nothing."""
    handle, name = tempfile.mkstemp(dir=final.parent, prefix="writing-")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(name, final)


def line_of(library: Path, code_address: int) -> int | None:
    """The source line of a place in a compiled module."""
    addr2line = shutil.which("addr2line")
    if addr2line is None:
        return None
    outcome = subprocess.run(
        [addr2line, "-i", "-e", str(library), hex(code_address)], capture_output=True, text=True
    )
    # With inlined helpers there are several lines; the one in the emitted source is meant.
    found = re.search(r"kernel\.cu:(\d+)", outcome.stdout)
    return int(found.group(1)) if found else None
