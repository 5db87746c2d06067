"""Algebras that are wrong in one place: the solver finds inputs for which each of them is."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from tvm import tirx

from tests.support.proof_cases import algebra_of, problem
from tvm_scan.algebra.base import Algebra, System
from tvm_scan.proof import Verdict
from tvm_scan.proof.prover import prove_group


class Changed(Algebra):
    """Another algebra, one of whose formulas is replaced."""

    def __init__(self, inner, **changes):
        self.inner, self.changes = inner, changes
        self.name = f"changed {inner.name}"

    @classmethod
    def prove(cls, system):
        raise NotImplementedError

    @property
    def dtypes(self):
        return self.inner.dtypes

    def _run(self, name, *arguments):
        change = self.changes.get(name)
        own = getattr(self.inner, name)
        return tuple(change(own, *arguments) if change else own(*arguments))

    def lift(self):
        return self._run("lift")

    def combine(self, earlier, later):
        return self._run("combine", earlier, later)

    def extend(self, earlier, step):
        return self._run("extend", earlier, step)

    def identity(self):
        return self._run("identity")

    def apply(self, element, carries):
        return self._run("apply", element, carries)

    def formulas(self):
        return self.inner.formulas()


def swapped(own, earlier, later):
    return own(later, earlier)


def without_offset(own, earlier, later):
    gate, _ = own(earlier, later)
    return gate, later[1]


def earlier_only(own, earlier, later):
    return earlier


def negated(part):
    def change(own, *arguments):
        parts = list(own(*arguments))
        parts[part] = tirx.const(0, str(parts[part].ty.dtype)) - parts[part]
        return parts

    return change


def plus_one(part):
    def change(own, *arguments):
        parts = list(own(*arguments))
        parts[part] = parts[part] + tirx.const(1, str(parts[part].ty.dtype))
        return parts

    return change


def doubled(part):
    def change(own, *arguments):
        parts = list(own(*arguments))
        parts[part] = parts[part] + parts[part]
        return parts

    return change


#: dtype and step of tests/support/proof_cases.py, and what is wrong.
WRONG = {
    "affine, order swapped": ("int8", "affine", {"combine": swapped}),
    "affine, offset left out": ("uint16", "affine", {"combine": without_offset}),
    "affine, off by one": ("int32", "affine", {"lift": plus_one(1)}),
    "affine of floats, order swapped": ("float32", "affine", {"combine": swapped}),
    "affine of floats, identity": ("float32", "affine", {"identity": plus_one(1)}),
    "sum, earlier only": ("int64", "add", {"combine": earlier_only}),
    "maximum, identity": ("int32", "max", {"identity": plus_one(0)}),
    "maximum, earlier only": ("uint8", "max", {"combine": earlier_only}),
    "maximum of floats, earlier only": ("float32", "max", {"combine": earlier_only}),
    "bits, order swapped": ("uint32", "bits", {"combine": swapped}),
    "clamp, order swapped": ("int32", "between", {"combine": swapped}),
    "clamp of floats, order swapped": ("float32", "between", {"combine": swapped}),
    "residues, order swapped": ("int32", "residues, varying gate", {"combine": swapped}),
    "residues, off by one": ("int32", "residues", {"apply": plus_one(0)}),
    "switch, order swapped": ("bool", "switch", {"combine": swapped}),
    "automaton, order swapped": ("int32", "automaton", {"combine": swapped}),
    "fraction, order swapped": ("float32", "fraction", {"combine": swapped}),
    "fraction, sign": ("float32", "fraction of sums", {"lift": negated(2)}),
    "logsumexp, order swapped": (
        "float32",
        "logarithm of exponentials",
        {"combine": swapped},
    ),
    "logsumexp, shift doubled": ("float32", "stabilised", {"lift": doubled(0)}),
    "complex, sign": ("float32", "complex", {"combine": negated(1)}),
    "matrix, order swapped": ("float32", "four carries", {"combine": swapped}),
    "matrix of integers, order swapped": ("int8", "three carries", {"combine": swapped}),
    "reset, order swapped": ("float32", "reset", {"combine": swapped}),
    "reset of a maximum, value": ("int8", "reset", {"apply": plus_one(0)}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_algebra_is_refuted(name):
    dtype, step, changes = WRONG[name]
    system, algebra = algebra_of(dtype, step)
    right = prove_group(problem(system, Changed(algebra)), 5.0)
    assert right.verdict is Verdict.PROVEN, right
    wrong = prove_group(problem(system, Changed(algebra, **changes)), 5.0)
    assert wrong.verdict is Verdict.REFUTED, wrong
    (said,) = (s for s in wrong.statements if s.verdict is Verdict.REFUTED)
    assert said.counterexample


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_wrong_extension_is_seen(dtype):
    system, algebra = algebra_of(dtype, "affine")
    wrong = prove_group(problem(system, Changed(algebra, extend=plus_one(1))), 5.0)
    assert wrong.verdict is not Verdict.PROVEN


@dataclass(frozen=True, eq=False)
class WideClamp(Algebra):
    """``max(h + a, low)`` combined in 64 bits, as if the loop's sums did not wrap around."""

    name: ClassVar[str] = "clamp in 64 bits"
    shift: Any
    low: int
    dtype: str
    dtypes = ("int64", "int64")

    @classmethod
    def prove(cls, system):
        raise NotImplementedError

    def lift(self):
        return (tirx.Cast("int64", self.shift), tirx.const(self.low, "int64"))

    def combine(self, earlier, later):
        return (earlier[0] + later[0], tirx.Max(earlier[1] + later[0], later[1]))

    def identity(self):
        return (tirx.const(0, "int64"), tirx.const(-(1 << 60), "int64"))

    def apply(self, element, carries):
        wide = tirx.Max(tirx.Cast("int64", carries[0]) + element[0], element[1])
        return (tirx.Cast(self.dtype, wide),)

    def formulas(self):
        return {}


