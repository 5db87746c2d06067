"""Small line and point charts as SVG text, in the colours of the page around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, repeat
from math import ceil, floor, log10

_WIDTH, _HEIGHT = 560, 320
#: Room around the axes for text of twice its size: on a narrow page the drawing is half as large.
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 22, 40, 66
#: Width of a digit of that size.
_CHARACTER = 14


@dataclass(frozen=True)
class Axis:
    """Label and scale of an axis; a logarithmic one takes positive values only."""

    label: str
    log: bool = False
    unit: str = ""


@dataclass(frozen=True)
class Series:
    """Points with a name, drawn as dots, as a line, or as steps.

    Attributes
    ----------
    name : str
        In the legend; empty for none.
    points : sequence of (float, float)
        In order.
    kind : {"dots", "line", "steps"}
        How they are drawn.
    colour : int
        1 to 4: the page's colours.
    labels : sequence of str
        One for each dot, shown when the pointer rests on it; or none.
    marks : sequence of str
        One for each dot, beside it; or none.
    """

    name: str
    points: Sequence[tuple[float, float]]
    kind: str = "line"
    colour: int = 1
    labels: Sequence[str] = ()
    marks: Sequence[str] = ()


def chart(title: str, across: Axis, up: Axis, series: Sequence[Series]) -> str:
    """Draw series over two axes.

    Parameters
    ----------
    title : str
        What a screen reader says.
    across, up : Axis
        The axes.
    series : sequence of Series
        At least one of them with a point.

    Returns
    -------
    str
        A ``figure`` element: the names of the series as text, and the drawing.
    """
    ys = _Scale([y for s in series for _, y in s.points], up.log, _HEIGHT - _BOTTOM, _TOP)
    rows = [(value, f"{shown}{up.unit}") for value, shown in ys.ticks()]
    left = max(_LEFT, 8 + _CHARACTER * max((len(shown) for _, shown in rows), default=0))
    xs = _Scale([x for s in series for x, _ in s.points], across.log, left, _WIDTH - _RIGHT)
    keys = "".join(
        f'<span class="key b{line.colour}">{escape(line.name)}</span>'
        for line in series
        if line.name
    )
    parts = [
        f'<figure class="chart"><p class="legend">{keys}</p>',
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
    ]
    for value, shown in xs.ticks():
        x = xs.at(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 22}" text-anchor="middle">{shown}</text>'
        )
    for value, shown in rows:
        y = ys.at(value)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>')
    parts.append(
        f'<text x="{(left + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">'
        f"{escape(across.label)}</text>"
    )
    parts.append(f'<text x="2" y="{_TOP - 18}">{escape(up.label)}</text>')
    for each in series:
        parts.extend(_drawn(each, xs, ys))
    return "\n".join([*parts, "</svg></figure>"])


def _drawn(line: Series, xs: _Scale, ys: _Scale) -> list[str]:
    points = [(xs.at(x), ys.at(y)) for x, y in line.points]
    if line.kind == "dots":
        out = []
        labels, marks = chain(line.labels, repeat("")), chain(line.marks, repeat(""))
        for (x, y), label, mark in zip(points, labels, marks, strict=False):
            tip = f"<title>{escape(label)}</title>" if label else ""
            out.append(
                f'<circle class="c{line.colour}" cx="{x:.1f}" cy="{y:.1f}" r="5">{tip}</circle>'
            )
            if line.marks:
                end = x > _WIDTH - 60
                out.append(
                    f'<text class="small" x="{x + (-9 if end else 9):.1f}" y="{y + 5:.1f}" '
                    f'text-anchor="{"end" if end else "start"}">{escape(mark)}</text>'
                )
        return out
    if not points:
        return []
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for x, y in points[1:]:
        path += f"H{x:.1f}V{y:.1f}" if line.kind == "steps" else f"L{x:.1f} {y:.1f}"
    return [f'<path class="l{line.colour}" d="{path}"/>']


class _Scale:
    """The map from values to pixels."""

    def __init__(self, values: Sequence[float], log: bool, start: float, end: float) -> None:
        self.log, self.start, self.end = log, start, end
        low, high = min(values), max(values)
        if log:
            self.low, self.high = floor(log10(low) * 2) / 2, ceil(log10(high) * 2 + 0.01) / 2
        else:
            self.low, self.high = min(0.0, low), high * 1.05 or 1.0

    def at(self, value: float) -> float:
        mapped = log10(value) if self.log else value
        return self.start + (mapped - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Values and texts: powers of ten, or of a step of 1, 2 or 5."""
        if self.log:
            powers = range(ceil(self.low), floor(self.high) + 1)
            values = [10.0**p for p in powers]
            if len(values) < 3:
                values = [
                    m * 10.0**p
                    for p in range(floor(self.low), ceil(self.high) + 1)
                    for m in (1, 2, 5)
                ]
            inside = [v for v in values if self.low <= log10(v) <= self.high]
            return [(v, f"{v:,.12g}") for v in inside]
        rough = (self.high - self.low) / 6
        size = 10.0 ** floor(log10(rough))
        step = next(m * size for m in (1, 2, 5, 10) if m * size >= rough)
        count = floor(self.high / step + 1e-9) + 1
        return [(i * step, f"{i * step:,.6g}") for i in range(count)]
