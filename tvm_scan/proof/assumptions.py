"""Assumptions that a proof needs and does not prove, in words."""

from __future__ import annotations

from tvm_scan import tir
from tvm_scan.algebra.literal import bits_of, is_integer
from tvm_scan.proof.elements import Fact
from tvm_scan.proof.problem import Theory
from tvm_scan.proof.translate import NONE, all_checks
from tvm_scan.proof.untranslatable import UntranslatableError


def numbers_of(theory: Theory) -> str:
    """The numbers of which the statements speak."""
    problem = theory.problem
    said = []
    integers = sorted({d for d in (*problem.dtypes, *problem.algebra.dtypes) if is_integer(d)})
    if integers and (not problem.has_floats or any(is_integer(d) for d in problem.dtypes)):
        how = "without overflow" if theory.exact else "modulo 2^n"
        said.append(f"all {' and '.join(integers)}, {how}")
    if problem.has_floats:
        said.append("real numbers")
    return "; ".join(said) or "all truth values"


def assumptions_of(theory: Theory, facts: tuple[Fact, ...], wraps: bool) -> tuple[str, ...]:
    """Every assumption of the statements, in words."""
    problem = theory.problem
    out = []
    names, _ = theory.carries()
    run = theory.translator(names)
    try:
        checks = all_checks(run.every(problem.steps))
    except UntranslatableError:
        checks = NONE  # nothing is proven, and nothing needs to be assumed
    if theory.exact and checks.overflow is not True:
        out.append(
            "the loop's own sums and products of 32 and 64 bits do not overflow, which is "
            "undefined in TVM's LLVM code"
        )
    if any(fact.each for fact in facts) and problem.length is None:
        out.append(f"a lane has at most {problem.most_steps} steps")
    if theory.promised:
        out.append("no composition of the declared operator overflows")
    if wraps:
        widths = sorted({d for d in problem.algebra.dtypes if is_integer(d) and bits_of(d) >= 32})
        out.append(
            f"sums and products of {' and '.join(widths)} may overflow in the scan where the "
            "loop's do not, and its kernels let them wrap around "
            "(tvm_scan.schedules.common.wrapping)"
        )
    for buffer in tir.VarMap((load.source, True) for load in problem.tables).keys():
        out.append(f"every state, also the last one, is an index of {buffer.name}")
    if problem.has_floats:
        out.append("inputs and carries are finite, and no result overflows")
    if checks.finite is not True:
        out.append("the loop divides by nothing that is zero")
    if theory.images:
        out.append("exp is one to one, keeps order, and turns sums into products; log undoes it")
    if problem.widened:
        out.append("halves are carried in float32, and rounded when they are stored")
    return tuple(out)
