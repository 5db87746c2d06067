"""The translation from TensorIR expressions to terms of the solver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import z3
from tvm import tirx
from tvm.ir import Call, Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.algebra.choices import as_choice
from tvm_scan.algebra.literal import is_bool, is_float, is_integer, is_signed
from tvm_scan.proof.atoms import Atoms
from tvm_scan.proof.ends import ends_of, is_end
from tvm_scan.proof.images import Image
from tvm_scan.proof.logic import Bool, choose, conj, disj, equal, neg, pick
from tvm_scan.proof.reals import Real
from tvm_scan.proof.untranslatable import UntranslatableError


class Checks(NamedTuple):
    """Conditions under which an expression means what it was translated to.

    Attributes
    ----------
    overflow : bool or z3.BoolRef
        No signed sum or product of 32 or 64 bits overflows.
    unsigned : bool or z3.BoolRef
        No unsigned one does; that they wrap around is what loops may rely on.
    defined : bool or z3.BoolRef
        Divisors are not zero, shifts less than the width, indices inside of their tables.
    lossless : bool or z3.BoolRef
        No cast to narrower integers changes its number.
    finite : bool or z3.BoolRef
        No float is divided by zero.
    """

    overflow: Bool = True
    unsigned: Bool = True
    defined: Bool = True
    lossless: Bool = True
    finite: Bool = True

    def __and__(self, other: Checks) -> Checks:
        return Checks(*map(conj, self, other))

    @property
    def stays(self) -> Bool:
        """No sum or product of 32 or 64 bits leaves its register."""
        return conj(self.overflow, self.unsigned)


NONE = Checks()


@dataclass(frozen=True, eq=False)
class Term:
    """A value (``Real``, or a term of z3) and the conditions under which it is that."""

    value: Any
    checks: Checks = NONE


def all_checks(terms: list[Term]) -> Checks:
    """The checks of several terms."""
    out = NONE
    for term in terms:
        out = out & term.checks
    return out


_LOGIC = {tirx.And: conj, tirx.Or: disj}
_COMPARE = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
#: Kind of node -> what it does with bits.
BITWISE = {tirx.BitwiseAnd: "and", tirx.BitwiseOr: "or", tirx.BitwiseXor: "xor"}
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


class Translator:
    """Expressions as terms; every node once.

    Parameters
    ----------
    atoms : Atoms
        What the expressions do not compute.
    names : VarMap
        Variables that stand for terms: carries, and parts of elements.
    """

    def __init__(self, atoms: Atoms, names: tir.VarMap) -> None:
        self.atoms, self.names = atoms, names
        self.arithmetic = atoms.arithmetic
        self._known: dict[int, tuple[Any, Term]] = {}

    def __call__(self, e: Any) -> Term:
        """Translate an expression.

        Raises
        ------
        UntranslatableError
            If the theory has no such operation.
        """
        if isinstance(e, tirx.IntImm | tirx.FloatImm):
            return self._translate(e)  # their hash is their value, whatever their dtype
        key = e.__hash__()
        if key not in self._known:
            self._known[key] = (e, self._translate(e))
        return self._known[key][1]

    def every(self, exprs: Iterable[Any]) -> list[Term]:
        """Translate several expressions."""
        return [self(e) for e in exprs]

    def _translate(self, e: Any) -> Term:
        dtype = tir.dtype_of(e)
        if isinstance(e, Var):
            named = self.names.get(e)
            return Term(self.atoms.variable(e)) if named is None else named
        if isinstance(e, tirx.IntImm):
            value = int(e.value)
            return Term(bool(value) if is_bool(dtype) else self.arithmetic.const(value, dtype))
        if isinstance(e, tirx.FloatImm):
            return Term(Real.const(float(e.value)))
        if isinstance(e, TensorLoad):
            return self._load(e)
        if (choice := as_choice(e)) is not None:
            return self._choice(*choice, isinstance(e, tirx.Select))
        if isinstance(e, tirx.Let):
            self.names[e.var] = self(e.value)
            return self(e.body)
        if isinstance(e, tirx.Cast):
            return self._cast(e.value, dtype)
        if isinstance(e, tirx.Not):
            inner = self(e.a)
            return Term(neg(inner.value), inner.checks)
        if isinstance(e, tirx.BitwiseNot):
            return self._inverted(e.a, dtype)
        if isinstance(e, Call):
            return self._call(e, dtype)
        if not (hasattr(e, "a") and hasattr(e, "b")):
            raise UntranslatableError(f"{type(e).__name__}")
        left, right = self(e.a), self(e.b)
        checks = left.checks & right.checks
        return self._binary(e, dtype, left.value, right.value, checks)

    def _binary(self, e: Any, dtype: str, a: Any, b: Any, checks: Checks) -> Term:
        kind, of = type(e), tir.dtype_of(e.a)
        if kind in _LOGIC:
            return Term(_LOGIC[kind](a, b), checks)
        if kind in _COMPARE:
            return Term(self._compared(kind, *ends_of(e, a, b), of), checks)
        if kind in (tirx.Max, tirx.Min):
            keep = self._less(b, a, of) if kind is tirx.Max else self._less(a, b, of)
            if kind is tirx.Min and is_end(e.b, 1):
                keep = conj(neg(a.up), neg(a.nan))
            return Term(self.pick(keep, a, b), checks)
        if kind in BITWISE:
            return self._bitwise(BITWISE[kind], a, b, dtype, checks)
        if is_bool(dtype):
            raise UntranslatableError(f"{kind.__name__} of truth values")
        if is_float(dtype):
            return self._float(kind, a, b, checks)
        if kind in (tirx.LShift, tirx.RShift):
            value, ok = self.arithmetic.shift(a, b, dtype, kind is tirx.LShift)
            return Term(value, checks & Checks(defined=ok))
        if kind in _DIVISIONS:
            floor = kind in (tirx.FloorDiv, tirx.FloorMod)
            quotient, rest, ok = self.arithmetic.divide(a, b, dtype, floor)
            value = quotient if kind in (tirx.Div, tirx.FloorDiv) else rest
            return Term(value, checks & Checks(defined=ok))
        run = {tirx.Add: "add", tirx.Sub: "sub", tirx.Mul: "mul"}.get(kind)
        if run is None:
            raise UntranslatableError(kind.__name__)
        value, ok = getattr(self.arithmetic, run)(a, b, dtype)
        stays = Checks(overflow=ok) if is_signed(dtype) else Checks(unsigned=ok)
        return Term(value, checks & stays)

    def _float(self, kind: Any, a: Real, b: Real, checks: Checks) -> Term:
        if kind is tirx.Add:
            return Term(a + b, checks)
        if kind is tirx.Sub:
            return Term(a - b, checks)
        if kind is tirx.Mul:
            return Term(a * b, checks)
        if kind is tirx.Div:
            return Term(a * b.inverse(), checks & Checks(finite=b.nonzero))
        raise UntranslatableError(f"{kind.__name__} of floats")

    def _bitwise(self, word: str, a: Any, b: Any, dtype: str, checks: Checks) -> Term:
        if is_bool(dtype):
            joined = {"and": conj, "or": disj, "xor": lambda x, y: neg(equal(x, y))}[word](a, b)
            return Term(joined, checks)
        return Term(self.arithmetic.bitwise(word, a, b, dtype), checks)

    def _inverted(self, e: Any, dtype: str) -> Term:
        inner = self(e)
        if is_bool(dtype):
            return Term(neg(inner.value), inner.checks)
        return Term(self.arithmetic.invert(inner.value, dtype), inner.checks)

    def _less(self, a: Any, b: Any, dtype: str) -> Bool:
        if is_float(dtype):
            return a.less(b)
        if is_bool(dtype):
            return conj(neg(a), b)
        return self.arithmetic.less(a, b, dtype)

    def _compared(self, kind: Any, a: Any, b: Any, dtype: str) -> Bool:
        if kind in (tirx.EQ, tirx.NE):
            same = self._equal(a, b, dtype)
            return same if kind is tirx.EQ else neg(same)
        if kind in (tirx.GT, tirx.LE):
            a, b = b, a
        below = self._less(a, b, dtype)  # a < b; of LE and GE as not b < a
        if kind in (tirx.LT, tirx.GT):
            return below
        if is_float(dtype):
            return conj(neg(below), neg(a.nan), neg(b.nan))
        return neg(below)

    def _equal(self, a: Any, b: Any, dtype: str) -> Bool:
        if is_float(dtype):
            return a.equals(b)
        return equal(a, b) if is_bool(dtype) else a == b

    @staticmethod
    def pick(test: Bool, yes: Any, no: Any) -> Any:
        """``yes`` where ``test``, else ``no``, of any kind."""
        if isinstance(yes, Real | Image):
            kind: Any = type(yes)
            return kind.pick(test, yes, no)
        if isinstance(yes, bool | z3.BoolRef):
            return choose(test, yes, no)
        return pick(test, yes, no)

    def _choice(self, condition: Any, yes: Any, no: Any, eager: bool) -> Term:
        """A choice; a select computes both sides, so that both must be defined."""
        test, left, right = self(condition), self(yes), self(no)
        value = self.pick(test.value, left.value, right.value)
        a, b = left.checks, right.checks
        chosen = Checks(*(choose(test.value, *both) for both in zip(a, b, strict=True)))
        if eager:
            chosen = chosen._replace(defined=conj(a.defined, b.defined))
        return Term(value, test.checks & chosen)

    def _cast(self, inner: Any, dtype: str) -> Term:
        source, term = tir.dtype_of(inner), self(inner)
        value, checks = term.value, term.checks
        if source == dtype or (is_float(source) and is_float(dtype)):
            return term
        if is_bool(dtype):
            zero = Real.const(0.0) if is_float(source) else self.arithmetic.const(0, source)
            return Term(neg(self._equal(value, zero, source)), checks)
        if is_float(dtype):
            if is_bool(source):
                return Term(Real.pick(value, Real.const(1.0), Real.const(0.0)), checks)
            return Term(self.atoms.function(f"{dtype} of", [value], dtype), checks)
        if is_bool(source):
            one, zero = (self.arithmetic.const(n, dtype) for n in (1, 0))
            return Term(pick(value, one, zero), checks)
        if is_float(source):
            return Term(self.atoms.function(f"{dtype} of", [value.value], dtype), checks)
        cast, ok = self.arithmetic.cast(value, source, dtype)
        return Term(cast, checks & Checks(lossless=ok))

    def _load(self, load: Any) -> Term:
        checks = NONE
        values: list[Any] = []
        is_table = load.source in self.atoms.tables
        if is_table:
            for index, extent in zip(load.indices, tir.shape_of(load.source), strict=True):
                term, dtype = self(index), tir.dtype_of(index)
                checks = checks & term.checks
                values.append(self.arithmetic.as_index(term.value, dtype))
                if tir.contains_var(index, self.names.keys()) and tir.as_int(extent) is not None:
                    inside = self.arithmetic.index_inside(term.value, dtype, tir.as_int(extent))
                    checks = checks & Checks(defined=inside)
        return Term(self.atoms.load(load, lambda: values), checks)

    def _call(self, e: Call, dtype: str) -> Term:
        name = tir.call_name(e) or str(e.op)
        word = name.rpartition(".")[2]
        if word == "likely":
            return self(e.args[0])
        if word == "fma":
            return self(e.args[0] * e.args[1] + e.args[2])
        args = self.every(e.args)
        checks = all_checks(args)
        if word == "isnan":
            return Term(args[0].value.nan, checks)
        if word == "fabs":
            x = args[0].value
            return Term(Real.pick(x.less(Real.const(0.0)), -x, x), checks)
        values = [arg.value.value if isinstance(arg.value, Real) else arg.value for arg in args]
        if any(isinstance(arg.value, Real) and arg.value.special is not False for arg in args):
            raise UntranslatableError(f"{name} of what may be infinite")
        values = [z3.BoolVal(v) if isinstance(v, bool) else v for v in values]
        if not values or not (is_float(dtype) or is_integer(dtype) or is_bool(dtype)):
            raise UntranslatableError(name)
        return Term(self.atoms.function(name, values, dtype), checks)
