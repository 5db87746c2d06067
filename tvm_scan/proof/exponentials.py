"""Logarithms and exponentials: every float by its image under ``exp``, a non-negative real.

Theorem. ``exp`` is one to one from the reals with minus infinity to the non-negative reals, keeps
order, and turns sums into products and differences into quotients. So two expressions are equal
if their images are, an image needs no ``exp`` and no ``log`` (``exp(log y) = y``), and what is left
is an equality of rational functions. These are all the axioms of ``exp`` and ``log`` that are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import z3
from tvm import tirx
from tvm.ir import Call, Var

from tvm_scan import tir
from tvm_scan.algebra.choices import as_choice
from tvm_scan.algebra.literal import is_float
from tvm_scan.proof.images import Fraction, Image
from tvm_scan.proof.translate import Checks, Term, Translator
from tvm_scan.proof.untranslatable import UntranslatableError

_LOGARITHMS = {"exp", "log", "log1p"}


def mentions_logarithms(exprs: Any, names: Sequence[Var]) -> bool:
    """Return whether a logarithm or an exponential is taken of any of the variables."""
    return any(
        (tir.call_name(call) or "").rpartition(".")[2] in _LOGARITHMS
        and tir.contains_var(call, names)
        for call in tir.nodes(exprs, Call)
    )


class ExponentialTranslator(Translator):
    """Translates floats to their images; an ordinary float stands only below ``log``."""

    def _translate(self, e: Any) -> Term:
        if not is_float(tir.dtype_of(e)):
            return super()._translate(e)
        if (choice := as_choice(e)) is not None:
            return self._choice(*choice, isinstance(e, tirx.Select))
        if isinstance(e, tirx.Max | tirx.Min):
            a, b = self(e.a), self(e.b)
            keep = b.value.less(a.value) if isinstance(e, tirx.Max) else a.value.less(b.value)
            return Term(Image.pick(keep, a.value, b.value), a.checks & b.checks)
        if isinstance(e, tirx.Add):
            return self._product(self(e.a), self(e.b))
        if isinstance(e, tirx.Sub):
            return self._quotient(self(e.a), self(e.b))
        if isinstance(e, tirx.Mul):
            for factor, other in ((e.a, e.b), (e.b, e.a)):
                if isinstance(factor, tirx.FloatImm) and float(factor.value) == -1.0:
                    return self._quotient(Term(Image.const(1)), self(other))
        if isinstance(e, tirx.FloatImm):
            return Term(self._constant(float(e.value)))
        if isinstance(e, Var) and e in self.names:
            known: Term = self.names[e]
            return known
        word = (tir.call_name(e) or "").rpartition(".")[2]
        if word == "log":
            return self._ordinary(e.args[0])
        if word == "log1p":
            inner = self._ordinary(e.args[0])
            return Term(inner.value + Image.const(1), inner.checks)
        if word == "fabs":
            inner = self(e.args[0])
            other = self._quotient(Term(Image.const(1)), inner)
            less = inner.value.less(Image.const(1))
            return Term(Image.pick(less, other.value, inner.value), inner.checks & other.checks)
        if tir.contains_var(e, self.names.keys()):
            raise UntranslatableError(f"the image under exp of {type(e).__name__} {word}")
        return Term(self.atoms.image(e))

    def _ordinary(self, e: Any) -> Term:
        """A float below a logarithm: sums of exponentials."""
        if isinstance(e, tirx.Add):
            a, b = self._ordinary(e.a), self._ordinary(e.b)
            return Term(a.value + b.value, a.checks & b.checks)
        if isinstance(e, tirx.Mul):
            return self._product(self._ordinary(e.a), self._ordinary(e.b))
        if isinstance(e, tirx.FloatImm):
            return Term(Fraction(z3.Q(*float(e.value).as_integer_ratio())))
        if (choice := as_choice(e)) is not None:
            test, a, b = self(choice[0]), self._ordinary(choice[1]), self._ordinary(choice[2])
            return Term(Image.pick(test.value, a.value, b.value), test.checks & a.checks & b.checks)
        if (tir.call_name(e) or "").rpartition(".")[2] == "exp":
            return self(e.args[0])
        raise UntranslatableError(f"{type(e).__name__} below a logarithm")

    @staticmethod
    def _product(a: Term, b: Term) -> Term:
        return Term(a.value * b.value, a.checks & b.checks)

    @staticmethod
    def _quotient(a: Term, b: Term) -> Term:
        checks = a.checks & b.checks & Checks(finite=b.value.nonzero)
        return Term(a.value / b.value, checks)

    def _constant(self, value: float) -> Image:
        if value == -float("inf"):
            return Image.const(0)
        if value == 0.0:
            return Image.const(1)
        if value != value or value == float("inf"):
            raise UntranslatableError(f"the image under exp of {value}")
        image = self.atoms.image(tirx.const(value, "float64"))
        self.atoms.facts.append(image.top > 1 if value > 0 else image.top < 1)
        return image
