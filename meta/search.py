"""``tune``: find the plan of every recurrence of a program, and record what was measured.

candidates -> build (worker) -> check against the loop, time (worker) -> record
^                                                        |
+-------------------- cost model <-----------------------+
"""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import numpy as np
from tvm import IRModule, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_scan.errors import RefusalError, ScanError
from tvm_scan.extraction import extract
from tvm_scan.meta.candidates import (
    Candidate,
    Evolved,
    Listed,
    candidate_of,
    first_plans,
    plan_sets,
    space_size,
)
from tvm_scan.meta.check import WRONG, make_cases, recurrences_of, save_cases
from tvm_scan.meta.database import RecordStore
from tvm_scan.meta.progress import Progress, Stop, stop_on_interrupt
from tvm_scan.meta.provenance import provenance
from tvm_scan.meta.result import FunctionResult, Trial, TuningResult
from tvm_scan.meta.workers import local_builder, local_runner
from tvm_scan.recurrence import Refusal
from tvm_scan.schedules.default import host_target
from tvm_scan.schedules.limits import device_of
from tvm_scan.schedules.splice import ensure_blocks

__all__ = ["tune"]

_LOG = logging.getLogger("tvm_scan")
#: Candidates that are built together: a builder starts its processes anew for every batch.
_BATCH = 8

Program = tirx.PrimFunc | IRModule | Mapping[str, tirx.PrimFunc]
RunnerFactory = Callable[[Path], ms.runner.Runner]


def tune(
    program: Program,
    target: Target | None = None,
    database: str | Path = "tvm_scan_records",
    *,
    trials: int = 64,
    budget: float | None = None,
    seed: int = 0,
    strategy: str = "auto",
    builder: ms.builder.Builder | None = None,
    runner: RunnerFactory | None = None,
    config: ms.runner.EvaluatorConfig | None = None,
    initializer: Callable[[], None] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    progress: bool = True,
) -> TuningResult:
    """Measure plans for every recurrence of a program, and keep the records.

    Parameters
    ----------
    program : PrimFunc, IRModule or mapping of str to PrimFunc
        Functions with constant extents; those without a recurrence are passed over.
    target : tvm.target.Target, optional
        This machine's CPU if not given.
    database : path
        Folder of the records; made if need be. What is in it stays.
    trials : int
        Most candidates for each function, the default and the sequential plan among them. A
        space that is no larger is measured whole.
    budget : float, optional
        Most minutes for the whole program.
    seed : int
        Of inputs, sampling and mutation.
    strategy : {"auto", "evolution", "random"}
        ``auto`` measures a small space whole and evolves candidates in a larger one;
        ``random`` is what the search is compared with.
    builder : Builder, optional
        ``local_builder()`` if not given.
    runner : callable, optional
        From the file of the check's cases to a runner; ``local_runner`` if not given,
        ``meta.rpc.rpc_runner(...)`` for other machines.
    config : EvaluatorConfig, optional
        How often a candidate runs.
    initializer : callable, optional
        Runs first in every worker process of the default builder and runner.
    inputs : mapping of str to ndarray, optional
        For the check and the timing, by parameter name, where invented ones mean nothing.
    progress : bool
        Whether to draw a bar on the terminal.

    Returns
    -------
    TuningResult

    Raises
    ------
    RefusalError
        If no function of the program has a recurrence; the message says why not.
    ScanError
        If a function has symbolic extents, xgboost is missing, or the database cannot be written.
    """
    if strategy not in ("auto", "evolution", "random") or trials < 1:
        raise ScanError(
            f"tune: expected strategy auto, evolution or random and at least one trial, got "
            f"{strategy!r} and {trials}; choose one of them"
        )
    target = target or host_target()
    functions = _functions(program)
    begin = monotonic()
    result = TuningResult(Path(database))
    stop = Stop()
    noise = np.random.get_state()  # TVM's cost model draws from NumPy's global generator
    np.random.seed(seed)
    start = partial(_start_worker, initializer)
    builder = builder or local_builder(initializer=start)
    try:
        with stop_on_interrupt(stop), Progress(progress) as bar:
            for number, (name, func) in enumerate(functions):
                if budget is not None:
                    left = budget * 60 - (monotonic() - begin)
                    stop.deadline = monotonic() + left / (len(functions) - number)
                with tempfile.TemporaryDirectory(prefix="tvm-scan-tune-") as folder:
                    cases = Path(folder) / "cases"
                    save_cases(make_cases(func, seed=seed, inputs=inputs), cases)
                    made = (
                        runner(cases)
                        if runner is not None
                        else local_runner(cases, config=config, initializer=start)
                    )
                    search = _Search(name, func, target, result.database, seed, stop, bar)
                    result.functions.append(search.result)
                    search.run(builder, made, trials, strategy)
                if stop.interrupted:
                    break
    finally:
        np.random.set_state(noise)
    result.interrupted = stop.interrupted
    result.seconds = monotonic() - begin
    return result


