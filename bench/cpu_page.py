"""The page, the tables and the plot of ``bench.cpu``."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench.floors import FLOORS, least_floor
from bench.origin import origin

__all__ = ["OWN", "Workload", "best_peer", "page", "plot", "ratio", "table", "uneven"]

#: What is no peer.
OWN = ("tvm_scan", "tvm loop", *FLOORS)
#: Spread from which no ratio is said; how far apart a peer's times for a cell may be between rows
#: of as many cells and more.
STEADY, APART, SMALL = 0.3, 1.5, 1 << 18


@dataclass(frozen=True)
class Workload:
    """One shape of one recurrence.

    Attributes
    ----------
    kind : str
        One of ``bench.cpu_loops.KINDS``.
    shape : tuple of int
        As ``bench.cpu_loops.loop_of`` takes it.
    """

    kind: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.shape}"


def best_peer(row: dict[str, Any]) -> str | None:
    """The fastest method of a row that is none of ours."""
    peers = {n: s for n, s in row["seconds"].items() if n not in OWN}
    return min(peers, key=lambda n: peers[n]) if peers else None


def uneven(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Per row: peers whose time for a cell is out of proportion, and the time it might be.

    A peer does the same work for every cell of a recurrence. Where one takes more than ``APART``
    times as long for it as in another row, with enough lanes for all cores in both or in neither,
    it was disturbed, and is no measure. Rows of small arrays are left out: there a call's own
    costs, and the caches, make a difference.
    """
    found: list[dict[str, float]] = [{} for _ in rows]
    units: dict[tuple[str, bool, str], list[tuple[float, int]]] = {}
    for number, row in enumerate(rows):
        cells = prod(row["workload"]["shape"])
        if cells < SMALL:
            continue
        for name, seconds in row["seconds"].items():
            if name not in OWN:
                key = (row["workload"]["kind"], _has_lanes(row), name)
                units.setdefault(key, []).append((seconds / cells, number))
    for (_, _, name), each in units.items():
        least = min(unit for unit, _ in each)
        for unit, number in each:
            if unit > APART * least:
                found[number][name] = least * prod(rows[number]["workload"]["shape"])
    return found


def _has_lanes(row: dict[str, Any]) -> bool:
    shape = row["workload"]["shape"]
    return prod(shape[:-1]) > 1


def ratio(row: dict[str, Any], out_of_proportion: dict[str, float]) -> float | None:
    """The best peer's time over ours; None where the times are too unsteady to say it."""
    best = best_peer(row)
    if best is None:
        return None
    seconds, spread = row["seconds"], row["spread"]
    if max(spread[best], spread["tvm_scan"]) > STEADY:
        return None
    if any(might < seconds[best] for might in out_of_proportion.values()):
        return None
    return seconds[best] / seconds["tvm_scan"]


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown table."""
    head = ["workload", "tvm_scan ms", "spread", "loop ms", "floor ms", "best peer", "its ms"]
    head += ["its spread", "faster by", "of the floor", "GB/s", "MiB", "peers' MiB"]
    body = []
    for row, odd in zip(rows, uneven(rows), strict=True):
        s, spread, best = row["seconds"], row["spread"], best_peer(row)
        floor, faster = least_floor(s, s["tvm_scan"]), ratio(row, odd)
        peer = ["", "", ""]
        if best is not None:
            peer = [best, _ms(s[best]), f"{spread[best]:.0%}"]
        body.append(
            [
                _name(row),
                _ms(s["tvm_scan"]),
                f"{spread['tvm_scan']:.0%}",
                _ms(s.get("tvm loop")),
                _ms(floor),
                *peer,
                "" if faster is None else f"{faster:.2f}",
                "" if floor is None else f"{s['tvm_scan'] / floor:.2f}",
                f"{row['GB/s']:.1f}",
                *_memory(row["peak bytes"]),
            ]
        )
    return str(tabulate(body, head, tablefmt="github", disable_numparse=True))


def _name(row: dict[str, Any]) -> str:
    return str(Workload(row["workload"]["kind"], tuple(row["workload"]["shape"])))


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g}"


def _memory(peaks: dict[str, int | None]) -> list[str]:
    """Peak memory of ours, and of the peers from least to most, in MiB."""
    mebi = {n: peak / 2**20 for n, peak in peaks.items() if peak is not None}
    others = sorted(peak for n, peak in mebi.items() if n not in OWN)
    if "tvm_scan" not in mebi or not others:
        return ["", ""]
    return [f"{mebi['tvm_scan']:.0f}", f"{others[0]:.0f} to {others[-1]:.0f}"]


def every_peer(rows: list[dict[str, Any]]) -> str:
    """Markdown list: each workload's peers from the fastest on, in ms, with their spread."""
    lines = []
    for row, odd in zip(rows, uneven(rows), strict=True):
        order = sorted((s, n) for n, s in row["seconds"].items() if n not in OWN)
        told = [f"{n} {_ms(s)} (spread {row['spread'][n]:.0%})" for s, n in order]
        text = ", ".join(told)
        off = f"; wrong and left out: {', '.join(row['wrong'])}" if row["wrong"] else ""
        might = ", ".join(f"{n} (as elsewhere: {_ms(s)})" for n, s in odd.items())
        off += f"; out of proportion to other rows: {might}" if odd else ""
        lines.append(f"- {_name(row)}: {text}{off}")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """How time grows with length, one panel per recurrence, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = list(dict.fromkeys(row["workload"]["kind"] for row in rows))
    columns = min(3, len(kinds))
    rows_of_panels = -(-len(kinds) // columns)
    size = (4.6 * columns, 3.9 * rows_of_panels)
    figure, axes = plt.subplots(rows_of_panels, columns, figsize=size, squeeze=False)
    for axis in axes.flat[len(kinds) :]:
        axis.set_visible(False)
    for axis, kind in zip(axes.flat, kinds, strict=False):
        mine = [row for row in rows if row["workload"]["kind"] == kind]
        for name in dict.fromkeys(n for row in mine for n in row["seconds"]):
            pairs = [
                (row["workload"]["shape"][-1], row["seconds"][name] * 1e6)
                for row in mine
                if name in row["seconds"]
            ]
            width = 2.4 if name == "tvm_scan" else 1.0
            axis.loglog(*zip(*pairs, strict=True), label=name, linewidth=width)
        lead = mine[0]["workload"]["shape"][:-1]
        axis.set_title(f"{kind}, {' x '.join(map(str, lead))} lanes", fontsize=10)
        axis.set_xlabel("steps")
        axis.set_ylabel("microseconds")
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


_PAGE = """# Scans on a CPU beside other tools

