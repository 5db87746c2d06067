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
    gpu_page,
    machine_code_page,
    model_pages,
    search_page,
    targets_pages,
    torch_page,
    tuned,
)
from bench.older import NOTE, RESULTS, ROOT, with_note

__all__ = ["PAGES", "main", "printed"]

#: Pages, and the result that each is printed of.
PAGES = {
    "docs/ablation.md": "ablation",
    "docs/cpu.md": "cpu",
    "docs/defaults.md": "defaults",
    "docs/torch/delta_measurements.md": "delta",
    "docs/cuda/machine_code.md": "machine_code",
    "docs/cuda/measurements.md": "gpu",
    "docs/relax_models.md": "relax_models",
    "docs/tuning.md": "search",
    **dict.fromkeys(targets_pages.PAGES, "targets"),
    "docs/torch/measurements.md": "torch",
    "docs/tuned.md": "tuned",
}


def printed(page: str, found: dict[str, Any]) -> str:
    """A page of a result; the note that it is older than the code stays as it is.

    Parameters
    ----------
    page : str
        A key of ``PAGES``.
    found : dict
        The result.
    """
    name, path = PAGES[page], ROOT / page
    if name == "targets":
        return targets_pages.page(path, found)
    now, about = path.read_text(encoding="utf-8"), found["machine"]
    if name == "search":
        return search_page.with_part(found, now)
    if name == "machine_code":
        return machine_code_page.page(found)
    if name == "torch":
        return torch_page.with_part(path, "torch_bench", torch_page.passes(found))
    if name == "delta":
        # One file for each kind of processor.
        others = [json.loads(p.read_text("utf-8")) for p in sorted(RESULTS.glob("delta_*.json"))]
        text = "\n\n".join(map(delta_page.tables, (found, *others)))
        return torch_page.with_part(path, "bench_delta", text)
    if name == "gpu":
        states, choice, others = (
            json.loads((RESULTS / f"gpu_{part}.json").read_text("utf-8"))
            for part in ("states", "choice", "choice_states")
        )
        text = "\n\n".join(
            [
                gpu_page.tables(found),
                "## More sizes",
                gpu_page.tables(states),
                "## The defaults",
                *map(gpu_page.choices, (choice, others)),
            ]
        )
        return torch_page.with_part(path, "bench_gpu", text)
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
    for page, name in PAGES.items():
        found = json.loads((RESULTS / f"{name}.json").read_text())
        (ROOT / page).write_text(printed(page, found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
