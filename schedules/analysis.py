"""Analysis of a function: each loop nest is a recurrence, a delta rule or refused, said once.

Choice, search, records, dispatch and passes over models all ask about the same function.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule, TimeLoop
from tvm_scan.extraction import extract_nest, independent, most_telling, root_nests
from tvm_scan.recurrence import Recurrence, Refusal
from tvm_scan.schedules.delta.rule import as_delta, with_two_loops
from tvm_scan.schedules.splice import ensure_blocks

#: What a loop nest is.
Finding = Recurrence | DeltaRule | Refusal


@dataclass(frozen=True, eq=False)
class Analysis:
    """The loop nests of a function, and what each is.

    Attributes
    ----------
    func : PrimFunc
        The function, with a block around each nest.
    nests : tuple of Stmt
        Statements of its root block, in order.
    """

    func: tirx.PrimFunc
    nests: tuple[Any, ...]

    @cached_property
    def scans(self) -> tuple[Recurrence | Refusal, ...]:
        """A recurrence for each nest, or why it is none."""
        return tuple(
            extract_nest(self.func, nest) if _reads_what_it_writes(nest) else independent(nest)
            for nest in self.nests
        )

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """A recurrence or a delta rule for each nest, or why it is none of them."""
        return tuple(
            as_delta(self.func, nest, finding) if isinstance(finding, Refusal) else finding
            for nest, finding in zip(self.nests, self.scans, strict=True)
        )

    @cached_property
    def accepted(self) -> tuple[TimeLoop, ...]:
        """The nests that are recurrences or delta rules, in order."""
        return tuple(finding for finding in self.findings if not isinstance(finding, Refusal))

    @cached_property
    def deltas(self) -> tuple[DeltaRule, ...]:
        """The nests that are delta rules, in order."""
        return tuple(finding for finding in self.findings if isinstance(finding, DeltaRule))

    @cached_property
    def recurrences(self) -> tuple[Recurrence, ...]:
        """The nests that are recurrences, in order."""
        return tuple(scan for scan in self.scans if isinstance(scan, Recurrence))


# A function cannot change while it is kept here: TVM copies what somebody else holds.
@lru_cache(maxsize=256)
def analyse(func: tirx.PrimFunc) -> Analysis:
    """Analyse a function; the same object is analysed once.

    Parameters
    ----------
    func : PrimFunc
        A TensorIR function, with blocks or without.
    """
    blocked = ensure_blocks(func)
    analysis = Analysis(blocked, tuple(root_nests(blocked)))
    for nest, finding in zip(analysis.nests, analysis.findings, strict=True):
        if not isinstance(finding, Refusal) or finding.loops is None:
            continue
        again = analyse(with_two_loops(blocked, nest, finding.loops))
        if not any(isinstance(other, Refusal) for other in again.findings):
            return again
    return analysis


def finding_at(func: tirx.PrimFunc, nest: Any) -> Finding:
    """Analyse one nest of a function that has blocks, such as one that was annotated.

    Parameters
    ----------
    func : PrimFunc
        The function.
    nest : Stmt
        One of its nests.
    """
    finding = extract_nest(func, nest)
    return as_delta(func, nest, finding) if isinstance(finding, Refusal) else finding


def first_loop(func: tirx.PrimFunc) -> Finding:
    """Return the first recurrence of a function, else its first delta rule, else the refusal."""
    refused = []
    for nest in root_nests(func):
        finding = extract_nest(func, nest)
        if isinstance(finding, Recurrence):
            return finding
        refused.append(finding)
    deltas = analyse(func).deltas
    return deltas[0] if deltas else most_telling(refused)


def _reads_what_it_writes(nest: Any) -> bool:
    """Return whether it can be a recurrence; most nests of a model cannot, and this is cheap."""
    written = tir.buffers_stored(nest)
    return any(buffer in written for buffer in tir.buffers_loaded(nest).keys())
