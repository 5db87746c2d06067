"""Kernels in Triton as machine code for ``bench.machine_code``: Triton compiles without a GPU."""

from __future__ import annotations

import importlib
import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.machine_code_kernels import KERNELS

__all__ = ["compiled_by_triton", "registers_of"]


#: Packages that import more than their kernels need: only where their files lie is known.
_BARE = (
    "fla",
    "fla.ops",
    *(f"fla.ops.{name}" for name in ("common", "hgrn", "rwkv6", "utils")),
    "mamba_ssm",
    *(f"mamba_ssm.{name}" for name in ("ops", "ops.triton", "utils")),
)


def compiled_by_triton(library: str, peers: Path | None) -> Iterator[tuple[str, bytes, int]]:
    """Compile the kernels of a library for sm_90.

    Parameters
    ----------
    library : str
        A key of ``KERNELS``.
    peers : Path or None
        Folder with the published ones' sources, under ``sources`` or ``packages``.

    Yields
    ------
    tuple
        Name, cubin and bytes of shared memory of each.

    Raises
    ------
    RuntimeError
        If Triton or a source is missing, or with what Triton says if it rejects a kernel.
    """
    try:
        triton: Any = importlib.import_module("triton")
        make: Any = importlib.import_module("triton.compiler").ASTSource
        target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    except ImportError as error:
        raise RuntimeError(f"{error}: pip install triton") from error
    for kernel in KERNELS[library]:
        with _bare_packages(peers):
            try:
                function: Any = getattr(importlib.import_module(kernel.module), kernel.name)
            except ImportError as error:
                raise RuntimeError(f"{error}: see python -m bench.gpu_fetch, and --peers") from None
        while not isinstance(function, triton.JITFunction):  # around it is what tunes it
            function = function.fn
        names: list[str] = function.arg_names
        constants = {
            (names.index(name),): getattr(triton.language, value) if name == "dot_dtype" else value
            for name, value in kernel.constants.items()
        }
        signature = {name: kernel.types.get(name, "constexpr") for name in names}
        multiples = {
            (names.index(name),): [["tt.divisibility", 16]]
            for name, kind in kernel.types.items()
            if kind != "fp32" and name != "T"
        }
        source = make(fn=function, signature=signature, constexprs=constants, attrs=multiples)
        options = {"num_warps": kernel.warps, "num_stages": kernel.stages}
        try:
            made = triton.compile(source, target=target, options=options)
        except Exception as error:
            raise RuntimeError(f"Triton rejects {kernel.name}: {str(error)[:500]}") from error
        yield kernel.name, made.asm["cubin"], made.metadata.shared


@contextmanager
def _bare_packages(peers: Path | None) -> Iterator[None]:
    """Make modules of the peers importable, without what their packages import at once."""
    before = {name: sys.modules[name] for name in _BARE if name in sys.modules}
    for name in _BARE:
        first, *rest = name.split(".")
        patterns = [f"packages/{first}/__init__.py", f"sources/*/{first}/__init__.py"]
        files = [] if peers is None else [f for p in patterns for f in sorted(peers.glob(p))]
        if files and name not in before:
            package = types.ModuleType(name)
            package.__version__ = "unknown"  # type: ignore[attr-defined]
            package.__path__ = [str(files[0].parent.joinpath(*rest))]
            sys.modules[name] = package
    paths = [str(peers / "packages")] if peers is not None else []
    sys.path += paths
    try:
        yield
    finally:
        for path in paths:
            sys.path.remove(path)
        for name in _BARE:
            if name not in before:
                sys.modules.pop(name, None)


def registers_of(disassembly: str) -> int:
    """Registers that machine code names: ptxas is not asked for a report."""
    return 1 + max(int(number) for number in re.findall(r"\bR(\d+)\b", disassembly))
