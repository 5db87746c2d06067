"""The page of ``tvm-scan report``: one file, nothing loaded from elsewhere, light and dark."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from html import escape

from tvm_scan.cli.draw.page import document, table
from tvm_scan.cli.draw.plot import Axis, Series, chart
from tvm_scan.meta.measure.duration import duration

#: For the pictures of trees, whose own colours are those of a light page; the card is behind them.
_TREE_STYLE = (
    ".page { fill: none; } @media (prefers-color-scheme: dark) { text { fill: #e4e7eb; } "
    ".small { fill: #9aa5b1; } "
    ".box { fill: #22354a; stroke: #63b3ed; } .pass { fill: #16191d; stroke: #63b3ed; } "
    ".combine { fill: #63b3ed; } }"
)


@dataclass(frozen=True)
class Trial:
    """One record: when it was measured, and what."""

    record: str
    plan: str
    seconds: float
    date: str
    host: str


@dataclass
class Function:
    """The records of one function and target, in the order in which they were measured.

    Attributes
    ----------
    name, shapes, target : str
        What was tuned.
    trials : list of Trial
        In order.
    loop, default : float or None
        Seconds of the sequential and of the default plan; None where they are not on record.
    bytes, flops : float
        Of the fastest plan, by analysis.
    trees : list of str
        The fastest plan, drawn for each recurrence.
    """

    name: str
    shapes: str
    target: str
    trials: list[Trial] = field(default_factory=list)
    loop: float | None = None
    default: float | None = None
    bytes: float = 0.0
    flops: float = 0.0
    trees: list[str] = field(default_factory=list)

    @property
    def best(self) -> Trial:
        """The fastest record."""
        return min(self.trials, key=lambda trial: trial.seconds)


@dataclass
class Report:
    """Everything that the page shows.

    Attributes
    ----------
    folder : str
        Of the database.
    versions : dict of str to str
        TVM's and this package's.
    functions : list of Function
        By name, shapes and target.
    passed : list of (str, str)
        Records that are not usable here, and why; and lines that are no records.
    roof : tuple of (float, float), optional
        Bytes and operations a second that this machine reaches at most.
    """

    folder: str
    versions: dict[str, str]
    functions: list[Function]
    passed: list[tuple[str, str]]
    roof: tuple[float, float] | None = None


def render(report: Report) -> str:
    """The page as text.

    Parameters
    ----------
    report : Report
        With at least one function.

    Returns
    -------
    str
        HTML.
    """
    count = sum(len(function.trials) for function in report.functions)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    parts = [
        "<h1>Tuning records</h1>",
        f"<p>{escape(report.folder)}: {count} records, functions: {len(report.functions)}; "
        f"{escape(versions)}</p>",
        "<h2>Functions</h2>",
        _summary(report.functions),
        "<h2>Roofline</h2>",
        _roofline(report),
        "<h2>Searches</h2>",
        f'<div class="cards">{"".join(_search(function) for function in report.functions)}</div>',
        "<h2>Trees</h2>",
        *(_trees(function) for function in report.functions),
        "<h2>Records</h2>",
        "".join(_records(function) for function in report.functions),
    ]
    if report.passed:
        rows = [[f"<code>{escape(name)}</code>", escape(why)] for name, why in report.passed]
        parts += ["<h2>Not usable here</h2>", table(["record", "why"], rows)]
    return document(f"tvm_scan: {report.folder}", parts)


def _label(function: Function) -> str:
    return f"{function.name} {function.shapes}"


def _summary(functions: list[Function]) -> str:
    heads = [
        "",
        "function",
        "shapes",
        "target",
        "records",
        "loop",
        "default",
        "best",
        "against loop",
    ]
    heads += ["against default", "GB/s", "best plan"]
    rows = []
    for number, function in enumerate(functions, 1):
        best = function.best.seconds
        times = ["" if t is None else duration(t) for t in (function.loop, function.default, best)]
        gains = ["" if t is None else f"{t / best:.2f}x" for t in (function.loop, function.default)]
        speed = f"{function.bytes / best / 1e9:.1f}"
        names = [f'<span class="name">{escape(function.name)}</span>']
        names += [escape(text) for text in (function.shapes, function.target)]
        plan = f"<code>{escape(function.best.plan)}</code>"
        rows.append([str(number), *names, str(len(function.trials)), *times, *gains, speed, plan])
    return table(heads, rows, tuple(range(4, 11)))


def _roofline(report: Report) -> str:
    shown = [
        (i, function)
        for i, function in enumerate(report.functions, 1)
        if function.flops and function.bytes
    ]
    points = [(f.flops / f.bytes, f.flops / f.best.seconds / 1e9) for _, f in shown]
    labels = [f"{_label(function)}: {function.best.plan}" for _, function in shown]
    marks = [str(number) for number, _ in shown]
    if not points:
        return "<p>No function has operations on floats.</p>"
    series = [Series("fastest record", points, "dots", 1, labels, marks)]
    text = (
        "Operations of the fastest plan over its time, by analysis of its step, numbered as in the "
        "table above."
    )
    if report.roof is not None:
        moved, computed = (value / 1e9 for value in report.roof)
        low = min(0.05, *(x for x, _ in points)) / 2
        ridge, high = computed / moved, max(2 * computed / moved, *(2 * x for x, _ in points))
        roof = [(low, low * moved), (ridge, computed), (high, computed)]
        series.insert(0, Series("this machine's limits", roof, "line", 4))
        text += (
            f" The limits are those of the machine that wrote this page: {moved:.1f} GB/s in a "
            f"parallel copy, {computed:.0f} GFLOP/s in a matrix product. A working set that fits "
            "into the caches can lie above the slope."
        )
    across = Axis("operations to a byte of main memory", log=True)
    drawn = chart("Roofline", across, Axis("GFLOP/s", log=True), series)
    return f'<p>{text}</p><div class="card plot">{drawn}</div>'


def _search(function: Function) -> str:
    dots = [(i, trial.seconds * 1e6) for i, trial in enumerate(function.trials, 1)]
    best = [(i, min(y for _, y in dots[:i])) for i, _ in dots]
    series = [Series("record", dots, "dots", 4, [trial.plan for trial in function.trials])]
    series.append(Series("best so far", best, "steps", 1))
    for name, value, colour in (("loop", function.loop, 2), ("default plan", function.default, 3)):
        if value is not None:
            flat = [(1.0, value * 1e6), (float(max(2, len(dots))), value * 1e6)]
            series.append(Series(name, flat, "line", colour))
    drawn = chart(f"Search of {_label(function)}", Axis("record"), Axis("us", log=True), series)
    return f'<div class="card plot"><h3>{escape(_label(function))}</h3>{drawn}</div>'


def _trees(function: Function) -> str:
    pictures = []
    for tree in function.trees:
        text = tree.replace("</style>", f"{_TREE_STYLE}</style>", 1)
        data = base64.b64encode(text.encode()).decode()
        words = escape(f"Tree of {_label(function)}: {function.best.plan}", quote=True)
        pictures.append(f'<img alt="{words}" src="data:image/svg+xml;base64,{data}">')
    title = f"<h3>{escape(_label(function))}</h3>"
    # Text keeps its size: on a narrow page a picture is moved sideways, by the keyboard, too.
    shown = "".join(f'<div tabindex="0">{picture}</div>' for picture in pictures)
    return f'<div class="card tree">{title}{shown}</div>'


def _records(function: Function) -> str:
    rows = []
    for trial in sorted(function.trials, key=lambda trial: trial.seconds):
        gain = "" if function.loop is None else f"{function.loop / trial.seconds:.2f}x"
        plan, record = (f"<code>{escape(t)}</code>" for t in (trial.plan, trial.record[:8]))
        rows.append(
            [record, duration(trial.seconds), gain, plan, escape(trial.date), escape(trial.host)]
        )
    shown = table(["record", "time", "against loop", "plan", "date", "host"], rows, (1, 2))
    return f"<details><summary>{escape(_label(function))}: {len(rows)}</summary>{shown}</details>"
