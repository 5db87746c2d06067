"""The interface of an algebra, and the classification of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from tvm.ir import Var

__all__ = ["Algebra", "NotInFamily", "classify"]

Element = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class NotInFamily:
    """Why a step is not in a family: the expression at which the proof stopped."""

    expr: Any
    reason: str


class Algebra(ABC):
    """A family of functions ``h -> step(h)`` closed under composition.

    The law that every family obeys, and that the tests check by splitting at every point, is
    ``apply(combine(f, g), h) == apply(g, apply(f, h))`` for ``f`` earlier than ``g``.
    Commutativity is never assumed. Elements are tuples of expressions (of anything with
    Python's operators, so that the laws are tested on exact rationals with the same code).
    """

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def prove(cls, step: Any, old: Var, dtype: str) -> Algebra | NotInFamily:
        """Prove that ``step`` as a function of ``old`` lies in the family."""

    @property
    @abstractmethod
    def dtypes(self) -> tuple[str, ...]:
        """Dtype of each part of an element."""

    @abstractmethod
    def lift(self) -> Element:
        """Element of the step: expressions over inputs, lanes and time."""

    @abstractmethod
    def constant(self, value: Any) -> Element:
        """Element of the step that forgets the carry and sets it to ``value``."""

    @abstractmethod
    def combine(self, earlier: Element, later: Element) -> Element:
        """Element of ``earlier`` followed by ``later``."""

    def extend(self, earlier: Element, step: Element) -> Element:
        """Element of ``earlier`` followed by one lifted step; ``combine`` unless cheaper."""
        return self.combine(earlier, step)

    @abstractmethod
    def identity(self) -> Element:
        """Element of the step that changes nothing."""

    @abstractmethod
    def apply(self, element: Element, carry: Any) -> Any:
        """Carry after the steps that ``element`` stands for."""

    @abstractmethod
    def neutral(self) -> Any:
        """A carry on which applying ``constant(value)`` gives exactly ``value``."""

    @abstractmethod
    def formulas(self) -> dict[str, str]:
        """Step, element, combine, identity and apply as text."""


def classify(step: Any, old: Var, dtype: str) -> Algebra | NotInFamily:
    """Find the first family that contains ``step``.

    Parameters
    ----------
    step : Expr
        The carry after the step.
    old : Var
        The carry before it.
    dtype : str
        Dtype in which the carry is computed.

    Returns
    -------
    Algebra or NotInFamily
        The proven family with its coefficients, or the reason of the most general family.
    """
    from tvm_scan.algebra import FAMILIES

    reason = NotInFamily(step, "no family was tried")
    for family in FAMILIES:
        found = family.prove(step, old, dtype)
        if isinstance(found, Algebra):
            return found
        reason = found
    return reason
