"""The loop of a search: propose, build, check and time, record, learn."""

from __future__ import annotations

import logging
import shutil
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tvm import IRModule, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_scan.meta.candidates import (
    Candidate,
    Evolved,
    Listed,
    candidate_of,
    first_plans,
    plan_sets,
    space_size,
)
from tvm_scan.meta.check import WRONG, recurrences_of
from tvm_scan.meta.database import RecordStore
from tvm_scan.meta.progress import Progress, Stop, shielded
from tvm_scan.meta.provenance import provenance
from tvm_scan.meta.result import FunctionResult, Trial
from tvm_scan.schedules.limits import device_of
from tvm_scan.schedules.shape_key import shape_key, sizes_of
from tvm_scan.schedules.splice import ensure_blocks

__all__ = ["FunctionSearch"]

_LOG = logging.getLogger("tvm_scan")
#: Candidates that are built together: a builder starts its processes anew for every batch.
_BATCH = 8


class FunctionSearch:
    """The search of one function.

    Parameters
    ----------
    name : str
        Of the function.
    func : PrimFunc
        The sequential function.
    target : tvm.target.Target
        What to tune for.
    database : Path
        Folder of the records.
    seed : int
        Of sampling and mutation.
    stop : Stop
        Asked before every measurement.
    bar : Progress
        Told after every one.
    """

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
        shapes = [(shape_key(r), *sizes_of(r)) for r in recurrences_of(self.mod["main"])]
        self.facts = {**provenance(target, seed), "shapes": shapes}
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
        # Small batches learn sooner, large ones start fewer workers.
        batch = max(2, min(_BATCH, self.trials // 4))
        evolved = Evolved(self.mod, self.target, self.trials, batch, self.seed)
        evolved.tell(opening, self._measure(opening))
        while self._left():
            best = self.result.best
            if best is not None and (near := evolved.near(best.plans, min(batch, self._left()))):
                evolved.tell(near, self._measure(near))
            if not (found := evolved.next()):
                return
            results = self._measure(found[: self._left()])
            results += [_nothing("not measured")] * (len(found) - len(results))
            evolved.tell(found, results)
            evolved.done(results)

    def _measure(self, candidates: list[Candidate]) -> list[ms.runner.RunnerResult]:
        """Build, check, time and record; what was measured before is not measured again."""
        new = [c for c in candidates if c.plans not in self.known]
        inputs = [ms.builder.BuilderInput(c.measure.sch.mod, self.target) for c in new]
        built = list(shielded(lambda: self.builder.build(inputs))) if inputs else []
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
                given = [item for _, _, item in group]
                futures = shielded(partial(self.runner.run, given))
                for (candidate, _, _), future in zip(group, futures, strict=True):
                    self._note(candidate, shielded(future.result))
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
