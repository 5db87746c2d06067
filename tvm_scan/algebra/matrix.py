"""Affine steps of a few carries that feed one another: ``h -> A h + b``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tvm_scan import tir
from tvm_scan.algebra.affine import coefficients
from tvm_scan.algebra.base import Algebra, Element, NotInFamily, System
from tvm_scan.algebra.literal import (
    is_constant,
    minus,
    one,
    plus,
    times,
    zero,
    zero_keeping_product,
)
from tvm_scan.text import as_text

_LARGEST = 4


@dataclass(frozen=True, eq=False)
class Matrix(Algebra):
    """``h' = A h + b`` with ``A`` of ``k x k``, ``2 <= k <= 4``.

    Theorem. Affine maps of a vector space (of a module over the integers modulo ``2^n``) are
    closed under composition: ``A2 (A1 h + b1) + b2 = (A2 A1) h + (A2 b1 + b2)``. A recurrence of
    order k is one over ``(h[t-1], .., h[t-k])`` with the companion matrix.

    An infinite carry meets the zeros of a product of matrices as ``inf * 0``: once a carry is
    infinite, its group may become NaN where the loop stays infinite.
    """

    name: ClassVar[str] = "matrix affine"
    single: ClassVar[bool] = False
    gates: tuple[tuple[Any, ...], ...]
    offsets: tuple[Any, ...]
    dtype: str

    @classmethod
    def prove(cls, system: System) -> Matrix | NotInFamily:
        """Extract the coefficients of every carry in every step, one carry after another."""
        size, dtype = len(system.olds), system.dtypes[0]
        if size < 2:
            return NotInFamily(system.steps[0], "")
        if size > _LARGEST:
            return NotInFamily(
                system.steps[0], f"{size} carries in a circle, more than {_LARGEST},"
            )
        if len(set(system.dtypes)) > 1 or dtype == "bool":
            return NotInFamily(system.steps[0], "carries of several dtypes, or of bool,")
        rows: list[tuple[Any, ...]] = []
        offsets: list[Any] = []
        for step in system.steps:
            row: list[Any] = []
            rest: Any = step
            for old in system.olds:
                if rest is None or not tir.contains_var(rest, [old]):
                    row.append(zero(dtype))
                    continue
                parts = coefficients(rest, old)
                if isinstance(parts, NotInFamily):
                    return parts
                gate, rest = parts
                if gate is not None and tir.contains_var(gate, system.olds):
                    return NotInFamily(step, "a product of two carries")
                row.append(one(dtype) if gate is None else gate)
            if rest is not None and tir.contains_var(rest, system.olds):
                return NotInFamily(step, "a product of two carries")
            rows.append(tuple(row))
            offsets.append(zero(dtype) if rest is None else rest)
        return cls(tuple(rows), tuple(offsets), dtype)

    @property
    def size(self) -> int:
        """Number of carries."""
        return len(self.offsets)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The matrix by rows, then the offsets."""
        return (self.dtype,) * (self.size * (self.size + 1))

    def _split(self, element: Element) -> tuple[list[Element], Element]:
        k = self.size
        return [element[i * k : (i + 1) * k] for i in range(k)], element[k * k :]

    def lift(self) -> Element:
        """``(A, b)``."""
        return (*(gate for row in self.gates for gate in row), *self.offsets)

    def combine(self, earlier: Element, later: Element) -> Element:
        """``(A2 A1, A2 b1 + b2)``."""
        return self._compose(
            earlier, later, lambda gate, value: zero_keeping_product(gate, value, self.dtype)
        )

    def extend(self, earlier: Element, step: Element) -> Element:
        """Combine; products with constant zeros and ones of a step are left out."""
        return self._compose(earlier, step, times)

    def _compose(
        self, earlier: Element, later: Element, product: Callable[[Any, Any], Any]
    ) -> Element:
        (first, offsets), (second, added) = self._split(earlier), self._split(later)
        columns = list(zip(*first, strict=True))
        gates = [self._sum(row, column, times) for row in second for column in columns]
        moved = [
            self._add(self._sum(row, offsets, product), b)
            for row, b in zip(second, added, strict=True)
        ]
        return (*gates, *moved)

    def _sum(self, row: Element, column: Element, product: Callable[[Any, Any], Any]) -> Any:
        total: Any = None
        for gate, value in zip(row, column, strict=True):
            if is_constant(gate, 0):
                continue
            term = value if is_constant(gate, 1) else product(gate, value)
            total = term if total is None else plus(total, term)
        return zero(self.dtype) if total is None else total

    @staticmethod
    def _add(total: Any, offset: Any) -> Any:
        return total if is_constant(offset, 0) else plus(total, offset)

    def identity(self) -> Element:
        """The unit matrix and zero."""
        k = self.size
        gates = [
            one(self.dtype) if i == j else zero(self.dtype) for i in range(k) for j in range(k)
        ]
        return (*gates, *(zero(self.dtype),) * k)

    def apply(self, element: Element, carries: Element) -> Element:
        """``A h + b``."""
        rows, offsets = self._split(element)

        def product(gate: Any, value: Any) -> Any:
            return zero_keeping_product(gate, value, self.dtype)

        return tuple(
            self._sum(row, carries, product) + b for row, b in zip(rows, offsets, strict=True)
        )

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        return {
            "step": "h' = A h + b",
            "element": f"(A, b), A of {self.size} x {self.size}",
            "combine": "(A1, b1) then (A2, b2) = (A2 A1, A2 b1 + b2)",
            "identity": "(1, 0)",
            "apply": "A h + b",
            "A": str([[as_text(gate) for gate in row] for row in self.gates]),
            "b": str([as_text(offset) for offset in self.offsets]),
        }