The recurrences of this page with their default plans (`tvm_scan`), the sequential loop that TVM
makes of them (`loop`), and what people would pick, each writing to memory that it has where it
can: numpy and torch with `out=`, torch.compile of `associative_scan`, numba sequential and
parallel, jax (`cumsum`, `cummax`, `cumlogsumexp`, `associative_scan`, `lax.scan`), scipy's
`lfilter`, onnxruntime's `CumSum`, C++'s `inclusive_scan` and `for_each` (gcc's parallel STL on
oneTBB), a C loop (`-O3 -march=native`, OpenMP), the selective scan of transformers (its loop
over time, and compiled its associative scan) and one in C by hand for AVX-512
(`bench/selective_avx512.c`: the 16 states in a vector, 4 channels side by side). Every tool has a
process of its own, which is stopped while it is not its turn, and is woken by an untimed call
before its turn; medians, and as the spread the interquartile range over the median. Every result
is compared with float64 at the first, the last and 64 random steps of all lanes before it is timed.
The floor reads the same inputs and writes the same output on all cores and does nothing else, by
stores through the caches or past them, whichever is faster; where a scan is faster still (what it
reads lies in a cache), there is no floor.

    TVM_NUM_THREADS=2 TVM_BIND_THREADS=0 python -m bench.cpu --json bench/results/cpu.json \\
        --markdown docs/cpu.md --plot docs/images/cpu.svg

{machine}

Shapes are (lanes, steps); `rows` scans the first axis, `middle` the second of (batch,
steps, lanes), and the selective scan has (batch, channels, steps) and 16 states. `faster by` is the
best peer's time over ours, `of the floor` ours over the floor's, `MiB` the memory that a call
takes at its peak beside its inputs and the output it was given. No ratio is given where a spread
of the two is above 30 %, or where a peer that takes more than 1.5 times as long for a cell as in
another row of the recurrence might have been the best one.

{table}

Every peer's time in ms:

{peers}

How the time grows with the length, from one step on:

![Time against length](images/cpu.svg)

{growth}
"""

#: Of results that do not say which commit they are of.
_EARLIER = """\
**These figures are of an earlier version of the script**: all tools shared one process, were woken
only where their first call of all was a short one, and had their last steps compared alone; there
was one kind of floor."""


def page(machine: dict[str, Any], rows: list[dict[str, Any]], grown: list[dict[str, Any]]) -> str:
    """The whole page in Markdown."""
    said = ", ".join(f"{key} {value}" for key, value in machine.items())
    if "commit" not in machine:
        said = f"{_EARLIER}\n\n{said}; {origin(machine)}"
    return _PAGE.format(
        machine=said, table=table(rows), peers=every_peer(rows), growth=table(grown)
    )
