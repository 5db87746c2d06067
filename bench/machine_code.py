"""Count the machine code of our default kernels and of published ones for the same work.

    python -m bench.machine_code [--quick] [--peers FOLDER | --kept JSON] \\
        [--json bench/results/machine_code.json] [--markdown docs/cuda/machine_code.md]

All are compiled for sm_90 by the nvcc on the PATH, and disassembled by nvdisasm; no GPU is needed.
``python -m bench.gpu_fetch FOLDER`` brings the peers' sources; what is missing is left out, with
the reason. Peers do not change with our kernels: ``--kept`` takes their rows of an earlier result.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm.target import Target

from bench.machine_code_cases import CASES, LATER, TARGET, Case, Part, default_of, parts_of
from bench.machine_code_page import EQUAL_STEPS, page
from bench.machine_code_peers import Code, code_of, compiled
from bench.sass import Pass, kernels
from bench.timing import machine
from tests.support.cuda_harness import emit_cuda
from tests.support.cusim.nvcc import Resources, nvdisasm_path
from tvm_scan import ScanPlan, extract, parallelize
from tvm_scan.arguments import host_target
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.sizes import known_extent, known_rows
from tvm_scan.schedules.machine.device import compute_capability
from tvm_scan.schedules.machine.gpu_chip import H200, GpuChip, Work, gpu_chip_of
from tvm_scan.schedules.machine.gpu_cost import Block, gpu_cost

__all__ = ["counted", "main", "occupancy", "predicted"]

#: Registers of a multiprocessor; a warp gets them by 8 for a thread.
_REGISTERS, _BY = 65536, 8
#: Threads that are enough to keep memory busy.
_MANY = 1e6


def occupancy(taken: Resources, threads: int) -> float:
    """Share of the threads of a multiprocessor that blocks of such kernels fill.

    Parameters
    ----------
    taken : Resources
        Of the kernel; dynamic shared memory is not among them.
    threads : int
        Of a block.
    """
    registers = -(-taken.registers // _BY) * _BY * threads
    by_memory = H200.shared_bytes // (taken.shared_bytes + H200.block_bytes)
    blocks = min(H200.blocks, H200.threads // threads, by_memory, _REGISTERS // registers)
    return blocks * threads / H200.threads


def counted(
    code: Code,
    parts: tuple[Part, ...],
    threads: int,
    stored: float,
    *,
    few_special: bool = False,
) -> dict[str, Any]:
    """What the kernels of one way to do the work spend on an element.

    Parameters
    ----------
    code : tuple
        Disassembly, and resources by kernel.
    parts : tuple of Part
        Kernels that go over all elements.
    threads : int
        Of a block.
    stored : float
        Bytes that are written for each element.
    few_special : bool
        See ``Kernel.executed``.

    Returns
    -------
    dict
        Instructions of a thread for each element, all of them and by pipe; special functions;
        instructions of the load and store unit;
        barriers for each element of a thread; registers, shared memory and occupancy of the kernel
        that takes most.

    Raises
    ------
    ValueError
        If a kernel is not there.
    """
    text, resources = code
    total, barriers, taken = Pass(), 0.0, []
    for part in parts:
        kernel = next((k for k in kernels(text) if part.fits(k.name)), None)
        if kernel is None:
            raise ValueError(f"bench.machine_code: expected a kernel {part.pattern}, found none")
        nest = kernel.depth()
        region = nest[0] if part.whole or len(nest) == 1 else nest[1]
        made = kernel.executed(region, part.work, few_special=few_special)
        elements = part.work[0] if part.work else _stored(made) / stored
        total = total.plus(made, 1 / elements)
        barriers += sum(n for o, n in made.opcodes.items() if o.startswith("BAR")) / elements
        taken.append(resources[kernel.name])
    most = max(taken, key=lambda r: r.registers)
    return {
        "instructions": total.instructions,
        "pipes": total.by_pipe(),
        "cycles": total.cycles,
        "packed": sum(n for o, n in total.opcodes.items() if re.match(r"F(FMA|MUL|ADD)2\b", o)),
        "accesses": total.accesses,
        "mufu": sum(n for o, n in total.opcodes.items() if o.startswith("MUFU")),
        "barriers": barriers,
        "registers": most.registers,
        "shared": most.shared_bytes,
        "occupancy": occupancy(most, threads),
    }


def _stored(made: Pass) -> float:
    stores = {o: n for o, n in made.opcodes.items() if o.startswith("STG")}
    return Pass(0, type(made.opcodes)(stores)).bytes


def predicted(
    row: dict[str, Any],
    elements: int,
    moved: float,
    launches: float,
    chip: GpuChip = H200,
    between: float = 0.0,
) -> dict[str, float]:
    """Bounds of the cost model, of what was counted.

    Parameters
    ----------
    row : dict
        Of ``counted``.
    elements : int
        All of them.
    moved : float
        Bytes of memory for each.
    launches : float
        See ``Work``.
    chip : GpuChip
        On what.
    between : float
        See ``Work``.

    Returns
    -------
    dict
        Microseconds by bound.
    """
    work = Work(
        elements * moved,
        elements * row["mufu"],
        elements * row["instructions"] / 32,
        *(0.0, 0.0, _MANY, 0.0, 0.0, launches, elements * row["accesses"] / 32),
        between=between,
    )
    cost = gpu_cost(work, Block(128, 128, 0, 1e3), chip)
    bounds = {"memory": cost.memory, "exp": cost.exponentials, "issue": cost.issue}
    bounds |= {"accesses": cost.lines, "seconds": cost.seconds}
    return {name: 1e6 * s for name, s in bounds.items()}


def _ours(case: Case, folder: Path) -> list[dict[str, Any]]:
    """One row, or two of a kernel with another way for exponents in equal steps; other plans'."""
    rows = _compiled_for(case, folder, TARGET, "sm_90")
    if case.beside is not None:
        choice = ScanPlan.parse(case.beside), extract(case.make())
        (row,) = _compiled_for(case, folder, TARGET, "sm_90", choice)
        rows.append(row | {"who": f"ours, `{choice[0].algorithm}`"})
    return rows


