"""The frame of the pages that commands write: light and dark, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #52606d; --line: #d9e2ec; --page: #fff;
  --card: #f5f7fa; --c1: #2b6cb0; --c2: #c05621; --c3: #2f855a; --c4: #9aa5b1; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --soft: #9aa5b1; --line: #3e4c59;
  --page: #16191d; --card: #1f242a; --c1: #63b3ed; --c2: #f6ad55; --c3: #68d391; --c4: #7b8794; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0 0 .5rem; } p { color: var(--soft); margin: .25rem 0 1rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; } th { color: var(--soft); font-weight: 600; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: .85em ui-monospace, monospace; overflow-wrap: anywhere; }
h1, h2, h3, p, li, summary { overflow-wrap: anywhere; } .notes { padding-left: 1.25rem; }
td code { display: inline-block; min-width: min(13rem, 60vw); }
td:first-child code { min-width: 0; white-space: nowrap; }
.name { display: inline-block; max-width: 18rem; min-width: 8rem; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(30rem, 100%), 1fr));
  gap: 1rem; } .card { background: var(--card); border-radius: .6rem; padding: 1rem; min-width: 0; }
.card.plot { max-width: 46rem; } .chart { margin: 0; }
.chart svg { display: block; width: 100%; height: auto; }
.chart text { font-size: 14px; fill: var(--soft); }
.chart .small { font-size: 14px; fill: var(--ink); } .grid { stroke: var(--line); }
@media (max-width: 36rem) { .card { padding: .75rem; } .chart text, .chart .small {
  font-size: 21px; } .l1, .l2, .l3, .l4 { stroke-width: 3; } .tight table { font-size: .78rem; }
  .tight th, .tight td { padding-right: .45rem; } }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.25rem; margin: 0; font-size: .85rem; }
.key::before { content: ""; display: inline-block; width: .8em; height: .55em;
  margin-right: .45em; background: currentcolor; } .key { color: var(--soft); }
.b1::before { color: var(--c1); } .b2::before { color: var(--c2); }
.b3::before { color: var(--c3); } .b4::before { color: var(--c4); }
.l1 { stroke: var(--c1); } .l2 { stroke: var(--c2); } .l3 { stroke: var(--c3); }
.l4 { stroke: var(--c4); } .l1, .l2, .l3, .l4 { fill: none; stroke-width: 2; }
.c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); } .c4 { fill: var(--c4); }
.l3 { stroke-dasharray: 8 6; }
.tree { margin-bottom: 1rem; } .tree div { overflow-x: auto; } .tree img { display: block; }
summary { cursor: pointer; color: var(--soft); }
form { display: flex; flex-wrap: wrap; gap: .75rem; align-items: center; margin: 1rem 0; }
input, button { font: inherit; padding: .3rem .6rem; border: 1px solid var(--line);
  border-radius: .4rem; background: var(--card); color: var(--ink); } input { width: 7rem; }
button { cursor: pointer; } .chart:empty { display: none; }
"""


def document(title: str, parts: Sequence[str], module: str = "") -> str:
    """A whole page.

    Parameters
    ----------
    title : str
        Plain text.
    parts : sequence of str
        HTML of the body.
    module : str
        Address of a module of JavaScript in the page's folder, which may load what lies there.
    """
    policy, script = "", ""
    if module:
        policy = " script-src 'self'; connect-src 'self';"
        script = (
            '<link rel="icon" href="data:,">\n'  # else a browser asks the server for one
            f'<script type="module" src="{escape(module)}"></script>\n'
        )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
        f"{policy} style-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{script}</head>\n"
        f"<body>\n{chr(10).join(parts)}\n</body>\n</html>\n"
    )


def table(heads: list[str], rows: list[list[str]], numbers: tuple[int, ...] = ()) -> str:
    """A table that scrolls by itself where the window is narrow.

    Parameters
    ----------
    heads : list of str
        HTML of the first line.
    rows : list of list of str
        HTML of the cells.
    numbers : tuple of int
        Columns to align to the right.
    """

    def line(cells: list[str], tag: str) -> str:
        shown = (
            f"<{tag}{' class=n' if i in numbers else ''}>{cell}</{tag}>"
            for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(shown)}</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    head = line(heads, "th")
    return f'<div class="wide"><table><thead>{head}</thead><tbody>\n{body}</tbody></table></div>'
