"""``tvm-scan report``: a database as numbers, then as one page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tvm.target import Target

from tvm_scan import __version__, default_plan
from tvm_scan._files import write_file
from tvm_scan._versions import tvm_version
from tvm_scan.cli.draw.report_page import render
from tvm_scan.cli.draw.tree_svg import tree_svg
from tvm_scan.cli.records import open_store, shapes_text
from tvm_scan.cli.support.failure import NO_RECORD, CommandError
from tvm_scan.cli.support.terminal import print_json, visible
from tvm_scan.meta.measure.check import recurrences_of
from tvm_scan.meta.search.operations import arithmetic_of
from tvm_scan.meta.store.entry import Entry, canonical
from tvm_scan.schedules.choose.shipped import machine_key
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["Function", "Report", "Trial", "write_report"]


@dataclass(frozen=True)
class Trial:
    """One record: when it was measured, and what."""

    record: str
    plan: str
    seconds: float
    date: str
    host: str


@dataclass
class Function:
    """The records of one function and target, in the order in which they were measured.

    Attributes
    ----------
    name, shapes, target : str
        What was tuned.
    trials : list of Trial
        In order.
    loop, default : float or None
        Seconds of the sequential and of the default plan; None where they are not on record.
    bytes, flops : float
        Of the fastest plan, by analysis.
    trees : list of str
        The fastest plan, drawn for each recurrence.
    """

    name: str
    shapes: str
    target: str
    trials: list[Trial] = field(default_factory=list)
    loop: float | None = None
    default: float | None = None
    bytes: float = 0.0
    flops: float = 0.0
    trees: list[str] = field(default_factory=list)

    @property
    def best(self) -> Trial:
        """The fastest record."""
        return min(self.trials, key=lambda trial: trial.seconds)


@dataclass
class Report:
    """Everything that the page shows.

    Attributes
    ----------
    folder : str
        Of the database.
    versions : dict of str to str
        TVM's and this package's.
    functions : list of Function
        By name, shapes and target.
    passed : list of (str, str)
        Records that are not usable here, and why; and lines that are no records.
    roof : tuple of (float, float), optional
        Bytes and operations a second that this machine reaches at most.
    """

    folder: str
    versions: dict[str, str]
    functions: list[Function]
    passed: list[tuple[str, str]]
    roof: tuple[float, float] | None = None


def write_report(folder: Path, output: Path, roof: bool, as_json: bool) -> None:
    """Print; see ``tvm-scan report --help``."""
    if not output.parent.is_dir():
        raise CommandError(f"expected a folder at {output.parent}, found none; create it")
    store = open_store(folder)
    good, others = store.usable()
    if not good:
        raise CommandError(
            f"expected records that are usable here in {folder}, found none; see tvm-scan list",
            NO_RECORD,
        )
    functions = _functions(good)
    passed = [(entry.digest[:8], reason) for entry, reason in others]
    passed += [("line", visible(text)) for text in store.rejected]
    here = Target.from_device("cpu")
    report = Report(str(folder), {"tvm": tvm_version(), "tvm_scan": __version__}, functions, passed)
    if roof and any(machine_key(e.target) == machine_key(here) for e in good):
        from tvm_scan.cli.support.roof import measured_roof

        report.roof = measured_roof(here)
    write_file(output, render(report))
    if as_json:
        rows = [
            {"function": f.name, "shapes": f.shapes, "trials": len(f.trials), "best": f.best.plan}
            for f in functions
        ]
        print_json({"page": str(output), "functions": rows, "passed_over": len(passed)})
        return
    print(f"{len(functions)} functions, {len(good)} records")
    print(f"written: {output}")


def _functions(entries: list[Entry]) -> list[Function]:
    groups: dict[tuple[int, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((canonical(entry.func)[0], str(entry.target)), []).append(entry)
    found = [_function(group) for group in groups.values()]
    return sorted(found, key=lambda one: (one.name, one.shapes, one.target))


def _function(group: list[Entry]) -> Function:
    best = min(group, key=lambda entry: entry.seconds)
    target, recurrences = best.target, recurrences_of(best.func)
    machine = machine_key(target)
    shown = f"{machine['kind']} {machine['processor']}".strip()
    name = visible((best.facts or {}).get("function", "?"))
    out = Function(name, shapes_text(best), shown)
    defaults = [default_plan(target, found) for found in recurrences]
    for entry in group:
        facts = entry.facts or {}
        plan = " + ".join(str(p) for p in entry.plans)
        about = (visible(facts.get("date", "?")), visible(facts.get("host", "?")))
        out.trials.append(Trial(entry.digest, plan, entry.seconds, *about))
        if all(p.keeps_loop for p in entry.plans):
            out.loop = min(entry.seconds, out.loop or entry.seconds)
        if entry.plans == defaults:
            out.default = min(entry.seconds, out.default or entry.seconds)
    for applied, found in zip(best.plans, recurrences, strict=False):
        out.bytes += applied.cost(found, Machine.of(target)).bytes
        out.flops += arithmetic_of(applied, target, found).flops
        out.trees.append(tree_svg(found, applied))
    return out
