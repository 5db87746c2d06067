"""Every family at every width: what the classification takes, the solver proves."""

import itertools
import re

import pytest
from tvm import tirx

from tests import ROOT
from tests.support.proof_cases import (
    FLOATS,
    GLANCE,
    INTEGERS,
    UNDECIDED,
    UNDECIDED_FAMILIES,
    UNDECIDED_PROGRAMS,
    algebra_of,
    problem,
    steps_of,
)
from tvm_scan.algebra import FAMILIES, Declared, LateSegmented, Segmented
from tvm_scan.algebra.base import Algebra, System
from tvm_scan.proof import Verdict
from tvm_scan.proof.prover import prove_group
from tvm_scan.proof.rounding import ROUNDINGS

DTYPES = ("bool", *INTEGERS, *FLOATS)

#: Steps whose statements hold for numbers modulo 2^n at every width: those that the classification
#: must take, so that this file does not pass because it takes nothing.
RINGS = (
    "add",
    "mul",
    "max",
    "min",
    "xor",
    "affine",
    "affine, constant gate",
    "bits",
    "mask",
    "every other step",
)


def cases(dtype):
    """Names of the steps over a dtype that are taken."""
    return [name for name in steps_of(dtype) if isinstance(algebra_of(dtype, name)[1], Algebra)]


@pytest.mark.parametrize(
    ("dtype", "name"), [(dtype, name) for dtype in DTYPES for name in cases(dtype)]
)
def test_what_is_taken_is_proven(dtype, name):
    system, algebra = algebra_of(dtype, name)
    undecided = UNDECIDED.get((dtype, name), UNDECIDED_FAMILIES.get(algebra.name))
    proof = prove_group(problem(system), GLANCE if undecided else 5.0)
    if undecided:
        assert [s.name for s in proof.statements if s.verdict is not Verdict.PROVEN] == [undecided]
        assert proof.verdict is Verdict.UNDECIDED, proof
        return
    assert proof.verdict is Verdict.PROVEN, proof
    said = {statement.name: statement.verdict for statement in proof.statements}
    assert {"step", "elements", "composition", "identity"} <= set(said)
    narrow = dtype in ("int8", "int16", "uint8", "uint16")
    if narrow and "without overflow" not in proof.numbers:
        # 8 and 16 bits: all of it, for all inputs, without any assumption about compiled code.
        assert said["numbers"] is Verdict.PROVEN
    if dtype in INTEGERS and name in RINGS:
        assert proof.numbers.endswith("modulo 2^n")
    assert bool(proof.rounding) == (dtype in FLOATS)


def test_the_page_names_what_is_undecided():
    """And no other step, family or program."""
    page = (ROOT / "docs" / "proof.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:4] for line in page.splitlines() if line.startswith("|")][2:]
    said = {(name, row[2].strip()) for row in rows for name in names_in(row)}
    undecided = {
        *UNDECIDED_FAMILIES.items(),
        *UNDECIDED_PROGRAMS.items(),
        *((name, statement) for (_, name), statement in UNDECIDED.items()),
    }
    assert said == undecided
    widths = {(d, name) for r in rows for d in re.findall(r"u?int64", r[0]) for name in names_in(r)}
    assert widths == set(UNDECIDED)


def names_in(row):
    """Names in code, without formulas."""
    return re.findall(r"`([\w ]+)`", row[1])


def test_the_table_covers_all_families_and_widths():
    taken = {(d, n): algebra_of(d, n)[1] for d in DTYPES for n in steps_of(d)}
    families = {type(a) for a in taken.values() if isinstance(a, Algebra)}
    assert set(taken) >= set(UNDECIDED)
    assert families | {Declared, Segmented, LateSegmented} == set(FAMILIES)
    for dtype, name in itertools.product(INTEGERS, (*RINGS, "shifted in")):
        assert isinstance(taken[dtype, name], Algebra), (dtype, name)


def declared(dtype, step):
    """Pops and pushes of a stack, or another operator, declared associative."""
    h, g = (tirx.Var(n, dtype) for n in "hg")
    loads = [
        tirx.BufferLoad(tirx.decl_buffer((4,), dtype, name), [tirx.Var("t", "int32")])
        for name in ("U", "V")
    ]
    return System(step(h, g, *loads), (h, g), (dtype, dtype), ("U", "V"))


def stack(h, g, u, v):
    met = tirx.Min(g, u)
    return (h + u - met, g + v - met)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_a_declared_operator_is_proven_associative(dtype):
    proof = prove_group(problem(declared(dtype, stack)), 5.0)
    assert proof.verdict is Verdict.PROVEN, proof
    if dtype == "int32":
        assert any("declared operator overflows" in text for text in proof.assumptions)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_an_operator_that_is_not_associative_is_refuted(dtype):
    wrong = declared(dtype, lambda h, g, u, v: (tirx.Min(h, g) - u, g + v))
    proof = prove_group(problem(wrong), 5.0)
    assert proof.verdict is Verdict.REFUTED, proof
    (said,) = (s for s in proof.statements if s.verdict is Verdict.REFUTED)
    values = dict(said.counterexample)
    assert {"h", "U[t]", "the loop", "the scan"} <= set(values)
    assert values["the loop"] != values["the scan"]


def test_the_laws_of_rounding_are_those_of_the_numerics():
    from tests.numerics.cases import CASES

    told = {case.family: case.k for case in CASES.values() if case.dtype == "float32"}
    for family, k in told.items():
        if family != "segmented":
            assert ROUNDINGS[family][0] == k, family
    assert set(ROUNDINGS) - {"reduce min"} <= set(told)
