"""The tree of a plan as a self-contained SVG picture."""

from __future__ import annotations

from html import escape

from tvm_scan import ScanPlan
from tvm_scan.cli.draw.equation import lane_counts, number
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.schedules.picture import (
    Chunks,
    Drawing,
    Serial,
    Tiles,
    Tree,
    VectorScan,
)

_COLUMN, _ROW, _LEFT, _TOP = 84, 64, 150, 96
_SHOWN = 8
_STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2933; }
.small { font-size: 12px; fill: #52606d; }
.title { font-size: 17px; font-weight: 600; }
.level { font-weight: 600; }
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


def tree_svg(recurrence: TimeLoop, plan: ScanPlan) -> str:
    """Draw how the plan runs one lane.

    Parameters
    ----------
    recurrence : Recurrence or DeltaRule
        What runs.
    plan : ScanPlan
        How.

    Returns
    -------
    str
        An SVG document.
    """
    canvas = _Canvas()
    lanes = lane_counts(recurrence)
    name = str((recurrence.func.attrs or {}).get("global_symbol", "recurrence"))
    canvas.text(24, 34, f"{name}: {lanes} lanes of {number(recurrence.time.extent)} steps", "title")
    canvas.text(24, 58, str(plan), "small")
    y: float = _TOP
    for drawing in plan.picture(recurrence).drawings:
        y = _draw(canvas, drawing, number(recurrence.time.extent), y) + _ROW * 0.8
    return canvas.render(f"{name} by {plan}")


def _draw(canvas: _Canvas, drawing: Drawing, length: str, y: float) -> float:
    """Draw from ``y`` on; return where the drawing ends."""
    match drawing:
        case Serial():
            return _serial(canvas, drawing.who, length, y)
        case Chunks():
            return _chunks(canvas, drawing.count, y)
        case Tree():
            return _block_tree(canvas, drawing, y)
        case VectorScan():
            return _vector(canvas, drawing, y)
        case Tiles():
            return _tile(canvas, drawing.lanes, y)


def _x(column: int) -> float:
    return _LEFT + column * _COLUMN + _COLUMN / 2


def _block_tree(canvas: _Canvas, tree: Tree, y: float) -> float:
    shown = min(tree.threads, _SHOWN)
    canvas.text(24, y + 22, "reduce", "level")
    for i in range(shown):
        canvas.box(_x(i) - 36, y, 72, f"{tree.items} steps")
        canvas.text(_x(i) - 24, y - 6, f"thread {i}", "small")
    if tree.threads > shown:
        canvas.text(_x(shown) - 30, y + 22, f"… {tree.threads} threads")
    tops = [y + 34.0] * shown
    y += 34 + _ROW * 0.8
    drawn = _blelloch if tree.kind == "blelloch" else _doubling
    y = drawn(canvas, tree.threads, tops, y)
    canvas.text(24, y, "replay", "level")
    for i in range(shown):
        canvas.line(_x(i), tops[i], _x(i), y - 22)
        canvas.box(_x(i) - 36, y - 22, 72, f"{tree.items} steps")
    canvas.text(24, y + 44, tree.legend, "small")
    canvas.dot(30, y + 66, "combine")
    canvas.text(46, y + 71, "combine: earlier, then later", "small")
    if tree.kind == "blelloch":
        canvas.dot(256, y + 66, "pass")
        canvas.text(272, y + 71, "left child: takes its parent's prefix", "small")
    return y + 76


def _vector(canvas: _Canvas, vector: VectorScan, y: float) -> float:
    """The cells of a vector of time, each with its steps, and the levels of their scan."""
    shown, run = min(vector.cells, _SHOWN), vector.run
    canvas.text(24, y + 22, "vector", "level")
    for i in range(shown):
        steps = f"t+{i * run}" if run == 1 else f"t+{i * run}…{i * run + run - 1}"
        canvas.box(_x(i) - 38, y, 76, steps)
        canvas.text(_x(i) - 18, y - 6, f"cell {i}", "small")
    if vector.cells > shown:
        canvas.text(_x(shown) - 30, y + 22, f"… {vector.cells} cells")
    tops = [y + 34.0] * shown
    y = _doubling(canvas, vector.cells, tops, y + 34 + _ROW * 0.8)
    canvas.text(24, y, "carry", "level")
    for i in range(shown):
        canvas.line(_x(i), tops[i], _x(i), y)
    canvas.text(_x(0) - 36, y + 22, "Every cell begins with the carry before the vector.", "small")
    canvas.dot(30, y + 46, "combine")
    canvas.text(46, y + 51, "combine: earlier, then later", "small")
    return y + 56


def _tile(canvas: _Canvas, lanes: int, y: float) -> float:
    """Rows of lanes in memory, and the same cells as vectors of lanes."""
    canvas.text(24, y + 22, "memory", "level")
    canvas.text(_x(5) - 36, y - 6, "registers: a vector for each step", "small")
    canvas.text(_x(0) - 36, y - 6, "a row for each lane, along time", "small")
    for row in range(3):
        top = y + row * 44
        for column in range(3):
            canvas.box(_x(column) - 36, top, 72, f"h{row},{column}")
            canvas.box(_x(column + 5) - 36, top, 72, f"h{column},{row}")
    canvas.line(_x(2) + 44, y + 61, _x(5) - 52, y + 61)
    canvas.text(_x(5) - 56, y + 66, "▶", "small")
    canvas.text(_x(3) - 20, y + 52, "transposed", "small")
    canvas.text(_x(0) - 36, y + 154, f"{lanes} lanes in a tile", "small")
    return y + 160


def _blelloch(canvas: _Canvas, _: int, tops: list[float], y: float) -> float:
    """Upsweep and downsweep from ``y`` on; the lines begin at ``tops``, which move on."""
    shown = len(tops)
    levels = shown.bit_length() - 1
    for level in range(levels):
        canvas.text(24, y + 5, "upsweep" if level == 0 else "", "level")
        span = 2 << level
        for node in range(span - 1, shown, span):
            low = node - span // 2
            canvas.line(_x(low), tops[low], _x(node), y)
            canvas.line(_x(node), tops[node], _x(node), y)
            canvas.dot(_x(node), y, "combine")
            tops[node] = y
        y += _ROW
    last = shown - 1
    canvas.text(24, y + 5, "root", "level")
    canvas.line(_x(last), tops[last], _x(last), y)
    canvas.dot(_x(last), y, "identity")
    canvas.text(_x(last) + 16, y + 5, "identity; the sum is the tile's element", "small")
    tops[last] = y
    y += _ROW
    for level in reversed(range(levels)):
        canvas.text(24, y + 5, "downsweep" if level == levels - 1 else "", "level")
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


def _doubling(canvas: _Canvas, count: int, tops: list[float], y: float) -> float:
    """Levels of a scan of ``count`` by doubling distances, drawn for as many as have tops."""
    shown, distance = len(tops), 1
    while distance < shown:
        canvas.text(24, y + 5, f"distance {distance}", "level")
        before = list(tops)
        for i in range(distance, shown):
            canvas.line(_x(i - distance), before[i - distance], _x(i), y)
            canvas.line(_x(i), before[i], _x(i), y)
            canvas.dot(_x(i), y, "combine")
            tops[i] = y
        distance *= 2
        y += _ROW
    if distance < count:
        last = 1 << ((count - 1).bit_length() - 1)
        to = f" to {last}" if last > distance else ""
        canvas.text(24, y + 5, f"distance {distance}{to}", "level")
        canvas.text(_x(shown) - 30, y + 5, "…")
        y += _ROW
    return y


def _chunks(canvas: _Canvas, count: int, top: float) -> float:
    shown = min(count, _SHOWN)
    rows = (("reduce", 0), ("scan", 1), ("replay", 2))
    y = top
    for label, row in rows:
        y = top + row * _ROW * 1.5
        canvas.text(24, y + 22, label, "level")
        for i in range(shown):
            if row == 1:
                canvas.dot(_x(i), y + 17, "combine")
                if i:
                    canvas.line(_x(i - 1), y + 17, _x(i), y + 17)
            else:
                canvas.box(_x(i) - 36, y, 72, f"chunk {i}")
            if row:
                canvas.line(
                    _x(i),
                    y - _ROW * 1.5 + (34 if row == 1 else 17),
                    _x(i),
                    y + (17 if row == 1 else 0),
                )
    if count > shown:
        canvas.text(_x(shown) - 30, top + 22, f"… {count} chunks")
    return y + 34


def _serial(canvas: _Canvas, who: str, length: str, top: float) -> float:
    y = top
    for lane in range(3):
        y = top + lane * _ROW
        canvas.text(24, y + 22, f"{who} {lane}", "level")
        for step in range(5):
            label = ("t = 0", "1", "2", "…", f"{length} - 1")[step]
            canvas.box(_x(step) - 36, y, 72, label)
            if step:
                canvas.line(_x(step - 1) + 36, y + 17, _x(step) - 36, y + 17)
    return y + 34
