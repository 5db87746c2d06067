"""Indices that a thread makes of its number once, and holds in registers.

nvcc makes anew, wherever it is used, what takes it an instruction or two, as a part of the number
of a thread does, even in a loop that is passed a thousand times. It cannot do so with what comes
out of assembler text, be it empty.
"""

from __future__ import annotations

from typing import Any

from tvm.ir import Var
from tvm.script import tirx as T

from tvm_scan import tir
from tvm_scan.schedules.common.ir import local
from tvm_scan.schedules.gpu.thread.registers import cell_of, set_cell

_HELD = "scan_held"
_SOURCE = f"""
__forceinline__ __device__ int {_HELD}(int x) {{
  asm volatile("" : "+r"(x));
  return x;
}}
"""


class HeldIndices:
    """Registers for such indices, in a kernel of CUDA; without effect where ``holds`` is false."""

    def __init__(self, *, holds: bool) -> None:
        self._holds = holds
        self._held = tir.ExprMap()

    def __call__(self, value: Any) -> Any:
        """Return a value of int32 as it is held: of what no loop of the kernel changes."""
        if not self._holds or tir.as_int(value) is not None:
            return value
        if value not in self._held:
            self._held[value] = local(f"index{len(self._held)}", [1], "int32")
        return cell_of(self._held[value])

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        return [register for _, register in self._held.items()]

    def begin(self) -> list[Any]:
        """Make them, before all that uses them."""
        return [
            set_cell(
                register, T.cuda.func_call(_HELD, value, source_code=_SOURCE, return_type="int32")
            )
            for value, register in self._held.items()
        ]
