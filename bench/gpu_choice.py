"""How good the default plans of a GPU are: every plan of the shortlists, timed on one.

``python -m bench.gpu_choice build FOLDER`` compiles them, on any machine with nvcc, and
``python -m bench.gpu_choice time FOLDER`` times them on a machine with a GPU, whose time is dearer.
The table has for each case the default's time over the best one's, and what the model predicted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import tvm
from tvm.target import Target

from bench.gpu_cases import Case
from bench.gpu_ours import built, cold_times, copied, device_tensors, target_of
from bench.gpu_page import default_and_best
from bench.origin import command, commit
from tvm_scan import ScanPlan, parallelize
from tvm_scan.meta.space.decisions import enumerate_plans
from tvm_scan.schedules.choose.default import decide
from tvm_scan.schedules.gpu.serial_tiles import SerialTiles
from tvm_scan.schedules.gpu.single_pass import SinglePass
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["build", "cases", "main", "time_all"]

RESULTS = Path(__file__).parent / "results" / "gpu_choice.json"
INDEX = "index.json"
_REPEAT = 9
#: Plans of a shortlist beside the default, the nearest to it first.
_COMPARED = 16
_COPIED = 1 << 28
#: Seconds by the model beyond which a plan is not timed.
_SLOW = 0.05


def cases() -> list[Case]:
    """Loops of every family, in sizes that fill a chip and that do not."""
    rows = 8 * 1536
    lengths = (128, 256, 512, 1024, 4096, 4095, 16384, 65536)
    sums = (
        *((1, 1 << n) for n in (28, 24, 22, 20, 18)),
        (8, 1 << 20),
        (64, 32768),
        (132, 65536),
        (2048, 4096),
        (512, 65536),
    )
    few = (*((1, 1 << n) for n in (27, 24, 20)), (8, 1 << 20), (64, 4096), (64, 32768))
    scans = (
        (8, 2048, 2048, 16),
        (8, 4096, 2048, 16),
        (1, 2048, 2048, 16),
        (1, 4096, 2048, 16),
        (8, 2048, 512, 16),
        (1, 2048, 512, 16),
        (1, 2048, 16384, 16),
        (2, 1536, 4096, 16),
        (1, 64, 65536, 16),
    )
    return [
        *(Case("cumsum", s) for s in sums),
        *(Case("affine", (rows, n)) for n in lengths),
        *(Case("affine", (rows, n), "bfloat16") for n in (1024, 4096)),
        *(Case("affine", s) for s in (*few, (256, 16384), (1536, 1024))),
        *(Case("selective", s) for s in scans),
        *(Case("selective", s, "bfloat16") for s in scans[:4]),
        *(Case("rwkv6", (32, t, 64)) for t in (128, 1024, 8192)),
        *(Case("delta", (32, t, 128)) for t in (1, 64, 512, 2048, 8192)),
        *(Case("delta", s) for s in ((128, 2048, 128), (2, 8192, 128))),
    ]


def _plans(case: Case, target: Target, whole: bool) -> Iterator[tuple[str, ScanPlan]]:
    """The default and what it was chosen among, with more trees of rows; or all plans."""
    recurrence = case.recurrence
    decision = decide(target, recurrence)
    yield "default", decision.chosen.plan
    if whole:
        yield from (("space", plan) for plan in enumerate_plans(target, recurrence))
        return
    for other in decision.others[:_COMPARED]:
        yield "shortlist", other.plan
    if case.family in ("affine", "cumsum"):
        for plan in enumerate_plans(target, recurrence):
            if isinstance(plan, SinglePass | SerialTiles) and _is_usual(plan, case):
                yield "tree", plan


def _is_usual(plan: SinglePass | SerialTiles, case: Case) -> bool:
    """Whether a tree's tiles have a size that pays: for its wait, or on a row of its own."""
    items, tile = plan.items_per_thread, plan.threads_per_block * plan.items_per_thread
    rows, length = case.sizes
    if plan.block_tree != "warp" or not plan.vector_loads:
        return False
    if isinstance(plan, SinglePass):
        staged = plan.block_load == "transposed"
        return rows < 512 and staged and 8 <= items <= 32 and 1024 <= tile <= 16384
    return rows >= 32 and plan.stages < 3 and 4 <= items <= 16 and 128 <= tile <= length


