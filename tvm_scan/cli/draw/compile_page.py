"""The page of ``tvm-scan compile --report``: what was found in a model, refused, and done."""

from __future__ import annotations

from html import escape
from typing import Any

from tvm_scan.cli.draw.page import document, table


def render(name: str, manifest: dict[str, Any], notes: list[str]) -> str:
    """The page as text.

    Parameters
    ----------
    name : str
        Of the model.
    manifest : dict
        Of the artifact: ``target``, ``versions`` and ``scans``.
    notes : list of str
        What the passes said.

    Returns
    -------
    str
        HTML.
    """
    rows = []
    for scan in manifest["scans"]:
        if "refused" in scan:
            cells = [scan["function"], f"refused: {scan['refused']}", "", scan["detail"]]
        else:
            cells = [scan["function"], ", ".join(scan["families"]), str(scan["steps"])]
            cells.append(scan["plan"])
        rows.append([escape(cell) for cell in cells[:3]] + [f"<code>{escape(cells[3])}</code>"])
    versions = ", ".join(f"{key} {value}" for key, value in manifest["versions"].items())
    parts = [
        f"<h1>{escape(name)}</h1>",
        f"<p><code>{escape(manifest['target'])}</code></p>",
        f"<p>{escape(versions)}</p>",
        "<h2>Recurrences</h2>",
        table(["function", "family", "steps", "plan or reason"], rows)
        if rows
        else "<p>No recurrence was found.</p>",
    ]
    if notes:
        # A pass that runs twice says everything twice.
        items = "".join(f"<li>{escape(note)}</li>" for note in dict.fromkeys(notes))
        parts += ["<h2>What was done</h2>", f'<ul class="notes">{items}</ul>']
    return document(name, parts)
