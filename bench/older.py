"""Which pages print plans that are not today's defaults, and so are older than the code.

``python -m bench.older`` lists them; ``--write`` puts the note at the head of their pages, and
takes it away where it is no longer so. tests/docs/test_figures.py holds the pages to it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from tvm.target import Target

from bench import defaults, tuned
from bench.cpu_loops import loop_of
from bench.search import WORKLOADS as SEARCHED
from tvm_scan import Recurrence, default_plan, extract
from tvm_scan.schedules.machine.cpu_chip import OF_TARGET, CpuChip
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["NOTE", "differing", "main", "pages", "with_note"]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
NOTE = (
    "*Older than the code: some of the plans behind these figures are not today's defaults;\n"
    "`python -m bench.older` lists them.*"
)
_MEASURED = "<!-- measured -->\n"


def pages() -> dict[str, tuple[str, ...]]:
    """Results, and the pages that print them."""
    return {
        "cpu.json": ("docs/cpu.md", "README.md"),
        "defaults.json": ("docs/defaults.md", "README.md"),
        "tuned.json": ("docs/tuned.md",),
        "search.json": ("docs/tuning.md",),
    }


def differing(name: str, found: dict[str, Any]) -> list[str]:
    """The rows of a result whose default plan is another one today, in words.

    Parameters
    ----------
    name : str
        A file of ``pages``.
    found : dict
        What it holds.
    """
    target, machine = _machine(found["machine"])
    rows = {"cpu": _cpu, "defaults": _defaults, "tuned": _tuned, "search": _search}
    out = []
    for case, make, measured in rows[Path(name).stem](found):
        if make is None:
            out.append(f"{case}: no longer measured")
            continue
        now = str(default_plan(target, _recurrence(name, case, make), machine))
        if now != measured:
            out.append(f"{case}: measured {measured}, today {now}")
    return out


#: By result and case: a page is compared several times.
_RECURRENCES: dict[tuple[str, str], Recurrence] = {}


def _recurrence(name: str, case: str, make: Callable[[], Any]) -> Recurrence:
    if (name, case) not in _RECURRENCES:
        recurrence = extract(make())
        assert isinstance(recurrence, Recurrence), case
        _RECURRENCES[name, case] = recurrence
    return _RECURRENCES[name, case]


def with_note(text: str, older: bool) -> str:
    """A page with the note at the head of its figures, or without it.

    That is behind its title, or behind the mark of the part that is measured.
    """
    before, begin, rest = text.partition(f"{NOTE}\n\n")
    if begin:
        text = before + rest
    if not older:
        return text
    title, mark, rest = text.partition(_MEASURED)
    if mark:
        return f"{title}{mark}{NOTE}\n\n{rest}"
    title, _, rest = text.partition("\n\n")
    return f"{title}\n\n{NOTE}\n\n{rest}"


def _machine(about: dict[str, Any]) -> tuple[Target, Machine]:
    """The machine of a result, whichever this one is."""
    target = Target(json.loads(about["target"]))
    machine = replace(Machine.of(target), cores=about["cores"])
    constants = about.get("constants") or {}
    if constants.keys() | OF_TARGET == asdict(machine.chip).keys():
        machine = replace(machine, chip=CpuChip(**constants))
    return target, machine


Rows = Iterator[tuple[str, Callable[[], Any] | None, str]]


def _cpu(found: dict[str, Any]) -> Rows:
    for row in (*found["rows"], *found["growth"]):
        kind, shape = row["workload"]["kind"], tuple(row["workload"]["shape"])
        yield f"{kind} {shape}", partial(loop_of, kind, shape), row["plan"]


def _defaults(found: dict[str, Any]) -> Rows:
    known = {case.label: case for case in _cases()}
    for row in found["rows"]:
        case = known.get(row["case"])
        yield row["case"], case and partial(getattr, case, "func"), row["plan"]


@cache
def _cases() -> list[defaults.Case]:
    return list(defaults.cases(False))


def _tuned(found: dict[str, Any]) -> Rows:
    known = {case.label: case for case in (tuned.Case(*w) for w in tuned.WORKLOADS)}
    for row in found["rows"]:
        case = known.get(row["case"])
        yield row["case"], case and partial(getattr, case, "func"), row["default"]


def _search(found: dict[str, Any]) -> Rows:
    for name, row in found["workloads"].items():
        # The plan is named by its time alone.
        named = [plan for plan, time in row["times"].items() if time == row["default_seconds"]]
        yield name, SEARCHED.get(name), named[0] if named else "none"


def main(argv: list[str] | None = None) -> int:
    """Print the rows that differ; with ``--write``, put notes on pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the note on pages, or take it")
    args = parser.parse_args(argv)
    older: dict[str, bool] = {}
    for name, shown in pages().items():
        rows = differing(name, json.loads((RESULTS / name).read_text()))
        print("\n".join([f"{name}: {len(rows)} plans", *(f"  {row}" for row in rows)]))
        for page in shown:
            older[page] = older.get(page, False) or bool(rows)
    for page, is_older in older.items() if args.write else ():
        path = ROOT / page
        path.write_text(with_note(path.read_text(encoding="utf-8"), is_older), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