def _start_worker(initializer: Callable[[], None] | None) -> None:
    """In a worker: Ctrl-C is the parent's business, so that a measurement can end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if initializer is not None:
        initializer()


def _functions(program: Program) -> list[tuple[str, tirx.PrimFunc]]:
    """The functions with a recurrence, or the refusal of the first one without."""
    if isinstance(program, tirx.PrimFunc):
        name = str((program.attrs or {}).get("global_symbol", "main"))
        named: Iterable[tuple[str, Any]] = [(name, program)]
    elif isinstance(program, IRModule):
        named = [(str(g.name_hint), f) for g, f in program.functions_items()]
    else:
        named = program.items()
    every = [(name, f) for name, f in named if isinstance(f, tirx.PrimFunc)]
    found = [(name, f) for name, f in every if recurrences_of(f)]
    if not found:
        for _, func in every:
            refusal = extract(func)
            if isinstance(refusal, Refusal):
                raise RefusalError(refusal.message(), refusal)
        raise ScanError("tune: expected a program with a recurrence, found no function; add one")
    return found


class _Search:
    """The search of one function."""

    def __init__(
        self,
        name: str,
        func: tirx.PrimFunc,
        target: Target,
        database: Path,
        seed: int,
        stop: Stop,
        bar: Progress,
    ) -> None:
        # As TVM's own tune_tir and compile_tir normalise it, so that they find the record.
        blocked = ensure_blocks(func)
        if not (blocked.attrs and "global_symbol" in blocked.attrs):
            blocked = blocked.with_attr("global_symbol", "main")
        self.mod = IRModule({"main": blocked.with_attr("tirx.noalias", True)})
        self.target, self.seed, self.stop, self.bar = target, seed, stop, bar
        self.store = RecordStore(database)
        self.facts = provenance(target, seed)
        self.result = FunctionResult(name, space_size(self.mod, target))
        self.known: dict[Any, ms.runner.RunnerResult] = {}

    def run(self, builder: Any, runner: Any, trials: int, strategy: str) -> None:
        """Measure until trials, time or space run out."""
        self.builder, self.runner = builder, runner
        trials = min(trials, self.result.space)
        self.trials = trials
        self.bar.begin(self.result.name, trials)
        whole = trials >= self.result.space
        first = first_plans(self.mod, self.target)
        if strategy == "random":
            first = first[:2]
        made = [candidate_of(self.mod, plans, self.target) for plans in first[:trials]]
        opening = [c for c in made if c is not None]
        if strategy == "random" or (strategy == "auto" and whole):
            self._measure(opening)
        else:
            self._evolve(opening)
        rest = Listed(self.mod, self.target, plan_sets(self.mod, self.target, self.seed))
        while self._left() and (more := rest.next(min(_BATCH, self._left()))):
            self._measure(more)
        self.bar.end(len(self.result.trials))

    def _left(self) -> int:
        return 0 if self.stop else self.trials - len(self.result.trials)

    def _evolve(self, opening: list[Candidate]) -> None:
        evolved = Evolved(self.mod, self.target, self.trials, _BATCH, self.seed)
        evolved.tell(opening, self._measure(opening))
        while self._left():
            batch = evolved.next(_BATCH)
            if not batch:
                return
            results = self._measure(batch[: self._left()])
            results += [_nothing("not measured")] * (len(batch) - len(results))
            evolved.tell(batch, results)
            evolved.done(results)

    def _measure(self, candidates: list[Candidate]) -> list[ms.runner.RunnerResult]:
        """Build, check, time and record; what was measured before is not measured again."""
        new = [c for c in candidates if c.plans not in self.known]
        inputs = [ms.builder.BuilderInput(c.measure.sch.mod, self.target) for c in new]
        built = list(self.builder.build(inputs)) if inputs else []
        kind = "cuda" if device_of(self.target) == "cuda" else "cpu"
        waiting = []
        for candidate, artifact in zip(new, built, strict=True):
            if artifact.error_msg is not None:
                self._note(candidate, _nothing(str(artifact.error_msg)))
                continue
            given = ms.runner.RunnerInput(artifact.artifact_path, kind, candidate.measure.args_info)
            waiting.append((candidate, artifact, given))
        for group in self._groups(waiting):
            if not self.stop:
                futures = self.runner.run([given for _, _, given in group])
                for (candidate, _, _), future in zip(group, futures, strict=True):
                    self._note(candidate, future.result())
        for _, artifact, _ in waiting:
            shutil.rmtree(Path(str(artifact.artifact_path)).parent, ignore_errors=True)
        nothing = _nothing("not measured")
        return [self.known.get(c.plans, nothing) for c in candidates]

    def _groups(self, waiting: list[Any]) -> list[list[Any]]:
        """One by one where there is one device, so that each result is kept at once."""
        at_once = getattr(self.runner, "at_once", 1)
        return [waiting[i : i + at_once] for i in range(0, len(waiting), at_once)]

    def _note(self, candidate: Candidate, measured: ms.runner.RunnerResult) -> None:
        error = None if measured.error_msg is None else str(measured.error_msg)
        if error is not None and self.stop.interrupted:
            return  # the worker was stopped, too
        wrong = error is not None and WRONG in error
        seconds = median(float(t) for t in measured.run_secs) if measured.run_secs else None
        trial = Trial(candidate.plans, seconds, error, wrong)
        self.known[candidate.plans] = measured
        self.result.trials.append(trial)
        if wrong:
            _LOG.error("%s with %s\n%s", self.result.name, trial, _line_with(WRONG, error or ""))
        elif error is not None:
            _LOG.info("%s with %s did not run: %s", self.result.name, trial, error)
        else:
            self._record(candidate, measured)
        best = self.result.best
        self.bar.advance(None if best is None else best.seconds)

    def _record(self, candidate: Candidate, measured: ms.runner.RunnerResult) -> None:
        record = ms.database.TuningRecord(
            candidate.measure.sch.trace,
            ms.database.Workload(self.mod),
            list(measured.run_secs),
            self.target,
            candidate.measure.args_info,
        )
        plans = [str(plan) for plan in candidate.plans]
        facts = {**self.facts, "function": self.result.name, "plans": plans}
        self.store.commit(self.mod, record, facts)


def _nothing(reason: str) -> ms.runner.RunnerResult:
    return ms.runner.RunnerResult(None, reason)


def _line_with(word: str, text: str) -> str:
    return next((line for line in text.splitlines() if word in line), text)