@dataclass(frozen=True, eq=False)
class WideResidues(Algebra):
    """``(a h + x) % m`` of exact numbers, whatever the width of the loop's."""

    name: ClassVar[str] = "residues of exact numbers"
    gate: int
    offset: Any
    modulus: int
    dtype: str
    dtypes = ("int64", "int64")

    @classmethod
    def prove(cls, system):
        raise NotImplementedError

    def _rest(self, value):
        return tirx.FloorMod(value, tirx.const(self.modulus, "int64"))

    def _is_nothing(self, element):
        return tirx.EQ(element[0], tirx.const(self.modulus, "int64"))

    def lift(self):
        gate = tirx.const(self.gate % self.modulus, "int64")
        return (gate, self._rest(tirx.Cast("int64", self.offset)))

    def combine(self, earlier, later):
        parts = (later[0] * earlier[0], later[0] * earlier[1] + later[1])
        first, second = (self._is_nothing(element) for element in (earlier, later))
        return tuple(
            tirx.Select(first, y, tirx.Select(second, x, self._rest(both)))
            for x, y, both in zip(earlier, later, parts, strict=True)
        )

    def identity(self):
        return (tirx.const(self.modulus, "int64"), tirx.const(0, "int64"))

    def apply(self, element, carries):
        wide = tirx.Cast("int64", carries[0])
        value = self._rest(element[0] * self._rest(wide) + element[1])
        kept = tirx.Select(self._is_nothing(element), wide, value)
        return (tirx.Cast(self.dtype, kept),)

    def formulas(self):
        return {}


def clamp(dtype, low=-50):
    h, x = tirx.Var("h", dtype), tirx.Var("x", dtype)
    step = tirx.Max(h + x, tirx.const(low, dtype))
    return System((step,), (h,), (dtype,)), WideClamp(x, low, dtype)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_sums_that_wrap_around_are_not_combined_in_64_bits(dtype):
    proof = prove_group(problem(*clamp(dtype)), 5.0)
    assert proof.verdict is Verdict.REFUTED, proof
    (said,) = (s for s in proof.statements if s.verdict is Verdict.REFUTED)
    values = {name: int(value) for name, value in said.counterexample}
    bits = int(dtype.removeprefix("int"))
    total = (values["h"] + values["x"] + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    assert values["the loop"] == max(total, -50) != values["the element"]


def test_sums_that_must_not_overflow_are():
    """The loop's own overflow is undefined in 32 bits; that there is none is told."""
    proof = prove_group(problem(*clamp("int32")), 5.0)
    assert proof.verdict is Verdict.PROVEN, proof
    assert any("do not overflow" in text for text in proof.assumptions)
    assert any("at most 268435456 steps" in text for text in proof.assumptions)
    exact = prove_group(problem(*clamp("int32"), length=1000), 5.0)
    assert not any("steps" in text for text in exact.assumptions)


@pytest.mark.parametrize(
    ("dtype", "gate", "modulus", "is_right"),
    [
        ("uint8", 31, 251, False),
        ("uint16", 1, 60000, False),
        ("uint32", 1664525, 1000003, False),
        ("int16", 31, 251, False),
        ("int32", 31, 251, True),
        ("int64", 31, 251, True),
        ("uint8", 31, 32, True),
        ("uint32", 1664525, 1 << 16, True),
    ],
)
def test_residues_of_what_wraps_around(dtype, gate, modulus, is_right):
    h, x = tirx.Var("h", dtype), tirx.Var("x", dtype)
    total = h * tirx.const(gate, dtype) + x
    step = tirx.FloorMod(total, tirx.const(modulus, dtype))
    system = System((step,), (h,), (dtype,))
    algebra = WideResidues(gate, x, modulus, dtype)
    proof = prove_group(problem(system, algebra), 5.0)
    if is_right:
        assert proof.verdict is Verdict.PROVEN, proof
        return
    (found,) = (s for s in proof.statements if s.verdict is Verdict.REFUTED)
    values = {name: int(value) for name, value in found.counterexample}
    exact = values["h"] * gate + values["x"]
    bits = int("".join(filter(str.isdigit, dtype)))
    low = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    wrapped = (exact - low) % (1 << bits) + low
    assert values["the loop"] == wrapped % modulus != exact % modulus == values["the element"]


def test_a_counterexample_is_of_functions_that_exist():
    """``sin`` may be anything to the solver: what it finds so is no counterexample."""
    h, x = (tirx.Var(n, "float32") for n in "hx")
    system = System((tirx.sin(x) * h + x * tirx.const(0, "float32"),), (h,), ("float32",))
    _, algebra = algebra_of("float32", "mul")
    proof = prove_group(problem(system, algebra), 5.0)
    assert proof.verdict is Verdict.UNDECIDED