@dataclass(frozen=True, eq=False)
class Complex(Algebra):
    """``h' = a h + b`` over the complex numbers, written as real and imaginary part.

    Theorem. The matrices ``[[p, -q], [q, p]]`` are the complex numbers ``p + q i``: closed under
    product, so that elements need four numbers instead of six.
    """

    name: ClassVar[str] = "complex affine"
    single: ClassVar[bool] = False
    real: Any
    imaginary: Any
    offsets: tuple[Any, Any]
    dtype: str

    @classmethod
    def prove(cls, system: System) -> Complex | NotInFamily:
        """A 2 x 2 matrix whose entries are equal, or equal up to the sign, as expressions."""
        if len(system.olds) != 2:
            return NotInFamily(system.steps[0], "")
        matrix = Matrix.prove(system)
        if isinstance(matrix, NotInFamily):
            return matrix
        (p, q), (r, s) = matrix.gates
        for upper, lower in ((q, r), (r, q)):
            opposite = tir.structurally_equal(upper, minus(zero(matrix.dtype), lower))
            if opposite and tir.structurally_equal(p, s):
                return cls(p, r, (matrix.offsets[0], matrix.offsets[1]), matrix.dtype)
        return NotInFamily(system.steps[0], "")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Real and imaginary part of the gate, then of the offset."""
        return (self.dtype,) * 4

    def lift(self) -> Element:
        """``(re a, im a, re b, im b)``."""
        return (self.real, self.imaginary, *self.offsets)

    def _times(self, a: Element, b: Element) -> Element:
        return (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0])

    def combine(self, earlier: Element, later: Element) -> Element:
        """``(a2 a1, a2 b1 + b2)``."""
        gate = later[:2]
        moved = self._times(gate, earlier[2:])
        return (*self._times(gate, earlier[:2]), moved[0] + later[2], moved[1] + later[3])

    def identity(self) -> Element:
        """``(1, 0)``."""
        nothing = zero(self.dtype)
        return (one(self.dtype), nothing, nothing, nothing)

    def apply(self, element: Element, carries: Element) -> Element:
        """``a h + b``."""
        moved = self._times(element[:2], carries)
        return (moved[0] + element[2], moved[1] + element[3])

    def formulas(self) -> dict[str, str]:
        """Text for ``explain``."""
        return {
            "step": "h' = a h + b over the complex numbers",
            "element": "(re a, im a, re b, im b)",
            "combine": "(a1, b1) then (a2, b2) = (a2 a1, a2 b1 + b2)",
            "identity": "(1, 0)",
            "apply": "a h + b",
            "a": f"{self.real} + i {self.imaginary}",
            "b": f"{self.offsets[0]} + i {self.offsets[1]}",
        }
