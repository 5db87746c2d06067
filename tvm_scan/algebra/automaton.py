"""Finite automata: ``h -> table[h, x]`` over few states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.algebra.base import Algebra, Element, NotInFamily, System
from tvm_scan.algebra.literal import is_float

__all__ = ["Automaton"]

_LARGEST = 16
_BITS = 4
_WORD = "int64"


@dataclass(frozen=True, eq=False)
class Automaton(Algebra):
    """``h' = table[.., h, ..]``, the extent of that dimension at most 16.

    Theorem. Functions of a finite set compose. A function of n <= 16 states is a word of 64
    bits, 4 bits for the image of each state, so that an element is one number. (W. D. Hillis and
    G. L. Steele, "Data parallel algorithms", CACM 29 (12), 1986.)

    The loop indexes the table with its carry: a carry outside of ``0 .. n - 1`` reads outside of
    the table there, and is no business of ours here.
    """

    name: ClassVar[str] = "finite automaton"
    image: Any
    state: Var
    states: int
    dtype: str

    @classmethod
    def prove(cls, system: System) -> Automaton | NotInFamily:
        """A load of an input that the carry indexes in one dimension, and only there."""
        step, old, dtype = system.only
        load = step.value if isinstance(step, tirx.Cast) else step
        if is_float(dtype) or dtype == "bool" or not isinstance(load, TensorLoad):
            return NotInFamily(step, "")
        if not tir.dtype_of(load).startswith(("int", "uint")):
            return NotInFamily(step, "")
        states = None
        for index, extent in zip(load.indices, tir.shape_of(load.source), strict=True):
            if not tir.contains_var(index, [old]):
                continue
            plain = index.value if isinstance(index, tirx.Cast) else index
            if states is not None or not (isinstance(plain, Var) and plain.same_as(old)):
                return NotInFamily(step, "a table that the carry indexes by an expression")
            states = tir.as_int(extent)
            if states is None or states > _LARGEST:
                return NotInFamily(step, f"a table of more than {_LARGEST} states")
        if states is None:
            return NotInFamily(step, "")
        return cls(step, old, states, dtype)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """One word."""
        return (_WORD,)

    @property
    def sample_range(self) -> tuple[int, int]:
        """The states."""
        return (0, self.states)

    def _word(self, images: list[Any]) -> Any:
        total: Any = None
        for state, image in enumerate(images):
            part = tirx.bitwise_and(tirx.Cast(_WORD, image), tirx.const(_LARGEST - 1, _WORD))
            shifted = tirx.op.shift_left(part, tirx.const(_BITS * state, _WORD))
            total = shifted if total is None else tirx.bitwise_or(total, shifted)
        return total

    @staticmethod
    def _of(word: Any, state: Any) -> Any:
        """Image of ``state``."""
        by = tirx.Cast(_WORD, state) * tirx.const(_BITS, _WORD)
        return tirx.bitwise_and(tirx.op.shift_right(word, by), tirx.const(_LARGEST - 1, _WORD))

    def lift(self) -> Element:
        """The images of all states."""
        return (
            self._word(
                [
                    tir.substitute(
                        self.image, tir.VarMap([(self.state, tirx.const(s, self.dtype))])
                    )
                    for s in range(self.states)
                ]
            ),
        )

    def combine(self, earlier: Element, later: Element) -> Element:
        """``g(f(s))`` for every state."""
        images = [
            self._of(later[0], self._of(earlier[0], tirx.const(s, _WORD)))
            for s in range(self.states)
        ]
        return (self._word(images),)

    def identity(self) -> Element:
        """Every state to itself."""
        word = sum(s << (_BITS * s) for s in range(self.states))
        word -= 1 << 64 if word >> 63 else 0
        return (tirx.const(word, _WORD),)

    def apply(self, element: Element, carries: Element) -> Element:
        """The image of the carry."""
        inside = tirx.bitwise_and(tirx.Cast(_WORD, carries[0]), tirx.const(_LARGEST - 1, _WORD))
        return (tirx.Cast(self.dtype, self._of(element[0], inside)),)

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        return {
            "step": "h' = table[h, x]",
            "element": f"images of {self.states} states, {_BITS} bits each",
            "combine": "f then g = s -> g(f(s))",
            "identity": "s -> s",
            "apply": "f(h)",
            "table": str(self.image),
        }
