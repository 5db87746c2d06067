"""The page of ``tvm-scan compile --target webgpu``, whose script fills it in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tvm_scan.cli.draw.page import document

_HEADS = ("steps", "loop, ms", "WebGPU, ms", "error", "")


def render(name: str, equations: Sequence[str], families: Sequence[str], plan: str) -> str:
    """The page as text; its file is to lie beside ``page.js``.

    Parameters
    ----------
    name : str
        Of the function or the model.
    equations : sequence of str
        Of its steps.
    families : sequence of str
        Of its recurrences.
    plan : str
        Of its kernels.

    Returns
    -------
    str
        HTML.
    """
    lines = "".join(f"<li><code>{escape(line.strip())}</code></li>" for line in equations)
    heads = "".join(f"<th{' class=n' if i < 4 else ''}>{h}</th>" for i, h in enumerate(_HEADS))
    parts = [
        f"<h1>{escape(name)}</h1>",
        '<p id="adapter" role="status">Loading. If this stays, the page was opened as a file: '
        "serve its folder, with <code>python -m http.server</code>, and open it from there.</p>",
        f"<p>{escape(', '.join(families))}: <code>{escape(plan)}</code></p>",
        f'<ul class="notes">{lines}</ul>' if lines else "",
        '<form id="sizes"></form>',
        '<div class="card plot"><div class="chart" id="chart"></div><p class="legend">'
        '<span class="key b1">WebGPU</span><span class="key b2">loop in JavaScript</span></p>'
        "</div>",
        f'<div class="wide tight"><table><thead><tr>{heads}</tr></thead>'
        '<tbody id="rows"></tbody></table></div>',
        "<p>The loop runs in JavaScript. Times are the least of some runs, without copies. The "
        "error is the largest difference from the loop in 64 bits over its largest value.</p>",
    ]
    return document(name, [part for part in parts if part], module="page.js")
