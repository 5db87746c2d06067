"""Records as their manifest describes them, for a table of them without TVM.

Who writes a record has checked it, and says so: its *summary* (shapes, plans, the function's hash)
has a seal, which names the record's text and its program's. A record whose seal is another one was
changed by other hands, and TVM has to look at it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tvm_scan._versions import why_foreign
from tvm_scan.meta.store.files import reading
from tvm_scan.meta.store.host import host_facts
from tvm_scan.meta.store.rows import Record, program_digest, read_content, times_of


@dataclass(frozen=True)
class Summary:
    """Facts that a table shows of a record.

    Attributes
    ----------
    digest : str
        Its name.
    seconds : float
        Median time.
    times : list of float
        Seconds of each measurement.
    target : dict
        What it was measured on, as TVM writes it.
    facts : dict
        Provenance.
    shapes : str
        Of the parameters, each once; ``?`` where it cannot be read.
    plans : list of str
        One for each recurrence; none where it cannot be read.
    function : str
        Structural hash of the function without its name and marks.
    is_loop : bool
        Whether its plans leave every loop as it was written.
    reason : str or None
        Why it is not usable here.
    """

    digest: str
    seconds: float
    times: list[float]
    target: dict[str, Any]
    facts: dict[str, Any]
    shapes: str
    plans: list[str]
    function: str
    is_loop: bool
    reason: str | None

    @classmethod
    def of(
        cls,
        digest: str,
        record: list[Any],
        facts: Mapping[str, Any] | None,
        about: Mapping[str, Any],
        reason: str | None,
    ) -> Summary:
        """Make one of a record's text, its facts, and what was found out about it."""
        shown_apart = ("summary", "samples")
        return cls(
            digest=digest,
            seconds=median(float(t) for t in record[1]),
            times=times_of(record, facts),
            target=record[2],
            facts={k: v for k, v in (facts or {}).items() if k not in shown_apart},
            shapes=about.get("shapes", "?"),
            plans=about.get("plans", []),
            function=about.get("function", ""),
            is_loop=about.get("loop", False),
            reason=reason,
        )

    @property
    def name(self) -> str:
        """Name of the function."""
        return str(self.facts.get("function", "?"))


def sealed(digest: str, program: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """A summary with its seal.

    Parameters
    ----------
    digest : str
        Of the record.
    program : str
        ``program_digest`` of its workload.
    about : mapping
        What was found out about it; see ``Entry.about``.

    Returns
    -------
    dict
        For the manifest.
    """
    text = json.dumps([digest, program, dict(about)], sort_keys=True)
    return {**about, "seal": hashlib.sha256(text.encode()).hexdigest()[:16]}


def read_summaries(folder: Path) -> list[Summary] | None:
    """Describe the records of a folder by its manifest.

    Parameters
    ----------
    folder : Path
        With a database.

    Returns
    -------
    list of Summary, or None
        None where TVM has to look: a line is no record, or a summary has no seal of ours.

    Raises
    ------
    RecordError
        If a file cannot be opened.
    """
    with reading(folder):
        content = read_content(folder)
    summaries = [_described(record) for record in content.records]
    known = [summary for summary in summaries if summary is not None]
    return None if content.bad or len(known) < len(summaries) else known


def _described(record: Record) -> Summary | None:
    facts = record.facts
    if facts is None:
        return Summary.of(record.digest, record.json, None, {}, why_foreign(None))
    about = facts.get("summary")
    if not isinstance(about, dict) or facts.get("program") != program_digest(record.workload):
        return None
    bare = {key: value for key, value in about.items() if key != "seal"}
    if about != sealed(record.digest, facts["program"], bare):
        return None
    return Summary.of(record.digest, record.json, facts, bare, why_foreign(facts))


def best_of(records: list[Summary], asked: str) -> Summary | None:
    """The fastest usable record of what was tuned on this machine by the same words.

    Parameters
    ----------
    records : list of Summary
        All of a database: one that was tuned by other words may be of the same function.
    asked : str
        What the fact ``asked`` says of records that were tuned so. The words must name a function
        and a target of this package and machine, which no file can change.

    Returns
    -------
    Summary or None
        None where nothing was tuned so; that says nothing of the function.
    """
    here = {"asked": asked, **host_facts()}
    usable = [r for r in records if r.reason is None]
    same = next((r for r in usable if here.items() <= r.facts.items()), None)
    if same is None:
        return None
    of_function = [r for r in usable if r.function == same.function and r.target == same.target]
    return min(of_function, key=lambda r: r.seconds)
