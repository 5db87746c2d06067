"""Published kernels as machine code for ``bench.machine_code``: compiled where a user has them."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gpu_native import OPTIONS, sources
from tests.support.cusim.nvcc import Resources, nvdisasm_path, parse_resources

__all__ = ["LIBRARIES", "Code", "code_of", "compiled"]

_HERE = Path(__file__).parent
#: Disassembly, and what ptxas says of each kernel.
Code = tuple[str, dict[str, Resources]]
#: Libraries in CUDA; those whose source ``bench.gpu_fetch`` brings are found by ``sources``.
LIBRARIES = ("peers", "block", "mamba", "accelerated", "triton")


def compiled(source: Path, folder: Path, options: list[str]) -> Code:
    """The machine code of a file for sm_90.

    Raises
    ------
    RuntimeError
        If a tool is missing, or with what nvcc says if it rejects the source.
    """
    nvcc, disassembler = shutil.which("nvcc"), nvdisasm_path()
    if nvcc is None or disassembler is None:
        missing = "nvcc" if nvcc is None else "nvdisasm"
        raise RuntimeError(f"no {missing} on the PATH (pip: nvidia-cuda-nvdisasm)")
    cubin = folder / f"{source.stem}.cubin"
    command = [nvcc, "-arch=sm_90", "-std=c++17", "-O3", "-w", *options, "-Xptxas", "-v", "-cubin"]
    done = subprocess.run([*command, "-o", str(cubin), str(source)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"nvcc rejects {source.name}: {done.stderr[:500]}")
    return _disassembled(cubin), parse_resources(done.stderr + done.stdout)


def _disassembled(cubin: Path) -> str:
    command = [str(nvdisasm_path()), str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def code_of(library: str, folder: Path, peers: Path | None) -> Code:
    """The machine code of a library of peers.

    Parameters
    ----------
    library : str
        One of ``LIBRARIES``.
    folder : Path
        For what is compiled.
    peers : Path or None
        What ``bench.gpu_fetch`` brought.

    Raises
    ------
    RuntimeError
        With the reason why there is none, and how to get it.
    """
    if library == "triton":
        return _triton(folder)
    if library == "block":
        return compiled(_HERE / "gpu_block.cu", folder, [])
    includes = sources(peers)
    if library not in includes:
        raise RuntimeError(f"no source of {library}: see python -m bench.gpu_fetch, and --peers")
    include = includes[library]
    options = [*OPTIONS[library].split(), f"-I{_HERE / 'gpu_headers'}"]
    options += [f"-I{include}"] if include else []
    return compiled(_HERE / f"gpu_{library}.cu", folder, options)


def _triton(folder: Path) -> Code:
    """The affine scan of ``bench.gpu_triton``, for tiles of 2048 steps and 4 warps."""
    try:
        triton: Any = importlib.import_module("triton")
        make: Callable[..., Any] = importlib.import_module("triton.compiler").ASTSource
        target = importlib.import_module("triton.backends.compiler").GPUTarget
        kernel = importlib.import_module("bench.gpu_triton")._kernel
    except ImportError as error:
        raise RuntimeError(f"{error}: pip install triton") from error
    types = {"a_ptr": "*fp32", "x_ptr": "*fp32", "h_ptr": "*fp32", "length": "i32"}
    # Triton assumes of arguments that are multiples of 16 at the call that they are.
    divisible = {(i,): [["tt.divisibility", 16]] for i in range(len(types))}
    signature = {**types, "BLOCK": "constexpr"}
    source = make(fn=kernel, signature=signature, constexprs={(4,): 2048}, attrs=divisible)
    made = triton.compile(source, target=target("cuda", 90, 32), options={"num_warps": 4})
    cubin = folder / "triton.cubin"
    cubin.write_bytes(made.asm["cubin"])
    text = _disassembled(cubin)
    # ptxas was not asked for a report: registers are those that the code names.
    registers = 1 + max(int(number) for number in re.findall(r"\bR(\d+)\b", text))
    return text, {"_kernel": Resources(registers, 0, 0, made.metadata.shared, 0, 1)}
