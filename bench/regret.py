"""How far is the default plan from the best? Random recurrences against samples of their spaces.

Each case is one interleaved run in one process: the default plan, the sequential loop and a sample
of the space take turns, each woken by an untimed call; the least of each counts. Regret is the
default's time over the best. Cases that look bad are timed a second time, alone with the best, in a
process of their own: which pages arrays lie in, and which cores threads run on, is decided anew.
These times count: of many plans that are timed once, the best one's is a lucky one, most of all
where memory is shared with others.
Cores that are one for a while (`bench.cores`) are waited for. A loop that rounds a carry of halves
at every step, as no default does, is timed but not compared. Maxima of integers, where scalar code
guesses which number is the larger one, get other numbers at every call: of the same ones a
processor has soon learnt its guesses. Each plan's round begins with others of these. A plan's time
is the mean of its least ones where all arrays begin alike and where they do not
(`bench.placement`): nobody knows which it will find.

    python -m bench.regret [--cases N] [--seed N] [--add] [--json bench/results/regret.json]

A long run in pieces: each with a seed of its own and ``--add``, which adds its cases to the file's.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from math import exp, inf, log
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from bench.answers import close
from bench.cores import on_cores
from bench.placement import PLACEMENTS, placed
from bench.regret_cases import Case, inputs_of, random_case
from bench.timing import interleaved, machine
from tvm_scan import Recurrence, default_plan, extract, parallelize
from tvm_scan.arguments import as_target, host_target
from tvm_scan.meta.space.decisions import branches, fits
from tvm_scan.schedules.choose.rules import factor_of
from tvm_scan.schedules.plan import ScanPlan

__all__ = ["main"]

#: Regret from which a case is timed a second time.
_OUTLIER = 1.15
_LOOP = ScanPlan.of("cpu", "sequential")
#: Pieces that a case is timed in.
_PIECES = 3
#: More numbers than a processor learns its guesses of, and arrays of them at most.
_UNLEARNT, _ARRAYS = 1 << 17, 256
#: How far a plan may be from the loop, as a share of the largest value: it is the same program.
_CLOSE = {"float64": 1e-9, "float32": 2e-3, "bfloat16": 5e-2, "float16": 2e-2}


@dataclass(frozen=True)
class Row:
    """Seconds of one case.

    Attributes
    ----------
    case : str
        What ran.
    plan, best : str
        The default plan, and the fastest of those timed.
    default_us, loop_us, best_us : float
        Least times in microseconds.
    regret : float
        The default's over the best's.
    apart : bool
        Whether the cores were, see `bench.cores`.
    same_numbers : bool
        Whether the loop's are those of every other plan. It rounds a carry of halves at every step,
        which no default does, so that it is timed but not compared.
    """

    case: str
    plan: str
    best: str
    default_us: float
    loop_us: float
    best_us: float
    regret: float
    apart: bool = True
    same_numbers: bool = True


def sample(rng: random.Random, target: Target, found: Recurrence, count: int) -> list[ScanPlan]:
    """Plans of the space beside the default and the loop, drawn from its branches in turns."""
    kinds = [[p for p in b.plans() if fits(p, target, found)] for b in branches(target, found)]
    for plans in kinds:
        rng.shuffle(plans)
    out: dict[ScanPlan, None] = {}
    while any(kinds) and len(out) < count:
        for plans in kinds:
            if plans and len(out) < count:
                out[plans.pop()] = None
    return list(out)


class Prepared:
    """The compiled plans of a case, compared with its loop.

    Parameters
    ----------
    case : Case
        What runs.
    target : tvm.target.Target
        A CPU.
    """

    def __init__(self, case: Case, target: Target) -> None:
        self.case, self.target = case, target
        self.func = case.func
        found = extract(self.func)
        assert isinstance(found, Recurrence), f"{case.label}: {found}"
        self.recurrence = found
        self.name = str(self.func.attrs["global_symbol"])
        given = inputs_of(case)
        written = list(self.func.params)[len(given) :]
        zeros = [_zeros(param) for param in written]
        inputs = [given, *self._others(given)]
        self.calls = {alike: _placed(inputs, zeros, alike) for alike in PLACEMENTS}
        self.tensors = self.calls[PLACEMENTS[0]][0]
        self.outputs = self.tensors[len(given) :]
        self.runs: dict[ScanPlan, Any] = {}
        self.apart = True
        self.want = self._results(tvm.compile(self.func, target=target)[self.name])

    def _others(self, given: list[np.ndarray]) -> list[list[np.ndarray]]:
        """Inputs of further calls, where the same numbers would be learnt."""
        if not self.case.guesses:
            return []
        count = min(_ARRAYS, -(-_UNLEARNT // given[0].size)) - 1
        rng = np.random.default_rng(1)
        # Integers are what is guessed from. If all else changed, most of it would come from beyond
        # the caches in which other cases have it.
        return [
            [rng.permuted(v) if v.dtype.kind == "i" else v for v in given] for _ in range(count)
        ]

    def _results(self, run: Any) -> list[np.ndarray]:
        run(*self.tensors)
        return [t.numpy().copy() for t in self.outputs]

    def add(self, plan: ScanPlan) -> None:
        """Compile a plan and compare it with the loop."""
        if plan in self.runs:
            return
        func = parallelize(self.func, self.target, plan)
        run = tvm.compile(func, target=self.target)[self.name]
        for got, want in zip(self._results(run), self.want, strict=True):
            relative = _CLOSE.get(str(want.dtype), 0.0)
            if not close(got, want, relative):
                raise AssertionError(f"{self.case.label}: {plan} differs from the loop")
        self.runs[plan] = run

    def times(self, plans: list[ScanPlan], seconds: float, least: int) -> dict[ScanPlan, float]:
        """Seconds of each, in turns, in pieces for which the cores are apart."""
        for plan in plans:
            self.add(plan)
        names = {plan: {alike: f"{plan} {alike}" for alike in PLACEMENTS} for plan in plans}
        calls = {
            name: partial(_call, self.runs[plan], _turns(self.calls[alike], number / len(plans)))
            for number, (plan, placements) in enumerate(names.items())
            for alike, name in placements.items()
        }
        times = dict.fromkeys(calls, inf)

        def piece() -> None:
            # A moment before each turn, so that the call that wakes its threads is not timed.
            rounds = -(-least // _PIECES)
            found = interleaved(calls, seconds=seconds / _PIECES, least=rounds, gap=1e-6)
            times.update({call: min(times[call], found[call].least) for call in calls})

        self.apart = on_cores(piece, _PIECES) and self.apart
        return {plan: fmean(times[name] for name in names[plan].values()) for plan in plans}


def _placed(
    inputs: list[list[np.ndarray]], outputs: list[np.ndarray], alike: bool
) -> list[list[Any]]:
    """Arguments of calls with each of some inputs, which all write the same outputs.

    What is the same array in all of them stays where it is.
    """
    given, *others = inputs
    first = placed([*given, *outputs], alike)
    written = first[len(given) :]
    calls = [first]
    for arrays in others:
        own = placed(arrays, alike, others=len(written))
        same = [old is new for old, new in zip(given, arrays, strict=True)]
        read = [first[i] if same[i] else tensor for i, tensor in enumerate(own)]
        calls.append([*read, *written])
    return calls


def _turns(calls: list[list[Any]], share: float) -> Iterator[list[Any]]:
    """Arguments of calls again and again, from those behind a share of them on.

    If all plans began with the same ones, the first would bring them to the caches for the others.
    """
    first = int(share * len(calls))
    return cycle([*calls[first:], *calls[:first]])


def _call(run: Any, arguments: Iterator[list[Any]]) -> None:
    run(*next(arguments))


def _zeros(param: Any) -> np.ndarray:
    return np.zeros([int(e) for e in param.ty.shape], str(param.ty.dtype))


def measure(
    case: Case, target: Target, rng: random.Random, count: int, seconds: float, least: int
) -> tuple[Row, dict[ScanPlan, float]]:
    """Time one case."""
    prepared = Prepared(case, target)
    found = prepared.recurrence
    default = default_plan(target, found)
    others = sample(rng, target, found, count)
    plans = list(dict.fromkeys([default, _LOOP, *others]))
    times = prepared.times(plans, seconds, least)
    same = factor_of(_LOOP, found)[0] < inf
    compared = [p for p in plans if same or p != _LOOP]
    best = min(compared, key=lambda p: times[p])
    late = same and times[default] > 1.03 * times[_LOOP]
    if default != best and (times[default] > _OUTLIER * times[best] or late):
        looked_at = [default, best, _LOOP]
        again, apart = timed_anew(case, target, looked_at, 2 * seconds / 3, 2 * least)
        prepared.apart = prepared.apart and apart
        times |= again
        best = min((p for p in looked_at if p in compared), key=lambda p: times[p])
    row = Row(
        case.label,
        str(default),
        str(best),
        times[default] * 1e6,
        times[_LOOP] * 1e6,
        times[best] * 1e6,
        times[default] / times[best],
        prepared.apart,
        same,
    )
    return row, times


def timed_anew(
    case: Case, target: Target, plans: list[ScanPlan], seconds: float, least: int
) -> tuple[dict[ScanPlan, float], bool]:
    """Time plans of a case in a process of their own, and say whether the cores were apart."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_timed, case, str(target), plans, seconds, least).result()


