"""Seconds and tests of each folder, from pytest's reports to docs/tests.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tests.support import environment, tiers

#: The outcomes that count a test; a part of it (set-up, tear-down) adds seconds alone.
_OUTCOMES = ("passed", "failed", "skipped", "xfailed", "error")


@dataclass
class Taken:
    """What a folder took: its tests and their seconds, set-up included."""

    tests: int = 0
    seconds: float = 0.0


def of_reports(stats: Mapping[str, Iterable[Any]]) -> dict[str, Taken]:
    """Return what each folder took, of the reports of a whole session."""
    found: dict[str, Taken] = {}
    for outcome, reports in stats.items():
        for report in reports:
            seconds = getattr(report, "duration", None)
            parts = getattr(report, "nodeid", "").split("/")
            if seconds is None or len(parts) < 3:
                continue
            taken = found.setdefault(parts[1], Taken())
            taken.seconds += seconds
            taken.tests += outcome in _OUTCOMES
    return dict(sorted(found.items()))


def as_text(found: Mapping[str, Taken]) -> str:
    """Return a line for each folder, and their sum."""
    rows = [*found.items(), ("all", total(found))]
    return "\n".join(f"{name:10} {t.tests:6} tests {t.seconds:8.1f} s" for name, t in rows)


def total(found: Mapping[str, Taken]) -> Taken:
    """Return the sum of all folders."""
    return Taken(sum(t.tests for t in found.values()), sum(t.seconds for t in found.values()))


def keep(tier: str, found: Mapping[str, Taken], wall: float, workers: int) -> None:
    """Write what a tier took beside the caches, for ``python -m tests.table``."""
    path = environment.cache_folder() / "durations.json"
    kept = kept_tiers()
    folders = {name: asdict(taken) for name, taken in found.items()}
    kept[tier] = {"wall": wall, "workers": workers, "folders": folders}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1), encoding="utf-8")


def kept_tiers() -> dict[str, Any]:
    """Return what was kept of each tier: wall seconds, workers, and its folders."""
    path = environment.cache_folder() / "durations.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {tier: kept[tier] for tier in tiers.TIERS if tier in kept}
