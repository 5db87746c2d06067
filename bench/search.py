"""The search against random search at equal trials, and the cost model against chance.

Every plan of every workload is built, checked and timed once on this machine. Both searches are
then run many times with different seeds over those times, through the same ``tune``: what differs
is the choice of candidates alone, and no noise of the clock is taken for skill. The cost model is
asked for the order of the plans that it has not seen.

    python -m bench.search --write     # the JSON, the plot, and its part of docs/tuning.md

On two quiet cores the whole takes about ten minutes: every plan is timed alone, then the races, in
which nothing is timed, share the cores. With ``--keep FILE``, a run that was ended goes on after
the last workload that it finished.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target
from tvm.tirx import PrimFunc

from bench.search_page import STRATEGIES, mean, plot, write_markdown
from bench.timing import machine
from tvm_scan import Recurrence, ScanPlan, extract, library, parallelize
from tvm_scan.arguments import host_target
from tvm_scan.meta import tune
from tvm_scan.meta.measure.check import compare, make_cases
from tvm_scan.meta.search.candidates import candidate_of
from tvm_scan.meta.search.cost_model import TimeModel, rank_correlation
from tvm_scan.meta.search.features import row_of
from tvm_scan.meta.space.decisions import enumerate_plans
from tvm_scan.schedules.machine.machine import host_processors
from tvm_scan.schedules.splice import ensure_blocks

WORKLOADS: dict[str, Callable[[], PrimFunc]] = {
    "cumsum 64x4096": lambda: library.cumsum(64, 4096),
    "cumsum 1x1M": lambda: library.cumsum(1, 1 << 20),
    "cummax 16x32K": lambda: library.cummax(16, 1 << 15),
    "ema 256x2048": lambda: library.ema(256, 2048),
    "linear 4x64K": lambda: library.linear_recurrence(4, 1 << 16),
    "linear 1x256K": lambda: library.linear_recurrence(1, 1 << 18),
    "linear 512x1024, lanes inside": lambda: library.linear_recurrence(512, 1024, layout="ld"),
    "selective scan 1x64x1024x16": lambda: library.selective_scan(1, 64, 1024, 16),
}
ROOT = Path(__file__).resolve().parents[1]


def by_program(func: PrimFunc, target: Target, times: dict[str, Any]) -> dict[int, float]:
    """Times by the hash of the expanded candidate, which is what a builder is given."""
    mod = IRModule({"main": ensure_blocks(func).with_attr("tirx.noalias", True)})
    out = {}
    for plans, seconds in times.values():
        made = candidate_of(mod, plans, target)
        out[tvm_ffi.structural_hash(made.measure.sch.mod)] = seconds
    return out


class Table:
    """Builds and runs nothing: looks a candidate up among the times that were measured."""

    at_once = 64

    def __init__(self, times: dict[int, float]) -> None:
        self.times = times
        self.asked: list[int] = []

    def build(self, inputs: list[Any]) -> list[Any]:
        """Name every candidate by its place in what was asked for."""
        out = []
        for item in inputs:
            self.asked.append(tvm_ffi.structural_hash(item.mod))
            out.append(ms.builder.BuilderResult(f"/nowhere/{len(self.asked) - 1}/a", None))
        return out

    def run(self, inputs: list[Any]) -> list[Any]:
        """Times from the table."""
        numbers = [int(str(item.artifact_path).split("/")[2]) for item in inputs]
        return [_Known(self.times[self.asked[number]]) for number in numbers]


class _Known:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def result(self) -> Any:
        return ms.runner.RunnerResult([self.seconds], None)


def target_of(described: str | None) -> Target:
    """That of earlier times, whose space of plans is another one; or this machine's CPU."""
    if described is None:
        return host_target()
    return Target({key: value for key, value in json.loads(described).items() if value})


def spaces(name: str, target: Target) -> tuple[PrimFunc, list[ScanPlan]]:
    """A workload's loop and every plan for it."""
    func = WORKLOADS[name]()
    found = extract(func)
    assert isinstance(found, Recurrence), found
    return func, list(enumerate_plans(target, found))


def built(name: str, numbers: range, folder: str) -> None:
    """Compile some plans of a workload into a folder, in a process of its own."""
    target = host_target()
    func, plans = spaces(name, target)
    for number in numbers:
        scan = parallelize(func, target, plans[number]).with_attr("global_symbol", "main")
        tvm.compile(scan, target=target).export_library(f"{folder}/{number}.so")


