"""CUDA kernels in an artifact as machine code, where TVM alone would leave their text.

Without a driver TVM keeps the CUDA text of a module, which is compiled where it is loaded; that
needs a compiler there. What lies in a library is the serialised form of its modules, one after
another, each a name and bytes; those of a CUDA module are a format, a table of functions, and
code. Here the format "cuda" with text becomes "cubin" with what nvcc or NVRTC makes of it, so
that the runtime hands it to the driver as it is.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm.runtime import _ffi_api
from tvm.support import nvcc
from tvm.target import Target

from tvm_scan.cuda_math import exact_math, has_nvrtc
from tvm_scan.errors import ScanError

_SYMBOL = "__tvm_ffi__library_bin"
_TEXT, _BINARY = b"cuda", b"cubin"


def kernel_format(built: Any) -> str:
    """The form in which a built module's kernels are exported: ``cubin``, ``cuda`` (text), or none.

    Parameters
    ----------
    built : tvm.runtime.Module
        What the compiler returned.

    Returns
    -------
    str
        Empty for a module without kernels.
    """
    if not cuda_modules(built):
        return ""
    return "cuda" if _texts(built) and not _compiler() else "cubin"


def compiled_kernels(target: Target) -> Callable[..., str]:
    """Return the ``fpack_imports`` of ``export_library`` that compiles CUDA text for ``target``.

    Parameters
    ----------
    target : tvm.target.Target
        Of kind cuda, with the architecture in ``arch``.

    Returns
    -------
    callable
        Writes the object file with the modules that the library contains.
    """

    def pack(mod: Any, is_system_lib: bool, prefix: str, workspace: str) -> str:
        host = next(m for m in mod._collect_dso_modules() if m.kind == "llvm")
        triple = host.get_function("_get_target_string")()
        packed = _ffi_api.ModulePackImportsToLLVM(mod, is_system_lib, triple, prefix)
        path = Path(workspace) / f"{prefix}devc.ll"
        packed.write_to_file(str(path))
        text = path.read_text(encoding="latin-1")
        match = re.search(rf'(@\S*{_SYMBOL}\S* = [^\[]*)\[(\d+) x i8\] c"([^"]*)"', text)
        if match is None:
            raise ScanError(
                f"export: expected TVM's library data as {_SYMBOL}, found none; this version of "
                "TVM packs modules in another way"
            )
        blob = _unescaped(match[3])
        for source in _texts(mod):
            blob = _replaced(blob, source.encode(), _cubin(source, target))
        constant = f'{match[1]}[{len(blob)} x i8] c"{_escaped(blob)}"'
        path.write_text(text[: match.start()] + constant + text[match.end() :], encoding="latin-1")
        out = str(path.with_suffix(".o"))
        tvm.runtime.load_module(str(path)).write_to_file(out)
        return out

    return pack


def _compiler() -> str:
    """Name of what makes machine code of CUDA text here: nvcc, the library NVRTC, or nothing."""
    if shutil.which("nvcc") is not None:
        return "nvcc"
    return "nvrtc" if has_nvrtc() else ""


def _cubin(source: str, target: Target) -> bytes:
    arch = str(target.attrs.get("arch", "sm_50"))
    with exact_math(), target:
        binary = nvcc.compile_cuda(source, target_format="cubin", arch=arch, compiler=_compiler())
    return bytes(binary)


def cuda_modules(module: Any) -> list[Any]:
    """Modules of CUDA kernels in a built module, at whatever depth."""
    modules: list[Any] = module._collect_from_import_tree(lambda inner: inner.kind == "cuda")
    return modules


def _texts(module: Any) -> list[str]:
    """CUDA text of every module that has not been compiled yet."""
    modules = [inner for inner in cuda_modules(module) if not inner.is_runnable()]
    return list(dict.fromkeys(str(inner.inspect_source()) for inner in modules))


def _replaced(blob: bytes, source: bytes, code: bytes) -> bytes:
    """``blob`` with the module of that text compiled.

    The blob is its own length, then for every module its kind and, but for the library itself,
    length and bytes; a CUDA module's bytes are format, table, length of the code, code.
    """
    body = blob.index(_sized(source))
    # The last two occurrences before the code: the kind of the module, and its format.
    form = blob.rindex(_sized(_TEXT), 0, body)
    kind = blob.rindex(_sized(_TEXT), 0, form)
    length_at = kind + len(_sized(_TEXT))
    (length,) = struct.unpack_from("<Q", blob, length_at)
    end = body + len(_sized(source))
    if form != length_at + 8 or end != form + length:
        raise ScanError(
            "export: expected a CUDA module as kind, length, format, table and code, found another "
            "order; this version of TVM packs modules in another way"
        )
    table = blob[form + len(_sized(_TEXT)) : body]
    module = _sized(_BINARY) + table + _sized(code)
    content = blob[:length_at] + _sized(module) + blob[end:]
    return struct.pack("<Q", len(content) - 8) + content[8:]


def _sized(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def _unescaped(text: str) -> bytes:
    """Bytes of a constant in LLVM's text."""
    escaped = text.replace("\\\\", "\\5C")
    codes = re.compile(r"\\([0-9A-Fa-f]{2})")
    return codes.sub(lambda code: chr(int(code[1], 16)), escaped).encode("latin-1")


def _escaped(content: bytes) -> str:
    """A constant in LLVM's text."""
    return "".join(f"\\{byte:02X}" for byte in content)
