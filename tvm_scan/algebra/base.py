"""The interface of an algebra, and the classification of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tvm.ir import Var

from tvm_scan.algebra.narrow import in_own_dtype

#: The fix where no rewrite is known.
KEEP = "no rewrite is known that is in a family; keep the loop, whose lanes run in parallel"

Element = tuple[Any, ...]
Combine = Callable[[Element, Element], Element]
Condition = Callable[[Element], Any]


@dataclass(frozen=True, eq=False)
class Plain:
    """Formulas without care for what hardly ever happens.

    Attributes
    ----------
    combine, apply : callable
        In place of the algebra's own.
    identity : tuple of Expr
        Element that changes nothing under ``combine`` and ``apply``.
    exact : callable or None
        Condition on the element of many steps under which the formulas were exact for all of
        these steps, and for every first part of them; None where they always are.
    each : callable or None
        Condition on the element of a step which, where it holds for every one of them, says the
        same as ``exact`` of all; None where no such condition is known.
    intact : callable or None
        Condition on what ``combine`` or ``apply`` made, an element or carries, under which they
        were exact there and in all that went into it; None where that cannot be seen.
    """

    combine: Combine
    apply: Combine
    identity: Element
    exact: Condition | None = None
    each: Condition | None = None
    intact: Condition | None = None


@dataclass(frozen=True, eq=False)
class NotInFamily:
    """The reason why a step is not in a family, and the expression at which the proof stopped.

    A family that is far from the step gives no reason (an empty one). ``fix`` is a rewrite that
    is known to be taken, where there is one for this step.
    """

    expr: Any
    reason: str
    fix: str = ""


@dataclass(frozen=True, eq=False)
class System:
    """The joint step of one or more carries, as a function of those carries.

    Attributes
    ----------
    steps : tuple of Expr
        The carries after the step. Whatever is not one of ``olds`` is an input.
    olds : tuple of Var
        The carries before it.
    dtypes : tuple of str
        Dtypes in which they are computed.
    declared : tuple of str
        Names of the inputs of an operator that its author declared associative; empty if none.
    starts : tuple of (tuple of Expr, or None)
        What each carry may be before a step other than the result of one: what it starts from, and
        what resets set it to. None, and no entry at all, for anything.
    """

    steps: tuple[Any, ...]
    olds: tuple[Var, ...]
    dtypes: tuple[str, ...]
    declared: tuple[str, ...] = ()
    starts: tuple[tuple[Any, ...] | None, ...] = ()

    @property
    def start(self) -> tuple[Any, ...] | None:
        """The values that the only carry may have before a step; None for any."""
        return self.starts[0] if self.starts else None

    @property
    def only(self) -> tuple[Any, Var, str]:
        """Step, old and dtype of the only carry."""
        (step,), (old,), (dtype,) = self.steps, self.olds, self.dtypes
        return step, old, dtype


class Algebra(ABC):
    """A family of functions ``h -> step(h)`` closed under composition; ``h`` is a tuple.

    The law that every family obeys, and that the tests check by splitting at every point, is
    ``apply(combine(f, g), h) == apply(g, apply(f, h))`` for ``f`` earlier than ``g``.
    Commutativity is never assumed. Elements are tuples of expressions (of anything with
    Python's operators, so that the laws are tested on exact rationals with the same code).
    """

    name: ClassVar[str]
    #: Whether the family is about one carry alone.
    single: ClassVar[bool] = True

    @property
    def sample_range(self) -> tuple[int, int]:
        """Integers that inputs may be when the laws are tried out on samples."""
        return (-4, 5)

    @property
    def innermost(self) -> Algebra:
        """The family that does the arithmetic, where this one is built on another."""
        return self

    @property
    def reuses_parts(self) -> bool:
        """Return whether ``extend`` reads parts of a step many times, so that they have names."""
        return False

    @classmethod
    @abstractmethod
    def prove(cls, system: System) -> Algebra | NotInFamily:
        """Prove that the step as a function of the carries lies in the family."""

    @property
    @abstractmethod
    def dtypes(self) -> tuple[str, ...]:
        """Dtype of each part of an element."""

    @abstractmethod
    def lift(self) -> Element:
        """Element of the step: expressions over inputs, lanes and time."""

    @abstractmethod
    def combine(self, earlier: Element, later: Element) -> Element:
        """Element of ``earlier`` followed by ``later``."""

    def extend(self, earlier: Element, step: Element) -> Element:
        """Element of ``earlier`` followed by one lifted step; ``combine`` unless cheaper."""
        return self.combine(earlier, step)

    def flush(self, element: Element) -> Element:
        """``element`` without denormal factors, on which CPUs are a hundred times slower.

        A product of decaying gates would otherwise stay at the smallest denormal for good.
        """
        return element

    def plainly(self) -> Plain | None:
        """Cheaper formulas, and where they are the same; None where there are no cheaper ones."""
        return None

    @abstractmethod
    def identity(self) -> Element:
        """Element of the step that changes nothing."""

    @abstractmethod
    def apply(self, element: Element, carries: Element) -> Element:
        """Carries after the steps that ``element`` stands for."""

    @abstractmethod
    def formulas(self) -> dict[str, str]:
        """Step, element, combine, identity and apply as text."""


class Forgetting(Algebra):
    """A family whose elements can forget the carry: its first step needs no initial state."""

    @abstractmethod
    def constant(self, values: Element) -> Element:
        """Element of the step that forgets the carries and sets them to ``values``."""

    @abstractmethod
    def neutral(self) -> Element:
        """Carries on which applying ``constant(values)`` gives exactly ``values``."""


class Around(Algebra):
    """A family that is built on another one, ``inner``."""

    inner: Algebra

    @property
    def innermost(self) -> Algebra:
        """The innermost family of the inner family."""
        return self.inner.innermost

    @property
    def reuses_parts(self) -> bool:
        """Return whether the inner family reuses the parts of a step."""
        return self.inner.reuses_parts

    @property
    def sample_range(self) -> tuple[int, int]:
        """The sample range of the inner family."""
        return self.inner.sample_range


def _narrowed(system: System) -> System:
    """The system with steps that go through wider integers in their carries' own dtypes."""
    pairs = zip(system.steps, system.dtypes, strict=True)
    steps = tuple(in_own_dtype(step, system.olds, dtype) for step, dtype in pairs)
    return replace(system, steps=steps)


def classify(system: System) -> Algebra | NotInFamily:
    """Find the first family that contains the step.

    Parameters
    ----------
    system : System
        The joint step of the carries.

    Returns
    -------
    Algebra or NotInFamily
        The proven family with its coefficients, or the reason of the most telling family.
    """
    from tvm_scan.algebra import FAMILIES

    system = _narrowed(system)
    reason = NotInFamily(system.steps[0], "carries that feed one another in a circle")
    for family in FAMILIES:
        if family.single and len(system.olds) != 1:
            continue
        algebra = family.prove(system)
        if isinstance(algebra, Algebra):
            return algebra
        if algebra.reason:
            reason = algebra
    return reason
