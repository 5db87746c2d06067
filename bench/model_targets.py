"""Whether the default plans meet the targets on an H200, by the cost model on paper.

``python -m bench.model_targets`` prints the table of targets in docs/cuda/model.md. Nothing is
measured. Peers stand for what their scheme costs by the same model: CUB's look-back and
accelerated-scan, one pass at the speed of a copy; the sequential loops, a thread per lane. Of
mamba-ssm's kernel the bounds are those of its machine code, as ``bench.machine_code`` counted it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tvm.target import Target

from bench.gpu_loops import affine, rwkv6, selective_halves
from bench.machine_code import predicted
from tvm_scan import ScanPlan, default_plan, extract, library
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.machine.gpu_chip import H200, LAUNCH
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.machine.step_counts import known_extent, step_cost

__all__ = ["Row", "main", "rows", "table"]

_TARGET = Target(
    {
        "kind": "cuda",
        "arch": "sm_90",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
    },
    host={"kind": "llvm"},
)


_COUNTED = Path(__file__).parent / "results" / "machine_code.json"


@dataclass(frozen=True)
class Row:
    """One target for one shape.

    Attributes
    ----------
    case, against : str
        The shape, and what it is compared with.
    ours, theirs : float
        Seconds by the model.
    asked : float
        What ``theirs / ours`` is to be at least.
    """

    case: str
    against: str
    ours: float
    theirs: float
    asked: float

    @property
    def ratio(self) -> float:
        """How many times as long the other takes."""
        return self.theirs / self.ours

    @property
    def is_met(self) -> bool:
        """Whether the model has the target met; it knows no hundredths."""
        return self.ratio >= self.asked - 0.005


def _one_pass(found: Recurrence, machine: Machine) -> float:
    """Every array once, at the speed of a copy, in one launch."""
    lanes = prod(known_extent(lane.extent) for lane in found.lanes)
    moved = step_cost(found).bytes * lanes * known_extent(found.time.extent)
    return moved / H200.bandwidth + LAUNCH


def _mamba(dtype: str) -> Callable[[Recurrence, Machine], float]:
    """mamba-ssm's kernel, of what a step of a channel's state takes in its machine code."""
    cases = json.loads(_COUNTED.read_text())["cases"]
    of = "selective 8 x 2048 x 2048 x 16" + ("" if dtype == "float32" else f", {dtype}")
    row = next(row for row in cases[of] if row["who"].startswith("mamba-ssm"))

    def seconds(found: Recurrence, machine: Machine) -> float:
        lanes = prod(known_extent(lane.extent) for lane in found.lanes)
        states = max(prod(int(a.extent) for a in c.state_axes) for c in found.carries)
        elements = lanes * states * known_extent(found.time.extent)
        return 1e-6 * predicted(row, elements, row["bytes"], 1)["seconds"]

    return seconds


def _per_lane(threads: int) -> Callable[[Recurrence, Machine], float]:
    plan = ScanPlan.of("cuda", "sequential", threads_per_block=threads)
    return lambda found, machine: plan.cost(found, machine).seconds


def _cases() -> list[tuple[str, Any, str, Callable[[Recurrence, Machine], float], float]]:
    copy = "one pass at the speed of a copy"
    cases: list[Any] = []
    for dtype in ("float32", "bfloat16"):
        for length in (128, 1024, 4096, 65536):
            name = f"affine 8 x 1536 x {length} {dtype}"
            asked = 0.9 if 12288 * length >= 1 << 24 else 1.0
            cases.append((name, affine(12288, length, dtype), copy, _one_pass, asked))
    for rows, length in ((1, 1 << 24), (1, 1 << 28), (2048, 4096)):
        made = library.cumsum(rows, length)
        cases.append((f"cumsum {rows} x {length}", made, copy, _one_pass, 0.9))
    for dtype in ("float32", "bfloat16"):
        for batch, channels in ((1, 2048), (1, 4096), (8, 2048)):
            for length in (512, 4096, 65536):
                if dtype == "float32":
                    func = library.selective_scan(batch, channels, length, 16)
                else:
                    func = selective_halves(batch, channels, length, 16, dtype)
                asked = 2.0 if batch * channels >= 4096 else 1.3
                name = f"selective {batch} x {channels} x {length} {dtype}"
                cases.append((name, func, "mamba-ssm's kernel", _mamba(dtype), asked))
    for length in (1024, 8192):
        name = f"rwkv6 32 x {length} x 64 x 64"
        cases.append((name, rwkv6(32, length, 64), "a thread per column", _per_lane(64), 5.0))
    func = library.linear_recurrence(1536, 1024)
    cases.append(("affine 1536 x 1024", func, "a thread per lane", _per_lane(32), 10.0))
    return cases


def rows() -> list[Row]:
    """All targets of a ratio."""
    machine, found = Machine.of(_TARGET), []
    for name, func, against, theirs, asked in _cases():
        recurrence = extract(func)
        ours = default_plan(_TARGET, recurrence).cost(recurrence, machine).seconds
        found.append(Row(name, against, ours, theirs(recurrence, machine), asked))
    return found


def table(found: list[Row]) -> list[str]:
    """The table of targets in docs/cuda/model.md."""
    lines = [
        "| case | us | against | us | ratio | asked | met |",
        "|---|---:|---|---:|---:|---:|---|",
    ]
    for row in found:
        met = "yes" if row.is_met else f"no, {100 * (1 - row.ratio / row.asked):.0f} % short"
        lines.append(
            f"| {row.case} | {1e6 * row.ours:.1f} | {row.against} | {1e6 * row.theirs:.1f} "
            f"| {row.ratio:.2f} | {row.asked:g} | {met} |"
        )
    return lines


def main() -> None:
    """Command line."""
    print("\n".join(table(rows())))


if __name__ == "__main__":
    main()