def _built(task: tuple[int, Case, str, str, str, Path]) -> dict[str, Any]:
    number, case, kind, text, options, folder = task
    target, plan = Target(json.loads(options)), ScanPlan.parse(text)
    seconds = plan.cost(case.recurrence, Machine.of(target)).seconds
    row = {"case": str(case), "kind": kind, "plan": text, "predicted": seconds}
    if seconds > _SLOW:
        return {**row, "failed": "slow by the model"}
    try:
        file = f"{number}.so"
        built(parallelize(case.func, target, plan), target).export_library(str(folder / file))
    except Exception as error:
        return {**row, "failed": f"{type(error).__name__}: {str(error)[:300]}"}
    return {**row, "file": file}


def build(
    folder: Path, target: Target, processes: int, only: str = "", whole: bool = False
) -> None:
    """Compile the plans of every case.

    Parameters
    ----------
    folder : Path
        Gets a library for each, and an index.
    target : tvm.target.Target
        The GPU.
    processes : int
        At once; one is this one.
    only : str
        Names of cases hold this.
    whole : bool
        All plans of the spaces, not the shortlists.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tasks: list[Any] = []
    for case in (case for case in cases() if only in str(case)):
        seen: set[str] = set()
        for kind, plan in _plans(case, target, whole):
            if str(plan) not in seen:
                seen.add(str(plan))
                tasks.append((len(tasks), case, kind, str(plan), str(target), folder))
    print(f"{len(tasks)} plans", flush=True)
    if processes == 1:
        rows = list(map(_built, tasks))
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            rows = list(pool.imap(_built, tasks, chunksize=4))
    found = {"target": str(target), "commit": commit(), "rows": rows}
    (folder / INDEX).write_text(json.dumps(found) + "\n")


def time_all(folder: Path, out: Path) -> None:
    """Time what was built.

    Parameters
    ----------
    folder : Path
        Of ``build``.
    out : Path
        Gets the rows with ``median`` and ``spread``, in seconds; written after every case.
    """
    index = json.loads((folder / INDEX).read_text())
    device, target = tvm.cuda(0), Target(json.loads(index.pop("target")))
    index["machine"] = {"command": command(), "commit": index.pop("commit")}
    index["machine"] |= {"gpu": str(device.device_name), "date": time.strftime("%Y-%m-%d")}
    index["copy"] = copied(target, device, _COPIED, _REPEAT)
    built_cases = {row["case"] for row in index["rows"]}
    for case in (case for case in cases() if str(case) in built_cases):
        tensors = device_tensors(case, target, device)
        for row in index["rows"]:
            if row["case"] != str(case) or "file" not in row:
                continue
            try:
                module = tvm.runtime.load_module(str(folder / row["file"]))
                times = cold_times(tvm.runtime.Executable(module), device, _REPEAT, tensors)
                row |= asdict(times)
                row.pop("file")
            except Exception as error:
                row["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
        del tensors
        out.write_text(json.dumps(index) + "\n")
        for line in _lines(index["rows"], case):
            print(line, flush=True)
    print(f"copy: {index['copy'] / 1e9:.0f} GB/s")
    found = [default_and_best(index["rows"], str(case)) for case in cases()]
    regrets = [pair[0]["median"] / pair[1]["median"] for pair in found if pair is not None]
    print(f"default over best: {geometric_mean(regrets):.3f}, at most {max(regrets):.2f}")


def _lines(rows: list[dict[str, Any]], case: Case) -> list[str]:
    found = default_and_best(rows, str(case))
    if found is None:
        return [f"{case}: no default"]
    default, best = found
    lines = [f"{case}: default over best {default['median'] / best['median']:.2f}"]
    for row in [default] if default is best else [default, best]:
        took, predicted = (1e6 * row[name] for name in ("median", "predicted"))
        lines.append(f"  {took:9.1f} us, predicted {predicted:9.1f}  {row['plan']}")
    return lines


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("build", "time"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--model", default="H100", help="name of the GPU")
    parser.add_argument("--cases", default="", help="what the names of cases hold")
    parser.add_argument("--space", action="store_true", help="all plans, not the shortlists")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    if chosen.what == "build":
        target = target_of(chosen.arch, chosen.model)
        build(chosen.folder, target, chosen.processes, chosen.cases, chosen.space)
    else:
        time_all(chosen.folder, chosen.out)


if __name__ == "__main__":
    main()
