"""Statements proven of a recurrence, as frozen data that prints itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Verdict(Enum):
    """The solver's answer.

    Attributes
    ----------
    PROVEN
        The statement holds for all numbers of which it speaks.
    ASSUMED
        It does not hold by itself; what it needs is named among the assumptions.
    REFUTED
        It does not hold: there is a counterexample, of inputs of the loop.
    UNDECIDED
        The solver gave up, or its counterexample is of elements that no steps may make.
    """

    PROVEN = "proven"
    ASSUMED = "assumed"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Statement:
    """One statement and its answer.

    Attributes
    ----------
    name : str
        ``step``, ``composition``, ...
    claim : str
        The statement.
    verdict : Verdict
        The answer.
    seconds : float
        How long the solver took when it was asked; the same question is asked once.
    counterexample : tuple of (str, str)
        Names and values for which it does not hold; empty where it does.
    note : str
        Why it is undecided; else empty.
    """

    name: str
    claim: str
    verdict: Verdict
    seconds: float
    counterexample: tuple[tuple[str, str], ...] = ()
    note: str = ""


@dataclass(frozen=True)
class GroupProof:
    """Statements proven of carries that are scanned together.

    Attributes
    ----------
    carries : tuple of str
        Their names.
    dtypes : tuple of str
        Dtypes in which they are computed.
    family : str
        The family of their step.
    numbers : str
        The numbers of which the statements speak.
    assumptions : tuple of str
        What the statements need and do not prove.
    statements : tuple of Statement
        The statements.
    rounding : str
        The law of rounding errors, for floats.
    """

    carries: tuple[str, ...]
    dtypes: tuple[str, ...]
    family: str
    numbers: str
    assumptions: tuple[str, ...]
    statements: tuple[Statement, ...]
    rounding: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst of the answers; PROVEN where assumptions are needed, too."""
        return _worst({statement.verdict for statement in self.statements})


@dataclass(frozen=True)
class Certificate:
    """Statements proven of a recurrence, group by group.

    Attributes
    ----------
    function : str
        The function it was found in.
    groups : tuple of GroupProof
        One for each group, in order of the levels.
    solver : str
        Name and version of the solver.
    seconds : float
        All of it, with the translation.
    """

    function: str
    groups: tuple[GroupProof, ...]
    solver: str
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """The worst of all answers."""
        return _worst({group.verdict for group in self.groups})

    def as_data(self) -> dict[str, Any]:
        """All of it as plain data, for JSON."""
        data = asdict(self)
        for group, held in zip(data["groups"], self.groups, strict=True):
            group["verdict"] = held.verdict.value
            for said in group["statements"]:
                said["verdict"] = said["verdict"].value
                said["counterexample"] = dict(said["counterexample"])
        return {**data, "verdict": self.verdict.value}

    def __str__(self) -> str:
        lines = [f"certificate of {self.function}: {self.verdict.value}"]
        for group in self.groups:
            lines += ["", *_group_lines(group)]
        return "\n".join([*lines, "", f"{self.solver}, {self.seconds:.2f} s in all"])


def _worst(said: set[Verdict]) -> Verdict:
    for worst in (Verdict.REFUTED, Verdict.UNDECIDED):
        if worst in said:
            return worst
    return Verdict.PROVEN


def _group_lines(group: GroupProof) -> list[str]:
    names = ", ".join(f"{n}: {d}" for n, d in zip(group.carries, group.dtypes, strict=True))
    lines = [f"{names}  {group.family}, {group.numbers}"]
    for said in group.statements:
        answer = f"{said.verdict.value:<10} {1e3 * said.seconds:7.1f} ms"
        lines.append(f"    {answer}  {said.name}: {said.claim}")
        if said.counterexample:
            values = ", ".join(f"{name} = {value}" for name, value in said.counterexample)
            lines.append(f"        {values}")
        if said.note:
            lines.append(f"        {said.note}")
    for assumption in group.assumptions:
        lines.append(f"    assumed: {assumption}")
    if group.rounding:
        lines.append(f"    rounded: {group.rounding}")
    return lines
