"""A database as numbers: functions, their trials, and what the fastest plan gains."""

from __future__ import annotations

from tvm_scan import default_plan
from tvm_scan.cli.draw.report_page import Function, Trial
from tvm_scan.cli.draw.tree_svg import tree_svg
from tvm_scan.cli.support.terminal import visible
from tvm_scan.meta.search.operations import arithmetic_of
from tvm_scan.meta.store.entry import Entry, canonical, shapes_text
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.choose.shipped import machine_key
from tvm_scan.schedules.machine.machine import Machine


def functions_of(entries: list[Entry]) -> list[Function]:
    """The functions of records, each with its trials, by name."""
    groups: dict[tuple[int, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((canonical(entry.func)[0], str(entry.target)), []).append(entry)
    functions = [_function(group) for group in groups.values()]
    return sorted(functions, key=lambda function: (function.name, function.shapes, function.target))


def _function(group: list[Entry]) -> Function:
    best = min(group, key=lambda entry: entry.seconds)
    target, recurrences = best.target, analyse(best.func).accepted
    machine = machine_key(target)
    shown = f"{machine['kind']} {machine['processor']}".strip()
    name = visible((best.facts or {}).get("function", "?"))
    out = Function(name, shapes_text(best.func), shown)
    defaults = [default_plan(target, recurrence) for recurrence in recurrences]
    for entry in group:
        facts = entry.facts or {}
        plan = " + ".join(str(p) for p in entry.plans)
        about = (visible(facts.get("date", "?")), visible(facts.get("host", "?")))
        out.trials.append(Trial(entry.digest, plan, entry.seconds, *about))
        if all(p.keeps_loop for p in entry.plans):
            out.loop = min(entry.seconds, out.loop or entry.seconds)
        if entry.plans == defaults:
            out.default = min(entry.seconds, out.default or entry.seconds)
    for applied, recurrence in zip(best.plans, recurrences, strict=False):
        out.bytes += applied.cost(recurrence, Machine.of(target)).bytes
        out.flops += arithmetic_of(applied, target, recurrence).flops
        out.trees.append(tree_svg(recurrence, applied))
    return out
