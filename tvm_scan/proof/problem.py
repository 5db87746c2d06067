"""A step and its algebra, ready to be asked about: the loop's own expressions as terms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra import Algebra, Automaton, Declared
from tvm_scan.algebra.base import Element
from tvm_scan.algebra.literal import is_bool, is_float, is_integer
from tvm_scan.algebra.reduce import Reduce
from tvm_scan.proof.atoms import Atoms, unknown_value
from tvm_scan.proof.exponentials import ExponentialTranslator, mentions_logarithms
from tvm_scan.proof.images import Fraction
from tvm_scan.proof.logic import Bool, conj, equal
from tvm_scan.proof.translate import BITWISE, Term, Translator, all_checks
from tvm_scan.recurrence import Group, Recurrence

#: Steps of a lane where the loop does not say how many.
MOST_STEPS = 1 << 28


@dataclass(frozen=True, eq=False)
class Problem:
    """The problem to be proven of one group of carries.

    Attributes
    ----------
    algebra : Algebra
        The family, with its coefficients.
    steps : tuple of Expr
        The carries after the step.
    olds : tuple of Var
        The carries before it.
    dtypes : tuple of str
        Dtypes of the carries.
    first : Expr or None
        The carry after step 0, where the loop treats it apart.
    extents : VarMap
        Lanes, time and state axes -> extent.
    moving : VarMap
        What else differs from step to step: carries of other groups.
    length : int or None
        Steps of a lane, where that is a number.
    """

    algebra: Algebra
    steps: tuple[Any, ...]
    olds: tuple[Var, ...]
    dtypes: tuple[str, ...]
    first: Any
    extents: tir.VarMap
    moving: tir.VarMap
    length: int | None

    @property
    def tables(self) -> list[Any]:
        """Loads whose index a carry decides."""
        return [
            load
            for step in self.steps
            for load in tir.loads(step)
            if any(tir.contains_var(index, self.olds) for index in load.indices)
        ]

    @property
    def family(self) -> str:
        """Name of the family, of a reduction with its operator."""
        algebra = self.algebra
        return f"reduce {algebra.op}" if isinstance(algebra, Reduce) else algebra.name

    @property
    def has_floats(self) -> bool:
        """Return whether any carry or any part of an element is a float."""
        return any(is_float(dtype) for dtype in (*self.dtypes, *self.algebra.dtypes))

    @property
    def is_declared(self) -> bool:
        """Return whether the composition is that of a declared operator."""
        return isinstance(self.algebra, Declared)

    @property
    def widened(self) -> bool:
        """Return whether halves are computed with."""
        casts = tir.nodes(self.steps, tirx.Cast)
        return any(tir.is_half(tir.dtype_of(cast.value)) for cast in casts)

    @property
    def divides(self) -> bool:
        """Return whether integers are divided, by the loop or by the algebra."""
        divisions = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
        return any(map(_is_of_integers, tir.nodes(self.exprs, *divisions)))

    @property
    def moves_bits(self) -> bool:
        """Return whether the loop or the algebra shifts integers or combines them bit by bit.

        A mask of low bits is no such thing, but a remainder.
        """
        kinds = (tirx.LShift, tirx.RShift, tirx.BitwiseNot, *BITWISE)
        return any(map(_mixes_bits, tir.nodes(self.exprs, *kinds)))

    @cached_property
    def parts(self) -> tuple[Var, ...]:
        """Variables for the parts of an element."""
        return tuple(tirx.Var(f"e{i}", dtype) for i, dtype in enumerate(self.algebra.dtypes))

    @property
    def exprs(self) -> Element:
        """Carries after the loop's step, and after an element is applied."""
        return (*self.steps, *self.algebra.apply(self.parts, self.olds))

    @property
    def most_steps(self) -> int:
        """Number of steps that one element stands for at most."""
        return MOST_STEPS if self.length is None else max(self.length, 1)


def problem_of(recurrence: Recurrence, group: Group) -> Problem:
    """The problem of one group; carries of other groups are its inputs: replayed before it."""
    carries = [recurrence.carries[i] for i in group.carries]
    axes = (*recurrence.axes, *recurrence.state_axes(group))
    moving = (recurrence.time.var, *(carry.before for carry in recurrence.carries))
    return Problem(
        algebra=group.algebra,
        steps=tuple(carry.step for carry in carries),
        olds=tuple(carry.old for carry in carries),
        dtypes=tuple(carry.dtype for carry in carries),
        first=carries[0].first,
        extents=tir.VarMap((axis.var, axis.extent) for axis in axes),
        moving=tir.VarMap((var, True) for var in moving),
        length=tir.as_int(recurrence.time.extent),
    )