def _in_pairs(case: Case, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows of a walk on sm_100: of separate steps, and of pairs of numbers; none of others.

    Both are of the default plan for sm_100; of one in chunks, of the walk over them.
    """
    plan, recurrence = default_of(case, LATER)
    if plan.algorithm != "lanes":
        return {}
    plan = plan.with_(chunks=0)
    targets = {"separate": TARGET, "in pairs": LATER}
    return {
        how: _compiled_for(case, folder, on, "sm_100", (plan, recurrence))
        for how, on in targets.items()
    }


def _compiled_for(
    case: Case,
    folder: Path,
    target: Target,
    arch: str,
    choice: tuple[ScanPlan, Recurrence] | None = None,
) -> list[dict[str, Any]]:
    plan, recurrence = choice or default_of(case)
    fields: Any = plan
    source = folder / "ours.cu"
    source.write_text(emit_cuda(parallelize(case.make(), target, plan)))
    code, parts = compiled(source, folder, [], arch), parts_of(plan, recurrence)
    # Of three phases, what the second kernel reads is small; the inputs are read twice.
    sizes = float(known_rows(recurrence)), float(known_extent(recurrence.time.extent))
    work = fields.work(recurrence, *sizes, H200)
    launches, between = work.launches, work.between
    moved = case.bytes + (getattr(plan, "passes", 1) - 1) * (case.bytes - case.stored)
    if plan.algorithm == "single_pass":
        # And what its blocks hand to one another.
        moved = work.moved / case.elements
    chip = gpu_chip_of(compute_capability(arch))
    rows = []
    for who, few in (("ours", False), (EQUAL_STEPS, True)):
        row = counted(code, parts, fields.threads_per_block, case.stored, few_special=few)
        row |= {"who": who, "plan": str(plan), "threads": fields.threads_per_block, "bytes": moved}
        bounds = predicted(row, case.elements, moved, launches, chip, between)
        rows.append(row | {"predicted": bounds})
    return rows if rows[1]["mufu"] < rows[0]["mufu"] else rows[:1]


def rows_of(
    case: Case, peers: Path | None, folder: Path, kept: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Count ours and all peers of a case; of one that is not there, why.

    Peers that have a row in ``kept`` are not counted again; their bounds are the model's of today.
    """
    rows, counted_before = _ours(case, folder), {row["who"]: row for row in kept}
    for peer in case.peers:
        row: dict[str, Any] = {"who": peer.name, "threads": peer.threads, "bytes": peer.bytes}
        if peer.name in counted_before:
            row = counted_before[peer.name]
        else:
            try:
                code = code_of(peer.library, folder, peers)
                row |= counted(code, peer.parts, peer.threads, case.stored)
            except RuntimeError as reason:
                row["missing"] = str(reason)
        if "missing" in row:
            rows.append(row)
            continue
        bounds = predicted(row, case.elements, peer.bytes, peer.launches)
        rows.append(row | {"predicted": bounds})
    return rows


def main() -> int:
    """Count all, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the result is written")
    parser.add_argument("--markdown", type=Path, help="where the page is written")
    parser.add_argument("--peers", type=Path, help="what bench.gpu_fetch brought")
    parser.add_argument("--kept", type=Path, help="an earlier result, whose rows of peers stay")
    parser.add_argument("--quick", action="store_true", help="one case")
    asked = parser.parse_args()
    nvcc = shutil.which("nvcc")
    if nvcc is None or nvdisasm_path() is None:
        print("expected nvcc and nvdisasm (pip: nvidia-cuda-nvdisasm) on the PATH", file=sys.stderr)
        return 1
    told = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    version = told.splitlines()[-2].rpartition(" ")[2]
    kept: dict[str, Any] = {}
    if asked.kept:
        kept = json.loads(asked.kept.read_text(encoding="utf-8"))
        if version != kept["nvcc"]:
            print(f"expected rows of this nvcc, found those of {kept['nvcc']}", file=sys.stderr)
            return 1
    found: dict[str, Any] = {
        "machine": machine(host_target()),
        "nvcc": version,
        "cases": {},
        "pairs": {},
    }
    for name in list(CASES)[: 1 if asked.quick else None]:
        with tempfile.TemporaryDirectory(prefix="machine-code-") as scratch:
            before = kept.get("cases", {}).get(name, ())
            found["cases"][name] = rows_of(CASES[name], asked.peers, Path(scratch), before)
            if pairs := _in_pairs(CASES[name], Path(scratch)):
                found["pairs"][name] = pairs
        for row in found["cases"][name]:
            print(name, row["who"], row.get("missing") or f"{row['instructions']:.2f}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if asked.markdown:
        asked.markdown.write_text(page(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
