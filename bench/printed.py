"""The pages of committed results, printed anew without measuring.

``python -m bench.printed`` writes them; tests/docs/test_figures.py holds the pages to it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from bench import (
    ablation,
    cpu_page,
    defaults,
    delta_page,
    machine_code_page,
    model_pages,
    search_page,
    targets,
    torch_page,
    tuned,
)
from bench.older import NOTE, RESULTS, ROOT, with_note

__all__ = ["PAGES", "main", "printed"]

#: Results, and the page that is printed of each.
PAGES = {
    "ablation": "docs/ablation.md",
    "cpu": "docs/cpu.md",
    "defaults": "docs/defaults.md",
    "delta": "docs/torch/delta_measurements.md",
    "machine_code": "docs/cuda/machine_code.md",
    "relax_models": "docs/relax_models.md",
    "search": "docs/tuning.md",
    "targets": "docs/targets.md",
    "torch": "docs/torch/measurements.md",
    "tuned": "docs/tuned.md",
}


def printed(name: str, found: dict[str, Any]) -> str:
    """The page of a result; the note that it is older than the code stays as it is.

    Parameters
    ----------
    name : str
        A key of ``PAGES``.
    found : dict
        The result.
    """
    path = ROOT / PAGES[name]
    now, about = path.read_text(encoding="utf-8"), found["machine"]
    if name == "search":
        return search_page.with_part(found, now)
    if name == "machine_code":
        return machine_code_page.page(found)
    if name == "targets":
        return targets.page(found)
    if name == "torch":
        return torch_page.with_part(path, "torch_bench", torch_page.passes(found))
    if name == "delta":
        return torch_page.with_part(path, "bench_delta", delta_page.tables(found))
    rows = found["rows"]
    if name == "cpu":
        text = cpu_page.page(about, rows, found["growth"])
    elif name == "ablation":
        text = ablation.page(about, rows)
    elif name == "relax_models":
        text = model_pages.page([model_pages.Row(**row) for row in rows], [], about, True)
    elif name == "defaults":
        text = defaults.page([defaults.Row(**row) for row in rows], about)
    else:
        text = tuned.page([tuned.Row(**row) for row in rows], about)
    return with_note(text, NOTE in now)


def main() -> int:
    """Write every page."""
    for name, page in PAGES.items():
        found = json.loads((RESULTS / f"{name}.json").read_text())
        (ROOT / page).write_text(printed(name, found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
