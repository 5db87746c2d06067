"""Published kernels as machine code for ``bench.machine_code``: compiled where a user has them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.gpu_native import OPTIONS, sources
from bench.machine_code_kernels import KERNELS
from bench.machine_code_triton import compiled_by_triton, registers_of
from tests.support.cusim.nvcc import Resources, nvdisasm_path, parse_resources

__all__ = ["LIBRARIES", "Code", "code_of", "compiled"]

_HERE = Path(__file__).parent
#: Disassembly, and what ptxas says of each kernel.
Code = tuple[str, dict[str, Resources]]
#: Libraries in CUDA, whose sources ``sources`` finds, and in Triton.
LIBRARIES = ("peers", "block", "mamba", "accelerated", *KERNELS)


def compiled(source: Path, folder: Path, options: list[str], arch: str = "sm_90") -> Code:
    """The machine code of a file for an architecture.

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
    command = [
        nvcc,
        f"-arch={arch}",
        "-std=c++17",
        "-O3",
        "-w",
        *options,
        "-Xptxas",
        "-v",
        "-cubin",
    ]
    done = subprocess.run([*command, "-o", str(cubin), str(source)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"nvcc rejects {source.name}: {done.stderr[:500]}")
    return _disassembled(cubin), parse_resources(done.stderr + done.stdout)


def _disassembled(cubin: Path) -> str:
    command = [str(nvdisasm_path()), "-hex", str(cubin)]
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
    if library in KERNELS:
        return _triton(library, folder, peers)
    if library == "block":
        return compiled(_HERE / "gpu_block.cu", folder, [])
    includes = sources(peers)
    if library not in includes:
        raise RuntimeError(f"no source of {library}: see python -m bench.gpu_fetch, and --peers")
    include = includes[library]
    options = [*OPTIONS[library].split(), f"-I{_HERE / 'gpu_headers'}"]
    options += [f"-I{include}"] if include else []
    return compiled(_HERE / f"gpu_{library}.cu", folder, options)


def _triton(library: str, folder: Path, peers: Path | None) -> Code:
    texts, resources = [], {}
    for name, cubin, shared in compiled_by_triton(library, peers):
        path = folder / f"{name}.cubin"
        path.write_bytes(cubin)
        text = _disassembled(path)
        texts.append(text)
        resources[name] = Resources(registers_of(text), 0, 0, shared, 0, 1)
    return "\n".join(texts), resources
