"""The tree of a plan as a self-contained SVG picture."""

from __future__ import annotations

from html import escape

from tvm_scan import Recurrence, ScanPlan
from tvm_scan.cli.equation import number

__all__ = ["tree_svg"]

_COLUMN, _ROW, _LEFT, _TOP = 84, 64, 150, 96
_SHOWN = 8
_STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2933; }
.small { font-size: 12px; fill: #52606d; }
.title { font-size: 17px; font-weight: 600; }
.stage { font-weight: 600; }
line { stroke: #9aa5b1; stroke-width: 1.5; }
.box { fill: #e8f1fb; stroke: #3b76b8; stroke-width: 1.5; }
.combine { fill: #3b76b8; }
.pass { fill: #ffffff; stroke: #3b76b8; stroke-width: 2; }
.identity { fill: #f7c948; stroke: #b58105; stroke-width: 1.5; }
"""


class _Canvas:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.width = self.height = 0

    def _grow(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, int(x)), max(self.height, int(y))

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.parts.insert(0, f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>')
        self._grow(max(x1, x2), max(y1, y2))

    def dot(self, x: float, y: float, kind: str) -> None:
        self.parts.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="8"/>')
        self._grow(x + 10, y + 10)

    def box(self, x: float, y: float, width: float, label: str) -> None:
        self.parts.append(
            f'<rect class="box" x="{x}" y="{y}" width="{width}" height="34" rx="5"/>'
            f'<text x="{x + width / 2}" y="{y + 22}" text-anchor="middle">{escape(label)}</text>'
        )
        self._grow(x + width, y + 34)

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        self.parts.append(f'<text x="{x}" y="{y}" class="{kind}">{escape(words)}</text>')
        self._grow(x + (10 if kind == "title" else 7.6) * len(words), y + 6)

    def render(self, title: str) -> str:
        width, height = self.width + 24, self.height + 24
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">\n<title>{escape(title)}</title>\n'
            f"<style>{_STYLE}</style>\n"
            f'<rect class="page" width="{width}" height="{height}" fill="#ffffff"/>\n'
            f"{body}\n</svg>\n"
        )


def tree_svg(found: Recurrence, plan: ScanPlan) -> str:
    """Draw how the plan runs one lane.

    Parameters
    ----------
    found : Recurrence
        What runs.
    plan : ScanPlan
        How.

    Returns
    -------
    str
        An SVG document.
    """
    canvas = _Canvas()
    lanes = " x ".join(number(a.extent) for a in found.lanes) or "1"
    name = str((found.func.attrs or {}).get("global_symbol", "recurrence"))
    canvas.text(24, 34, f"{name}: {lanes} lanes of {number(found.time.extent)} steps", "title")
    canvas.text(24, 58, str(plan), "small")
    if plan.algorithm not in ("sequential", "lanes") and plan.device == "cuda":
        _block_tree(canvas, plan)
    elif plan.algorithm == "three_phase":
        _chunks(canvas, plan)
    else:
        _lanes(canvas, found, plan)
    return canvas.render(f"{name} by {plan}")


def _x(column: int) -> float:
    return _LEFT + column * _COLUMN + _COLUMN / 2


def _block_tree(canvas: _Canvas, plan: ScanPlan) -> None:
    shown = min(plan.threads_per_block, _SHOWN)
    y: float = _TOP
    canvas.text(24, y + 22, "reduce", "stage")
    for i in range(shown):
        canvas.box(_x(i) - 36, y, 72, f"{plan.items_per_thread} steps")
        canvas.text(_x(i) - 24, y - 6, f"thread {i}", "small")
    if plan.threads_per_block > shown:
        canvas.text(_x(shown) - 30, y + 22, f"… {plan.threads_per_block} threads")
    tops = [y + 34.0] * shown
    y += 34 + _ROW * 0.8
    drawn = _blelloch if plan.block_tree == "blelloch" else _doubling
    y = drawn(canvas, shown, tops, y)
    canvas.text(24, y, "replay", "stage")
    for i in range(shown):
        canvas.line(_x(i), tops[i], _x(i), y - 22)
        canvas.box(_x(i) - 36, y - 22, 72, f"{plan.items_per_thread} steps")
    canvas.text(24, y + 44, _legend(plan), "small")
    canvas.dot(30, y + 66, "combine")
    canvas.text(46, y + 71, "combine: earlier, then later", "small")
    if plan.block_tree == "blelloch":
        canvas.dot(256, y + 66, "pass")
        canvas.text(272, y + 71, "left child: takes its parent's prefix", "small")


def _blelloch(canvas: _Canvas, shown: int, tops: list[float], y: float) -> float:
    """Upsweep and downsweep from ``y`` on; the lines begin at ``tops``, which move on."""
    levels = shown.bit_length() - 1
    for level in range(levels):
        canvas.text(24, y + 5, "upsweep" if level == 0 else "", "stage")
        span = 2 << level
        for node in range(span - 1, shown, span):
            low = node - span // 2
            canvas.line(_x(low), tops[low], _x(node), y)
            canvas.line(_x(node), tops[node], _x(node), y)
            canvas.dot(_x(node), y, "combine")
            tops[node] = y
        y += _ROW
    last = shown - 1
    canvas.text(24, y + 5, "root", "stage")
    canvas.line(_x(last), tops[last], _x(last), y)
    canvas.dot(_x(last), y, "identity")
    canvas.text(_x(last) + 16, y + 5, "identity; the sum is the tile's element", "small")
    tops[last] = y
    y += _ROW
    for level in reversed(range(levels)):
        canvas.text(24, y + 5, "downsweep" if level == levels - 1 else "", "stage")
        span = 2 << level
        for node in range(span - 1, shown, span):
            low = node - span // 2
            canvas.line(_x(node), tops[node], _x(low), y)
            canvas.line(_x(node), tops[node], _x(node), y)
            canvas.line(_x(low), tops[low], _x(node), y)
            canvas.dot(_x(low), y, "pass")
            canvas.dot(_x(node), y, "combine")
            tops[low] = tops[node] = y
        y += _ROW
    return y


def _doubling(canvas: _Canvas, shown: int, tops: list[float], y: float) -> float:
    """Levels of a scan by doubling distances, then a look at the thread to the left."""
    distance = 1
    while distance < shown:
        canvas.text(24, y + 5, f"distance {distance}", "stage")
        before = list(tops)
        for i in range(distance, shown):
            canvas.line(_x(i - distance), before[i - distance], _x(i), y)
            canvas.line(_x(i), before[i], _x(i), y)
            canvas.dot(_x(i), y, "combine")
            tops[i] = y
        distance *= 2
        y += _ROW
    return y


def _legend(plan: ScanPlan) -> str:
    if plan.algorithm == "serial_tiles":
        return f"Then the next tile of {plan.tile} steps, from the carry that this tile leaves."
    return "First for every tile its element, then their scan, then every tile's replay: 3 kernels."


def _chunks(canvas: _Canvas, plan: ScanPlan) -> None:
    shown = min(plan.chunks, _SHOWN)
    rows = (("reduce", 0), ("scan", 1), ("replay", 2))
    for label, row in rows:
        y = _TOP + row * _ROW * 1.5
        canvas.text(24, y + 22, label, "stage")
        for i in range(shown):
            if row == 1:
                canvas.dot(_x(i), y + 17, "combine")
                if i:
                    canvas.line(_x(i - 1), y + 17, _x(i), y + 17)
            else:
                canvas.box(_x(i) - 36, y, 72, f"chunk {i}")
            if row:
                canvas.line(_x(i), y - _ROW * 1.5 + 34, _x(i), y + (17 if row == 1 else 0))
    if plan.chunks > shown:
        canvas.text(_x(shown) - 30, _TOP + 22, f"… {plan.chunks} chunks")


def _lanes(canvas: _Canvas, found: Recurrence, plan: ScanPlan) -> None:
    who = "thread" if plan.device == "cuda" else "lane"
    for lane in range(3):
        y = _TOP + lane * _ROW
        canvas.text(24, y + 22, f"{who} {lane}", "stage")
        for step in range(5):
            label = ("t = 0", "1", "2", "…", f"{number(found.time.extent)} - 1")[step]
            canvas.box(_x(step) - 36, y, 72, label)
            if step:
                canvas.line(_x(step - 1) + 36, y + 17, _x(step) - 36, y + 17)