def measure(name: str, target: Target, known: dict[str, float], pool: Any) -> dict[str, Any]:
    """Check and time every plan of the space, or take known times; text to plans and seconds.

    All cores compile first; then nothing else runs beside what is timed.
    """
    func, plans = spaces(name, target)
    if known:
        return {str(plan): ((plan,), known[str(plan)]) for plan in plans if str(plan) in known}
    cases = make_cases(func)
    tensors = [tvm.runtime.tensor(array) for array in cases[0].inputs]
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        parts = [range(first, len(plans), 8) for first in range(8)]
        for job in [pool.submit(built, name, part, folder) for part in parts]:
            job.result()
        for number, plan in enumerate(plans):
            module = tvm.runtime.load_module(f"{folder}/{number}.so")
            for case in cases:
                arrays = [tvm.runtime.tensor(array) for array in case.inputs]
                module["main"](*arrays)
                wrong = compare(case, [arrays[i].numpy() for i, _ in case.expected])
                assert wrong is None, f"{plan}: {wrong}"
            timer = module.time_evaluator("main", tvm.cpu(), number=1, repeat=5, min_repeat_ms=5)
            # The least of five means: what else runs on the machine can only add.
            out[str(plan)] = ((plan,), float(min(timer(*tensors).results)))
    return out


def race(
    func: PrimFunc, target: Target, times: dict[str, Any], trials: int, seeds: int
) -> dict[str, np.ndarray]:
    """Curves of both searches: seeds x trials, best time so far over the best of all."""
    best = min(seconds for _, seconds in times.values())
    known = by_program(func, target, times)
    out = {}
    for strategy in STRATEGIES:
        curves = []
        for seed in range(seeds):
            table = Table(known)
            with tempfile.TemporaryDirectory() as folder:
                result = tune(
                    func,
                    target,
                    folder,
                    trials=trials,
                    seed=seed,
                    strategy=strategy,
                    builder=table,
                    runner=lambda _cases, table=table: table,
                    confirm=False,
                    progress=False,
                )
            curves.append(result.functions[0].curve())
        out[strategy] = np.array(curves) / best
    return out


def ranking(
    func: PrimFunc, target: Target, times: dict[str, Any], seeds: int, trained_on: int
) -> dict[str, Any]:
    """How well the cost model orders plans that it has not seen, after some drawn at random."""
    found = extract(func)
    rows = np.array([row_of(plans[0], target, found) for plans, _ in times.values()])
    seconds = np.array([second for _, second in times.values()])
    correlations, learnt = [], 0
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(rows))
        seen, unseen = order[:trained_on], order[trained_on:]
        model = TimeModel(seed)
        for i in seen:
            model.tell(rows[i], float(seconds[i]))
        learnt += model.predict(rows[unseen]) is not None
        # Also where it would not steer: what is written is what it knows, not what is used.
        guesses = model.guess(rows[unseen])
        correlations.append(rank_correlation(guesses, seconds[unseen]))
    return {
        "trained_on": trained_on,
        "mean": round(float(np.mean(correlations)), 4),
        "least": round(float(np.min(correlations)), 4),
        # Of n ranks in random order, the correlation is nearly normal with variance 1/(n - 1).
        "chance": round(1.96 / float(np.sqrt(len(rows) - trained_on - 1)), 4),
        "learnt": f"{learnt}/{seeds}",
    }


