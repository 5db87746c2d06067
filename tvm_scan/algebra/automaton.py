"""Finite automata: ``h -> table[h, x]`` over few states, the table flat or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.algebra.affine import coefficients
from tvm_scan.algebra.base import KEEP, Algebra, Element, NotInFamily, System
from tvm_scan.algebra.literal import is_float, is_integer
from tvm_scan.text import as_text

_LARGEST = 16
_BITS = 4
_WORD = "int64"


@dataclass(frozen=True, eq=False)
class Automaton(Algebra):
    """``h' = table[.., h, ..]``, or ``table[h * c + x]``, with at most 16 states.

    Theorem. Functions of a finite set compose. A function of n <= 16 states is a word of 64
    bits, 4 bits for the image of each state, so that an element is one number. (W. D. Hillis and
    G. L. Steele, "Data parallel algorithms", CACM 29 (12), 1986.)

    The loop indexes the table with its carry: a carry outside of ``0 .. n - 1`` reads outside of
    the table there, and is no business of ours here. In a flat table that holds of rows: with
    ``0 <= x < c`` the index ``h * c + x`` lies inside of the table's ``N`` entries only for
    ``0 <= h < N / c``. Where ``x`` is data whose range is not provable, the statement has an
    assumption (``assumed``): that the table's entries and the first carry are states, numbers
    below ``N / c``. Then every carry is one, whatever ``x`` is.
    """

    name: ClassVar[str] = "finite automaton"
    image: Any
    state: Var
    states: int
    dtype: str
    #: Dimension of the table, multiplier and rest of the index, extent, for a flat table.
    flat: tuple[int, int, Any, int] | None = None
    assumed: bool = False

    @classmethod
    def prove(cls, system: System) -> Automaton | NotInFamily:
        """A load of an input that the carry indexes in one dimension, and only there."""
        step, old, dtype = system.only
        load = step.value if isinstance(step, tirx.Cast) else step
        if is_float(dtype) or dtype == "bool" or not isinstance(load, TensorLoad):
            return NotInFamily(step, "")
        if not is_integer(tir.dtype_of(load)):
            return NotInFamily(step, "")
        tables = [
            (dim, index, tir.as_int(extent))
            for dim, (index, extent) in enumerate(
                zip(load.indices, tir.shape_of(load.source), strict=True)
            )
            if tir.contains_var(index, [old])
        ]
        if not tables:
            return NotInFamily(step, "")
        dim, index, extent = tables[0]
        if len(tables) > 1:
            return NotInFamily(step, "a table that the carry indexes in two dimensions", _ROWS)
        plain = index.value if isinstance(index, tirx.Cast) else index
        if isinstance(plain, Var) and plain.same_as(old):
            if extent is None or extent > _LARGEST:
                return NotInFamily(step, f"a table of more than {_LARGEST} states", KEEP)
            return cls(step, old, extent, dtype)
        row = _row_of(index, old)
        if row is None or extent is None:
            return NotInFamily(step, "a table that the carry indexes by an expression", _ROWS)
        width, rest = row
        states = -(-extent // width)
        if states > _LARGEST:
            return NotInFamily(step, f"a table of more than {_LARGEST} rows", _ROWS)
        bound = Analyzer().const_int_bound(rest)
        least, most = int(bound.min_value), int(bound.max_value)
        if most < 0 or least >= width:
            return NotInFamily(step, "a table that the carry indexes by an expression", _ROWS)
        known = least >= 0 and most < width
        return cls(step, old, states, dtype, (dim, width, rest, extent), not known)

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

    def _image(self, state: int) -> Any:
        """The next state of one state; 0 where no loop could have read the table."""
        value = tirx.const(state, self.dtype)
        image = tir.substitute(self.image, tir.VarMap([(self.state, value)]))
        if self.flat is None:
            return image
        _, width, rest, extent = self.flat
        at = rest + tirx.const(state * width, tir.dtype_of(rest))
        inside = tirx.And(at >= tir.zero_like(at), at < extent)
        return tirx.op.if_then_else(inside, image, tir.zero_like(image))

    def lift(self) -> Element:
        """The images of all states."""
        return (self._word([self._image(s) for s in range(self.states)]),)

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
            "table": as_text(self.image),
            **(
                {"assumed": f"entries and first state in 0 .. {self.states - 1}"}
                if self.assumed
                else {}
            ),
        }


_ROWS = "give the table a dimension of its own for the state: table[h, x]"


def _row_of(index: Any, old: Var) -> tuple[int, Any] | None:
    """``(c, x)`` of an index ``h * c + x`` with a constant ``c`` of one or more."""
    state = Var("state", tir.prim_type(tir.dtype_of(index)))

    def named(cast: tirx.Cast) -> Any:
        return state if isinstance(cast.value, Var) and cast.value.same_as(old) else cast

    plain = tvm_ffi.structural_map(index, [(tirx.Cast, named)])
    carry = old if tir.contains_var(plain, [old]) else state
    if carry is old and tir.contains_var(plain, [state]):
        return None
    parts = coefficients(plain, carry)
    if isinstance(parts, NotInFamily):
        return None
    width = 1 if parts[0] is None else tir.as_int(tir.simplify(parts[0]))
    if width is None or width < 1:
        return None
    return width, tir.zero_like(index) if parts[1] is None else parts[1]
