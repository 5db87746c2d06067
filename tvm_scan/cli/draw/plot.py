"""Small line and point charts as SVG text, in the colours of the page around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, repeat
from math import ceil, floor, log10

__all__ = ["Axis", "Series", "chart"]

_WIDTH, _HEIGHT = 560, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 16, 34, 46


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
        An ``svg`` element.
    """
    xs = _Scale([x for s in series for x, _ in s.points], across.log, _LEFT, _WIDTH - _RIGHT)
    ys = _Scale([y for s in series for _, y in s.points], up.log, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
    ]
    for value, shown in xs.ticks():
        x = xs.at(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{shown}</text>'
        )
    for value, shown in ys.ticks():
        y = ys.at(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{shown}{up.unit}</text>'
        )
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">'
        f"{escape(across.label)}</text>"
    )
    parts.append(
        f'<text transform="translate(14 {(_TOP + _HEIGHT - _BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(up.label)}</text>'
    )
    for one in series:
        parts.extend(_drawn(one, xs, ys))
    x = float(_LEFT)
    for one in series:
        if one.name:
            parts.append(f'<rect class="c{one.colour} key" x="{x:.1f}" y="9"/>')
            parts.append(f'<text x="{x + 17:.1f}" y="17">{escape(one.name)}</text>')
            x += 34 + 7.2 * len(one.name)
    return "\n".join([*parts, "</svg>"])


def _drawn(one: Series, xs: _Scale, ys: _Scale) -> list[str]:
    places = [(xs.at(x), ys.at(y)) for x, y in one.points]
    if one.kind == "dots":
        out = []
        labels, marks = chain(one.labels, repeat("")), chain(one.marks, repeat(""))
        for (x, y), label, mark in zip(places, labels, marks, strict=False):
            tip = f"<title>{escape(label)}</title>" if label else ""
            out.append(
                f'<circle class="c{one.colour}" cx="{x:.1f}" cy="{y:.1f}" r="4">{tip}</circle>'
            )
            if one.marks:
                end = x > _WIDTH - 60
                out.append(
                    f'<text class="small" x="{x + (-8 if end else 8):.1f}" y="{y + 4:.1f}" '
                    f'text-anchor="{"end" if end else "start"}">{escape(mark)}</text>'
                )
        return out
    if not places:
        return []
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    for x, y in places[1:]:
        path += f"H{x:.1f}V{y:.1f}" if one.kind == "steps" else f"L{x:.1f} {y:.1f}"
    return [f'<path class="l{one.colour}" d="{path}"/>']


class _Scale:
    """From values to pixels."""

    def __init__(self, values: Sequence[float], log: bool, start: float, end: float) -> None:
        self.log, self.start, self.end = log, start, end
        low, high = min(values), max(values)
        if log:
            self.low, self.high = floor(log10(low) * 2) / 2, ceil(log10(high) * 2 + 0.01) / 2
        else:
            self.low, self.high = min(0.0, low), high * 1.05 or 1.0

    def at(self, value: float) -> float:
        place = log10(value) if self.log else value
        return self.start + (place - self.low) / (self.high - self.low) * (self.end - self.start)

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
