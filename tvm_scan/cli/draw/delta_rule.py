"""A delta rule for people and as plain data."""

from __future__ import annotations

from typing import Any

from tvm_scan.cli.draw.equation import number
from tvm_scan.delta_rule import DeltaRule, Term
from tvm_scan.text import as_text


def describe_rule(rule: DeltaRule) -> dict[str, Any]:
    """Return a delta rule as plain data."""
    name = str(rule.state.name)
    return {
        "function": str((rule.func.attrs or {}).get("global_symbol", "main")),
        "family": "delta rule",
        "time": {"axis": rule.time.var.name, "extent": number(rule.time.extent)},
        "lanes": [{"axis": a.var.name, "extent": number(a.extent)} for a in rule.lanes],
        "state": {
            "name": name,
            "dtype": rule.dtype,
            "rows": number(rule.rows.extent),
            "columns": number(rule.columns.extent),
            "index": [as_text(index) for index in rule.indices],
            "first": name if rule.initial is None else as_text(rule.initial),
        },
        "gate": as_text(rule.gate),
        "column_gate": None if rule.column_gate is None else as_text(rule.column_gate),
        "terms": [_term(term) for term in rule.terms],
        "reads": [
            {
                "name": read.value.name,
                "weight": as_text(read.weight),
                "of": "the state after the step" if read.after else "the state before the step",
            }
            for read in rule.reads
        ],
        "stores": [
            f"{store.buffer.name}[{', '.join(map(as_text, store.index))}] = {as_text(store.value)}"
            for store in rule.stores
        ],
    }


def _term(term: Term) -> dict[str, str | int | None]:
    return {
        "vector": as_text(term.into),
        "drive": as_text(term.drive),
        "rate": None if term.source is None else as_text(term.rate),
        "read_vector": None if term.source is None else as_text(term.source),
        "terms_before": term.added,
    }


def rule_lines(report: dict[str, Any]) -> list[str]:
    """Lines of a report of ``describe_rule``."""
    state, time = report["state"], report["time"]
    lanes = ", ".join(f"{a['axis']} < {a['extent']}" for a in report["lanes"]) or "one"
    lines = [
        f"function  {report['function']}",
        f"time      {time['axis']} < {time['extent']}",
        f"lanes     {lanes}",
        f"state     {state['name']}[{', '.join(state['index'])}]: {state['dtype']}, "
        f"{state['rows']} rows by {state['columns']} columns, first {state['first']}",
        f"family    {report['family']}: {state['name']} at t  =  gate {state['name']} + the sum of "
        "p (w + r (e . S)), with S at t - 1",
        f"    gate      {report['gate']}",
    ]
    if report["column_gate"] is not None:
        lines.append(f"    columns'  {report['column_gate']}")
    for term in report["terms"]:
        lines.append(f"    p         {term['vector']}")
        lines.append(f"      w       {term['drive']}")
        if term["rate"] is not None:
            lines.append(f"      r       {term['rate']}")
            count = term["terms_before"]
            of = f", of the gated S with {count} of the terms" if count else ""
            lines.append(f"      e       {term['read_vector']}{of}")
    lines.append("outputs")
    lines += [f"    {store}" for store in report["stores"]]
    lines += [
        f"      {read['name']} = the sum over rows of {read['weight']} times {read['of']}"
        for read in report["reads"]
    ]
    return lines