class Theory:
    """The numbers in which a problem is asked, and its terms in them.

    Parameters
    ----------
    problem : Problem
        What is asked.
    arithmetic : BitVectors or ExactIntegers
        What integers are.
    exact : bool
        Whether the statements speak of loops in which nothing of 32 or 64 bits overflows, and of
        scans that form no number that their registers do not hold; else all wraps around.
    promised : bool
        Whether it is assumed that compositions do not overflow, as the author of a declared
        operator promises.
    """

    def __init__(
        self, problem: Problem, arithmetic: Any, exact: bool, promised: bool = False
    ) -> None:
        self.problem, self.arithmetic, self.exact = problem, arithmetic, exact
        self.promised = promised
        self.images = mentions_logarithms(problem.exprs, (*problem.olds, *problem.parts))
        self.tables = tir.VarMap((load.source, True) for load in problem.tables)

    @property
    def name(self) -> str:
        """The numbers, and whether they overflow."""
        return f"{self.arithmetic.name}{' without overflow' if self.exact else ''}"

    def is_guess(self, atoms: list[Atoms]) -> bool:
        """Return whether a counterexample may be one of functions that no machine has."""
        return self.arithmetic.guesses or any(each.calls_unknown_functions for each in atoms)

    def atoms(self, earlier: Atoms | None = None) -> Atoms:
        """Inputs of a step; of the one after ``earlier`` if given."""
        p = self.problem
        return Atoms(self.arithmetic, p.extents, self.tables, p.moving, earlier)

    def translator(self, names: tir.VarMap, atoms: Atoms | None = None) -> Translator:
        """The translator that makes terms of expressions over ``names``, and inputs of a step."""
        kind = ExponentialTranslator if self.images else Translator
        return kind(atoms or self.atoms(), names)

    # ---- carries ------------------------------------------------------------------------------

    def carries(self) -> tuple[tir.VarMap, list[Bool]]:
        """Unknown carries before a step, and what is assumed of them."""
        names, assumed = tir.VarMap(), []
        carries = zip(self.problem.olds, self.problem.dtypes, strict=True)
        for i, (old, dtype) in enumerate(carries):
            label = f"carry {i}"  # no input has a blank in its name; the same in every problem
            value, within = unknown_value(label, dtype, self.arithmetic, self.images)
            # Of images those of finite numbers, and of minus infinity.
            assumed.append(value.top >= 0 if isinstance(value, Fraction) else within)
            names[old] = Term(value)
        return names, assumed

    def indexed(self, translator: Translator, carries: Element) -> Bool:
        """The condition that such carries index their tables inside, as at the loop's next step."""
        inside: Bool = True
        table = tir.VarMap(zip(self.problem.olds, carries, strict=True))
        algebra = self.problem.algebra
        if isinstance(algebra, Automaton) and algebra.flat is not None:
            # Of rows: another one and a column beyond its own may still lie inside of the table.
            for carry, dtype in zip(carries, self.problem.dtypes, strict=True):
                value = translator(carry).value
                inside = conj(inside, self.arithmetic.index_inside(value, dtype, algebra.states))
        for load in self.problem.tables:
            for index, extent in zip(load.indices, tir.shape_of(load.source), strict=True):
                size = tir.as_int(extent)
                if size is None or not tir.contains_var(index, self.problem.olds):
                    continue
                term = translator(tir.substitute(index, table))
                dtype = tir.dtype_of(index)
                inside = conj(inside, self.arithmetic.index_inside(term.value, dtype, size))
        return inside

    # ---- statements ---------------------------------------------------------------------------

    def meant(self, terms: list[Term]) -> Bool:
        """The conditions of this theory under which expressions mean what is said of them."""
        lossless = all_checks(terms).lossless if self.exact else True
        return conj(self.loop_defined(terms), lossless)

    def loop_defined(self, terms: list[Term]) -> Bool:
        """The conditions of ``meant`` for the loop itself, whose casts may cut."""
        checks = all_checks(terms)
        basic = conj(checks.defined, checks.finite)
        return conj(basic, checks.overflow) if self.exact else basic

    def same(self, left: list[Term], right: list[Term], dtypes: tuple[str, ...]) -> Bool:
        """The condition that two tuples of values are the same."""
        return conj(
            *(self._same(a.value, b.value, d) for a, b, d in zip(left, right, dtypes, strict=True))
        )

    @staticmethod
    def _same(a: Any, b: Any, dtype: str) -> Bool:
        if is_float(dtype):
            return a.same(b)
        return equal(a, b) if is_bool(dtype) else a == b


def _mixes_bits(operator: Any) -> bool:
    if isinstance(operator, tirx.BitwiseAnd):
        masks = [n for n in (tir.as_int(operator.a), tir.as_int(operator.b)) if n is not None]
        if any(n >= 0 and n & (n + 1) == 0 for n in masks):
            return False
    return _is_of_integers(operator)


def _is_of_integers(division: Any) -> bool:
    return is_integer(tir.dtype_of(division))
