"""The tree of a plan as text."""

from __future__ import annotations

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

#: Threads or cells, and chunks, that fit into 80 columns.
_SHOWN, _CHUNKS = 8, 6


def tree_text(recurrence: TimeLoop, plan: ScanPlan) -> str:
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
        Several lines.
    """
    length = number(recurrence.time.extent)
    lanes = lane_counts(recurrence)
    picture = plan.picture(recurrence)
    rows = [f"{lanes} lane(s) of {length} steps"]
    rows += [f"{level:<8}{what}" for level, what in picture.lines]
    for drawing in picture.drawings:
        rows += _drawn(drawing, length)
    return "\n".join(rows)


def _drawn(drawing: Drawing, length: str) -> list[str]:
    match drawing:
        case Serial():
            return [
                f"{drawing.level:<8}─▶ t = 0 ─▶ 1 ─▶ … ─▶ {length} - 1   {drawing.note}".rstrip()
            ]
        case Chunks():
            return _chunks(drawing.count)
        case Tree(kind="blelloch"):
            return ["", *_blelloch(drawing.threads)]
        case Tree():
            return ["", *_doubling([f"t{i:<2}" for i in range(_SHOWN)], drawing.threads, "thread")]
        case VectorScan():
            return _vector(drawing)
        case Tiles():
            return _tile(drawing.lanes)


def _chunks(count: int) -> list[str]:
    shown = min(count, _CHUNKS)
    more = " …" if count > shown else ""
    boxes = "  ".join(f"[chunk {i}]" for i in range(shown)) + more
    arrows = "  ".join("    │    " for _ in range(shown)).rstrip()
    return [
        "",
        f"reduce  {boxes}",
        f"        {arrows}",
        f"scan    {'──▶'.join('    ●   ' for _ in range(shown))}{more}",
        f"        {arrows}",
        f"replay  {boxes}",
        "        reduce: each chunk becomes one element, all side by side",
        "        scan: the elements are combined in order",
        "        replay: the loop body runs from each chunk's carry",
    ]


def _vector(drawing: VectorScan) -> list[str]:
    """A vector of time: its cells, the steps of each, and the levels of its scan."""
    run, cells = drawing.run, drawing.cells
    names = [f"t+{i * run}" for i in range(min(cells, _SHOWN))]
    steps = f"each of {cells} cells scans {run} neighbouring steps, then the cells meet"
    rows = [f"vector  {steps if run > 1 else f'{cells} neighbouring steps, a cell each'}"]
    rows += _doubling(names, cells, "cell")
    return [*rows, "        then the next vector, from the carry that the last cell leaves"]


def _tile(lanes: int) -> list[str]:
    """Rows of several lanes, read along time and transposed into vectors of lanes."""
    shown = min(lanes, 4)
    rows = ["", "memory  lane by lane, along time      registers  step by step, across lanes"]
    for i in range(shown):
        left = "  ".join(f"h{i},{t}" for t in range(4)) + "  …"
        right = "  ".join(f"h{k},{i}" for k in range(4)) + "  …"
        rows.append(f"        {left:<30}{'──▶' if i == 1 else '   '}     {right}")
    return [*rows, f"        … {lanes} lanes in a tile; each vector steps all of them at once", ""]


def _blelloch(threads: int) -> list[str]:
    """Upsweep and downsweep of the first threads; a bullet is a combine."""
    shown = min(threads, _SHOWN)
    levels = shown.bit_length() - 1
    rows = [
        "        "
        + "  ".join(f"t{i:<2}" for i in range(shown))
        + ("  …" if threads > shown else "")
    ]
    for level in range(levels):
        rows.append("up      " + _level(shown, 2 << level, "┴", "●"))
    rows.append(
        "        " + "     " * (shown - 1) + "0  ◀ the identity; the sum is the tile's element"
    )
    for level in reversed(range(levels)):
        rows.append("down    " + _level(shown, 2 << level, "○", "●"))
    rows.append(
        "        ● combine   ○ takes the prefix of its parent   each thread now has its prefix"
    )
    return rows


def _doubling(names: list[str], count: int, who: str) -> list[str]:
    """Levels of a scan by doubling distances, for the first of those that take part."""
    shown = min(count, len(names))
    heads = "".join(f"{n:<5}" for n in names[:shown]) + "…" * (count > shown)
    rows = [f"        {heads}"]
    distance = 1
    while distance < shown:
        cells = ["│    " if i < distance else "●    " for i in range(shown)]
        rows.append(f"by {distance:<4} " + "".join(cells).rstrip())
        distance *= 2
    end = ", and so on, doubling" if count > shown else ""
    rows.append(f"        ● combine with the {who} that far to the left{end}")
    return rows


def _level(shown: int, span: int, left: str, right: str) -> str:
    cells = ["│    "] * shown
    for node in range(span - 1, shown, span):
        low = node - span // 2
        cells[low] = left + "────"
        for between in range(low + 1, node):
            cells[between] = "─────"
        cells[node] = right + "    "
    return "".join(cells).rstrip()