def _timed(
    case: Case, target: str, plans: list[ScanPlan], seconds: float, least: int
) -> tuple[dict[ScanPlan, float], bool]:
    prepared = Prepared(case, Target(_target(target)))
    return prepared.times(plans, seconds, least), prepared.apart


def summary(rows: list[Row]) -> dict[str, Any]:
    """Geometric mean, worst, and how many are slower than the loop by more than 5 %."""
    slower = [row.case for row in rows if _late(row)]
    return {
        "cases": len(rows),
        "geometric_mean": exp(sum(log(row.regret) for row in rows) / max(1, len(rows))),
        "worst": max((row.regret for row in rows), default=1.0),
        "above_1.25": sum(row.regret > 1.25 for row in rows),
        "slower_than_loop": slower,
        "not_apart": sum(not row.apart for row in rows),
    }


def _late(row: Row) -> bool:
    return row.same_numbers and row.default_us > 1.05 * row.loop_us and row.plan != str(_LOOP)


def main(argv: list[str] | None = None) -> int:
    """Print the table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two small cases")
    parser.add_argument("--cases", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases and samples (default: 0)")
    parser.add_argument("--plans", type=int, default=14, help="sampled for each (default: 14)")
    parser.add_argument("--seconds", type=float, default=0.6, help="of timing for each case")
    parser.add_argument("--target", help="a CPU target as JSON (default: this machine)")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--add", action="store_true", help="to the cases that the JSON file has")
    parser.add_argument("--all", type=Path, help="where to add every time, a line for each case")
    args = parser.parse_args(argv)
    target = host_target() if args.target is None else as_target(_target(args.target), "regret")
    assert target is not None
    before = _before(args.json, target) if args.add and args.json else {"seeds": [], "rows": []}
    rng = random.Random(args.seed)
    cases = [random_case(rng) for _ in range(args.cases)]
    if args.quick:
        cases = [Case("cumsum", (4, 300)), Case("linear_recurrence", (1, 1000), {"layout": "ld"})]
        args.plans, args.seconds = 3, 0.02
    print(f"seed {args.seed}, {len(cases)} cases, {target}")
    rows: list[Row] = []
    for number, case in enumerate(cases):
        row, times = measure(
            case, target, random.Random(f"{args.seed} {number}"), args.plans, args.seconds, 5
        )
        rows.append(row)
        print(
            f"{row.regret:5.2f} {row.default_us / row.loop_us:6.2f} of the loop "
            f"{row.default_us:10.1f}us  {row.case}: {row.plan}; best {row.best}",
            flush=True,
        )
        if args.all:
            with args.all.open("a", encoding="utf-8") as lines:
                seconds = {str(plan): value for plan, value in times.items()}
                lines.write(json.dumps({**asdict(case), "seconds": seconds}) + "\n")
    rows = [*(Row(**row) for row in before["rows"]), *rows]
    found = summary(rows)
    print(
        f"regret: geometric mean {found['geometric_mean']:.3f}, worst {found['worst']:.2f}, "
        f"{found['above_1.25']} of {len(rows)} above 1.25; slower than the loop by more than 5 %: "
        f"{len(found['slower_than_loop'])}"
    )
    for case_label in found["slower_than_loop"]:
        print(f"  {case_label}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        payload = {
            "machine": machine(target),
            "seeds": [*before["seeds"], args.seed],
            "summary": found,
            "rows": [asdict(row) for row in rows],
        }
        args.json.write_text(json.dumps(payload, indent=1) + "\n")
    return 0


def _before(path: Path, target: Target) -> dict[str, Any]:
    """Cases of the pieces before, which ran for the same target with as many threads."""
    if not path.exists():
        return {"seeds": [], "rows": []}
    before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    about, now = before["machine"], machine(target)
    for name in ("cpu", "target", "TVM_NUM_THREADS"):
        if about[name] != now[name]:
            raise SystemExit(f"{path}: expected {name} {about[name]}, got {now[name]}")
    return before


def _target(text: str) -> Any:
    return json.loads(text) if text.startswith("{") else text


if __name__ == "__main__":
    sys.exit(main())
