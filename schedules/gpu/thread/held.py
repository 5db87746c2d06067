"""Indices that a thread makes of its number once, and holds in registers.

nvcc makes anew, wherever it is used, what takes it an instruction or two, as a part of the number
of a thread does, even in a loop that is passed a thousand times. It cannot do so with what comes
out of assembler text, be it empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.script import tirx as T

from tvm_scan import tir
from tvm_scan.schedules.common.ir import as_dtype, int_const, local
from tvm_scan.schedules.gpu.thread.registers import cell_of, set_cell

_HELD, _INDEX = "scan_held", "scan_index"
_SOURCES = {
    _HELD: f"""
__forceinline__ __device__ int {_HELD}(int x) {{
  asm volatile("" : "+r"(x));
  return x;
}}
""",
    _INDEX: f"""
__forceinline__ __device__ int {_INDEX}(int x) {{
  return x;
}}
""",
}


class HeldIndices:
    """Registers for such indices, in a kernel of CUDA.

    Parameters
    ----------
    slot : Var, optional
        Number of the thread in the grid: terms of an index that it alone decides are held. None
        where nothing is.
    """

    def __init__(self, slot: Var | None) -> None:
        self._slot = slot
        self._held = tir.ExprMap()

    @property
    def holds(self) -> bool:
        """Return whether anything may be held."""
        return self._slot is not None

    def __call__(self, index: Any, unit: int = 1) -> Any:
        """``index`` with its terms of the thread from a register.

        Parameters
        ----------
        index : Expr
            Indices that differ in other terms have the same register.
        unit : int
            Elements of a vector that begins there: what is held is a number of vectors, so that TVM
            sees that they are aligned. If they are not, nothing is held.
        """
        number = self._number(index, unit)
        return index if number is None else number * unit

    def element(self, buffer: Var, indices: list[Any]) -> list[Any]:
        """Indices of an element of an array in memory, or of a vector that is stored.

        All of them in the last index, where the number of the element is an int32. TVM does not
        know how large it is, and would compute with 64 bits but for the function around it.
        """
        *outer, last = indices
        first = last.base if isinstance(last, tirx.Ramp) else last
        extents = [tir.as_int(extent) for extent in tir.shape_of(buffer)]
        known = [extent for extent in extents if extent is not None]
        if len(known) < len(extents) or prod(known) >= 1 << 31:
            return indices
        at = tir.zero_like(first)
        for extent, index in zip(known, [*outer, first], strict=True):
            at = at * extent + index
        number = self(at)
        if number is at:
            return indices
        number = as_dtype(_called(_INDEX, number), tir.dtype_of(at))
        if isinstance(last, tirx.Ramp):
            number = tirx.Ramp(number, last.stride, last.lanes)
        return [*map(tir.zero_like, outer), number]

    def _number(self, index: Any, unit: int) -> Any:
        """Number of the vector at an index, its terms of the thread held; None where none are."""
        if self._slot is None:
            return None
        terms = _terms(tir.simplify(index))
        parts = [
            _sum(index, (term for term in terms if self._is_thread(term) == of_thread))
            for of_thread in (True, False)
        ]
        if tir.as_int(parts[0]) is not None:
            return None
        if any(tir.as_int(tir.simplify(part % unit)) != 0 for part in parts):
            return None
        thread, rest = (as_dtype(tir.simplify(part // unit), "int32") for part in parts)
        if thread not in self._held:
            self._held[thread] = local(f"index{len(self._held)}", [1], "int32")
        return rest + cell_of(self._held[thread])

    def _is_thread(self, term: Any) -> bool:
        names = tir.variables(term).keys()
        return bool(names) and all(name.same_as(self._slot) for name in names)

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        return [register for _, register in self._held.items()]

    def begin(self) -> list[Any]:
        """Make them, before all that uses them."""
        return [set_cell(register, _called(_HELD, v)) for v, register in self._held.items()]


#: Where indices are left as they are.
HOLDS_NOTHING = HeldIndices(None)


def _called(name: str, value: Any) -> Any:
    return T.cuda.func_call(name, value, source_code=_SOURCES[name], return_type="int32")


def _terms(index: Any) -> list[Any]:
    """Terms of a sum."""
    if isinstance(index, tirx.Add):
        return [*_terms(index.a), *_terms(index.b)]
    if isinstance(index, tirx.Sub):
        return [*_terms(index.a), *(term * int_const(-1, term) for term in _terms(index.b))]
    return [index]


def _sum(like: Any, terms: Iterable[Any]) -> Any:
    return tir.simplify(sum(terms, tir.zero_like(like)))
