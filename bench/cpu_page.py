"""The page, the tables and the plot of ``bench.cpu``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

__all__ = ["OWN", "Workload", "page", "plot", "table"]

#: What is no peer.
OWN = ("tvm_scan", "tvm loop", "floor")


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


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown table."""
    head = ["workload", "tvm_scan ms", "loop ms", "floor ms", "best peer", "its ms"]
    head += ["faster by", "of the floor", "GB/s", "MiB", "peers' MiB"]
    body = []
    for row in rows:
        s = row["seconds"]
        of_floor = row["against floor"]
        body.append(
            [
                str(Workload(row["workload"]["kind"], tuple(row["workload"]["shape"]))),
                *(f"{s[n] * 1e3:.3g}" if n in s else "" for n in OWN),
                row["best peer"],
                f"{s[row['best peer']] * 1e3:.3g}",
                f"{row['against best peer']:.2f}",
                "" if of_floor is None else f"{of_floor:.2f}",
                f"{row['GB/s']:.1f}",
                *_memory(row["peak bytes"]),
            ]
        )
    return str(tabulate(body, head, tablefmt="github", disable_numparse=True))


def _memory(peaks: dict[str, int | None]) -> list[str]:
    """Peak memory of ours, and of the peers from least to most, in MiB."""
    mebi = {n: peak / 2**20 for n, peak in peaks.items() if peak is not None}
    others = sorted(peak for n, peak in mebi.items() if n not in OWN)
    if "tvm_scan" not in mebi or not others:
        return ["", ""]
    return [f"{mebi['tvm_scan']:.0f}", f"{others[0]:.0f} to {others[-1]:.0f}"]


def every_peer(rows: list[dict[str, Any]]) -> str:
    """Markdown list: each workload's peers from the fastest on, with their ratio to ours."""
    lines = []
    for row in rows:
        name = Workload(row["workload"]["kind"], tuple(row["workload"]["shape"]))
        mine = row["seconds"]["tvm_scan"]
        order = sorted((s, n) for n, s in row["seconds"].items() if n not in OWN)
        text = ", ".join(f"{n} {s / mine:.3g}" for s, n in order)
        off = f"; wrong and left out: {', '.join(row['wrong'])}" if row["wrong"] else ""
        lines.append(f"- {name}: {text}{off}")
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
`lfilter`, a C loop (`-O3 -march=native`, OpenMP), the selective scan of transformers (its loop
over time, and compiled its associative scan) and one in C by hand for AVX-512
(`bench/selective_avx512.c`: the 16 states in a vector, 4 channels side by side). All take turns
in one process, with 4 ms between them for the threads to fall asleep; medians. The last step of
every result is compared with float64 before it is timed. The floor reads the same inputs and
writes the same output on all cores and does nothing else, past the caches where the output
is large.

    TVM_NUM_THREADS=2 TVM_BIND_THREADS=0 python -m bench.cpu --json bench/results/cpu.json \\
        --markdown docs/cpu.md --plot docs/images/cpu.svg

{machine}

Shapes are (lanes, steps); `rows` walks down the first axis, `middle` down the second of (batch,
steps, lanes), and the selective scan has (batch, channels, steps) and 16 states. `faster by` is the
best peer's time over ours, `of the floor` ours over the floor's, `MiB` the memory that a call
takes at its peak beside its inputs and the output it was given.

{table}

Every peer's time over ours:

{peers}

How the time grows with the length, from one step on. In a process with several tools' pools of
threads, waking one's own costs the parallel peers (C, numba, transformers) up to 8 ms now and then:
the peaks of their short lengths are that, and say little about them.

![Time against length](images/cpu.svg)

{growth}
"""


def page(machine: dict[str, Any], rows: list[dict[str, Any]], grown: list[dict[str, Any]]) -> str:
    """The whole page in Markdown."""
    said = ", ".join(f"{key} {value}" for key, value in machine.items())
    return _PAGE.format(
        machine=said, table=table(rows), peers=every_peer(rows), growth=table(grown)
    )
