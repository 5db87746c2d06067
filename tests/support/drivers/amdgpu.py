"""Code objects of AMD's GPUs, made by the LLVM inside of TVM without any of ROCm's tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import tvm

__all__ = ["Resources", "faults", "resources_of", "without_tools"]

#: What a lane and a wave of gfx90a have.
_VECTOR_REGISTERS, _SCALAR_REGISTERS = 512, 106


@dataclass(frozen=True)
class Resources:
    """What the notes of a code object say of a kernel.

    Attributes
    ----------
    vector_registers, scalar_registers : int
        Of a thread, and of a wave.
    scratch, shared : int
        Bytes of private memory of a thread, and of a block's shared memory.
    spilled : int
        Registers that were kept in memory.
    """

    vector_registers: int
    scalar_registers: int
    scratch: int
    shared: int
    spilled: int


def resources_of(assembly: str) -> Resources:
    """Read the metadata at the end of a kernel's assembly."""

    def number(name: str) -> int:
        found = re.search(rf"^\s*\.{name}:\s*(\d+)", assembly, re.MULTILINE)
        assert found, f"expected .{name} in the notes of a code object, found none"
        return int(found[1])

    return Resources(
        number("vgpr_count"),
        number("sgpr_count"),
        number("private_segment_fixed_size"),
        number("group_segment_fixed_size"),
        number("vgpr_spill_count") + number("sgpr_spill_count"),
    )


def faults(assembly: str, shared: int) -> list[str]:
    """Say what is wrong with a kernel's code.

    Parameters
    ----------
    assembly : str
        With its notes.
    shared : int
        Bytes of shared memory that its plan says.
    """
    taken, found = resources_of(assembly), []
    if taken.scratch or taken.spilled:
        found.append(f"expected no scratch memory, found {taken.scratch} bytes")
    if taken.vector_registers > _VECTOR_REGISTERS or taken.scalar_registers > _SCALAR_REGISTERS:
        found.append(f"expected registers that a wave has, found {taken}")
    # Kernels of one plan need not all have its tiles.
    if taken.shared > shared:
        found.append(f"expected {shared} bytes of shared memory, found {taken.shared}")
    # That would be ROCm's library of functions, which nobody links here.
    if "s_swappc" in assembly:
        found.append("expected no call of a function, found one")
    return found


@contextmanager
def without_tools() -> Iterator[None]:
    """Let TVM emit code objects without ROCm's library of functions, and without its linker."""
    names = ("tvm_callback_rocm_bitcode_path", "tvm_callback_rocm_link")
    before = [tvm.get_global_func(name) for name in names]
    tvm.register_global_func(names[0], lambda *_: [], override=True)
    tvm.register_global_func(names[1], lambda code: code, override=True)
    try:
        yield
    finally:
        for name, function in zip(names, before, strict=True):
            tvm.register_global_func(name, function, override=True)