def race_named(
    name: str, described: str, seconds: dict[str, float], trials: int, seeds: int
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """``race`` and ``ranking`` of a workload by its name, for a process of its own."""
    func, target = WORKLOADS[name](), target_of(described)
    times = measure(name, target, seconds, None)
    curves = race(func, target, times, min(trials, len(times)), seeds)
    return curves, ranking(func, target, times, seeds, trials)


def run(
    target: Target,
    trials: int,
    seeds: int,
    only: str | None,
    earlier: dict[str, Any],
    keep: Path | None = None,
) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]]]:
    """Measure and race every workload: what the JSON file holds, and the curves."""
    measured = {}
    described = str(target)
    cores = host_processors()
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        for name in WORKLOADS:
            if only and only not in name:
                continue
            known = earlier.get("workloads", {}).get(name, {}).get("times", {})
            measured[name] = measure(name, target, known, pool)
            print(f"{name:32}{len(measured[name]):4} plans measured", flush=True)
            if keep is not None:
                of = {n: {"times": {t: s for t, (_, s) in m.items()}} for n, m in measured.items()}
                keep.write_text(json.dumps({"machine": machine(target), "workloads": of}))
        jobs = {
            name: pool.submit(
                race_named, name, described, {t: s for t, (_, s) in times.items()}, trials, seeds
            )
            for name, times in measured.items()
        }
        done = {name: job.result() for name, job in jobs.items()}
    curves = {name: found for name, (found, _) in done.items()}
    rows = {}
    for name, times in measured.items():
        default = next(iter(times.values()))[1]
        ordered = sorted((seconds, text) for text, (_, seconds) in times.items())
        rows[name] = {
            "space": len(times),
            "best": ordered[0][1],
            "best_seconds": ordered[0][0],
            "worst_seconds": ordered[-1][0],
            "default_seconds": default,
            "sequential_seconds": times.get("cpu/sequential()", (None, None))[1],
            "times": {text: seconds for text, (_, seconds) in times.items()},
            "ranking": done[name][1],
            **{s: [round(float(v), 4) for v in mean(curves[name][s])] for s in STRATEGIES},
        }
        ends = {s: mean(curves[name][s])[-1] for s in STRATEGIES}
        print(
            f"{name:32}{len(times):4} plans  best {ordered[0][0] * 1e6:9.1f} us  "
            f"default {default / ordered[0][0]:.2f}x  after {trials} trials: "
            f"search {ends['model']:.3f}x, random {ends['random']:.3f}x, "
            f"ranking {done[name][1]['mean']:.2f} (chance {done[name][1]['chance']:.2f})",
            flush=True,
        )
    length = min(c.shape[1] for found in curves.values() for c in found.values())
    curves = {n: {s: c[:, :length] for s, c in found.items()} for n, found in curves.items()}
    areas = {
        s: float(np.exp(np.mean([np.log(found[s]).mean() for found in curves.values()])))
        for s in STRATEGIES
    }
    print(f"over all trials: search {areas['model']:.3f}x, random {areas['random']:.3f}x")
    host = earlier.get("machine", machine(target))
    result = {"machine": host, "seeds": seeds, "mean_over_trials": areas, "workloads": rows}
    return result, curves


def main(argv: list[str] | None = None) -> int:
    """Print a table; exit code 1 where random search or chance is not beaten."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", help="workloads whose name has this in it")
    parser.add_argument("--replay", type=Path, help="result of an earlier run with its times")
    parser.add_argument("--keep", type=Path, help="file of the times so far, to go on from")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--plot", type=Path, help="where to write the curve, .svg")
    parser.add_argument("--markdown", type=Path, help="page whose marked part is replaced")
    parser.add_argument("--write", action="store_true", help="all three, where they belong")
    args = parser.parse_args(argv)
    if args.write:
        args.json = args.json or ROOT / "bench" / "results" / "search.json"
        args.plot = args.plot or ROOT / "docs" / "images" / "search.svg"
        args.markdown = args.markdown or ROOT / "docs" / "tuning.md"
    if args.keep and args.keep.is_file():
        args.replay = args.replay or args.keep
    earlier = json.loads(args.replay.read_text()) if args.replay else {}
    target = target_of(earlier["machine"]["target"] if earlier else None)
    threads = machine(target)["TVM_NUM_THREADS"]
    if earlier and earlier["machine"]["TVM_NUM_THREADS"] != threads:
        # The space and the default plan follow the number of threads.
        wanted = earlier["machine"]["TVM_NUM_THREADS"]
        parser.error(f"expected TVM_NUM_THREADS={wanted}, as it was measured")
    result, curves = run(target, args.trials, args.seeds, args.only, earlier, args.keep)
    if args.plot:
        plot(curves, args.plot)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.markdown:
        write_markdown(result, args.markdown)
    areas, rows = result["mean_over_trials"], result["workloads"].values()
    beats_chance = all(r["ranking"]["mean"] > r["ranking"]["chance"] for r in rows)
    return 0 if areas["model"] < areas["random"] and beats_chance else 1


if __name__ == "__main__":
    sys.exit(main())
