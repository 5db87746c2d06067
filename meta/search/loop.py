"""The loop of a search: propose, build, check and time, record, learn; then confirm."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tvm import tirx
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_scan.meta.measure.check import WRONG
from tvm_scan.meta.measure.progress import MachinesGoneError, Progress, Stop, shielded
from tvm_scan.meta.search.candidates import (
    Candidate,
    Candidates,
    candidate_of,
    first_plans,
    space_size,
)
from tvm_scan.meta.search.finals import PASSES, ROUNDS, contenders
from tvm_scan.meta.search.result import FunctionResult, Trial
from tvm_scan.meta.store.database import RecordStore
from tvm_scan.meta.store.entry import Entry
from tvm_scan.meta.store.files import is_database
from tvm_scan.meta.store.nearest import shapes_of
from tvm_scan.meta.store.provenance import provenance
from tvm_scan.meta.store.replay import workloads
from tvm_scan.meta.store.rows import times_of
from tvm_scan.schedules.machine.device import device_of

_LOG = logging.getLogger("tvm_scan")
#: Candidates that are built together: a builder starts its processes anew for every batch.
_BATCH = 8
#: Facts of a measurement without which its time says nothing of this search.
_SAME = ("host", "machine", "processor", "cores", "gpu")

Built = tuple[Candidate, ms.runner.RunnerInput]
Tell = Callable[[Candidate, ms.runner.RunnerResult], None]


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
    facts : mapping
        What the manifest is to keep with every record beside its provenance.
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
        facts: Mapping[str, Any],
    ) -> None:
        # As TVM's own tune_tir and compile_tir normalise it, so that they find the record.
        self.mod = workloads(func)[-1]
        self.target, self.seed, self.stop, self.bar = target, seed, stop, bar
        self.store = RecordStore(database)
        shapes = shapes_of(self.mod["main"])
        self.facts = {**facts, **provenance(target, seed), "shapes": shapes}
        self.first = first_plans(self.mod, target)
        self.result = FunctionResult(
            name, space_size(self.mod, target), default_plans=self.first[0]
        )
        self.earlier: dict[Any, Entry] = {}
        self.known: dict[Any, ms.runner.RunnerResult] = {}
        self.recorded: dict[Any, tuple[Candidate, str]] = {}

    def start_from_records(self) -> None:
        """Take what an earlier search measured here, so that it is not measured again.

        Of several records with the same plans, the last.
        """
        if is_database(self.store.folder):
            self.earlier = {
                tuple(entry.plans): entry
                for entry in self.store.usable_of(self.mod["main"], self.target)
                if all((entry.facts or {}).get(name) == self.facts.get(name) for name in _SAME)
            }

    def run(self, builder: Any, runner: Any, trials: int, strategy: str) -> None:
        """Measure until trials, time or space run out; records are beside the trials."""
        self.builder, self.runner = builder, runner
        left = self.result.space - len(self.earlier)
        self.trials = max(0, min(trials, left))
        self.bar.begin(self.result.name, self.trials)
        for plans in self.earlier:
            self._take(plans)
        first = self.first[:2] if strategy == "random" else self.first
        unknown = [plans for plans in first if plans not in self.known]
        # A space that is measured whole needs no order.
        learns = strategy == "model" or (strategy == "auto" and trials < left)
        source = Candidates(self.mod, self.target, self.seed, learns)
        opening = [candidate for candidate, _ in self.recorded.values()]
        opening += self._candidates(unknown[: self.trials])
        source.tell(opening, self._measure(opening))
        # Small batches learn sooner, large ones start fewer workers.
        batch = max(2, min(_BATCH, self.trials // 4)) if learns else _BATCH
        while self._left() and (candidates := source.next(min(batch, self._left()))):
            source.tell(candidates, self._measure(candidates))

    def _candidates(self, plans_of_nests: Iterable[Any]) -> list[Candidate]:
        candidates = (candidate_of(self.mod, plans, self.target) for plans in plans_of_nests)
        return [candidate for candidate in candidates if candidate is not None]

    def _take(self, plans: Any) -> None:
        """Count a record as a trial."""
        entry = self.earlier[plans]
        for candidate in self._candidates([plans]):
            seconds = times_of(entry.json, entry.facts)
            self.known[plans] = ms.runner.RunnerResult(seconds, None)
            self.recorded[plans] = (candidate, entry.digest)
            self.result.trials.append(Trial(plans, median(seconds), recorded=True))

    def end(self) -> None:
        """Say on the terminal what was found."""
        best = self.result.best
        self.bar.end(self.result.measured, None if best is None else best.seconds)

    def confirm(self) -> None:
        """Measure the fastest and the default again, in turns, until the fastest stays the fastest.

        A time that was measured once is the lower the luckier the moment was, and the least of
        many is the luckiest. The new times take the place of the old ones, in the records, too.
        """
        for _ in range(PASSES if self.result.measured else 0):
            group = contenders(self.result.trials, self.result.default)
            if self.stop or not group:
                return
            self.bar.confirm(len(group))
            rounds: dict[Any, list[ms.runner.RunnerResult]] = {t.plans: [] for t in group}

            def tell(candidate: Candidate, measured: Any, rounds: Any = rounds) -> None:
                rounds[candidate.plans].append(measured)

            candidates = [self.recorded[trial.plans][0] for trial in group]
            with self._built(candidates, tell) as waiting:
                for _ in range(ROUNDS):
                    self._each(waiting, tell)
            if self.stop:
                return  # some have had more rounds than others
            for plans, results in rounds.items():
                self._confirmed(plans, results)

    def _confirmed(self, plans: Any, rounds: list[ms.runner.RunnerResult]) -> None:
        candidate, earlier = self.recorded[plans]
        wrong = next((t for one_round in rounds if WRONG in (t := str(one_round.error_msg))), None)
        seconds = [float(t) for one_round in rounds for t in one_round.run_secs or []]
        if wrong is not None:
            # It was right before: what depends on the moment is wrong.
            self.store.update(lambda entries: [e for e in entries if e.digest != earlier])
            trial = self._wrong(plans, wrong)
        elif seconds:
            before = next(trial for trial in self.result.trials if trial.plans == plans)
            trial = replace(before, seconds=median(seconds), confirmed=True)
            self._record(candidate, seconds, instead_of=earlier)
        else:
            return
        plans_of_trials = [trial.plans for trial in self.result.trials]
        self.result.trials[plans_of_trials.index(plans)] = trial

    def _wrong(self, plans: Any, error: str) -> Trial:
        trial = Trial(plans, None, error, wrong=True)
        _LOG.error("%s with %s\n%s", self.result.name, trial, _line_with(WRONG, error))
        return trial

    def _left(self) -> int:
        return 0 if self.stop else self.trials - self.result.measured

    def _measure(self, candidates: list[Candidate]) -> list[ms.runner.RunnerResult]:
        """Build, check, time and record; what was measured before is not measured again."""
        new = [c for c in candidates if c.plans not in self.known]
        with self._built(new, self._note) as waiting:
            self._each(waiting, self._note)
        nothing = _nothing("not measured")
        return [self.known.get(c.plans, nothing) for c in candidates]

    @contextmanager
    def _built(self, candidates: list[Candidate], tell: Tell) -> Iterator[list[Built]]:
        """Build, and tell what cannot be; the artifacts are gone afterwards."""
        inputs = [ms.builder.BuilderInput(c.measure.sch.mod, self.target) for c in candidates]
        built = list(shielded(lambda: self.builder.build(inputs))) if inputs else []
        kind = device_of(self.target).runtime
        waiting: list[Built] = []
        for candidate, artifact in zip(candidates, built, strict=True):
            if artifact.error_msg is not None:
                tell(candidate, _nothing(str(artifact.error_msg)))
                continue
            runner_input = ms.runner.RunnerInput(
                artifact.artifact_path, kind, candidate.measure.args_info
            )
            waiting.append((candidate, runner_input))
        try:
            yield waiting
        finally:
            for _, runner_input in waiting:
                shutil.rmtree(Path(str(runner_input.artifact_path)).parent, ignore_errors=True)

    def _each(self, waiting: list[Built], tell: Tell) -> None:
        """Check and time; one by one where there is one device, so that each result is kept."""
        at_once = getattr(self.runner, "at_once", 1)
        for start in range(0, len(waiting), at_once):
            if self.stop:
                return
            group = waiting[start : start + at_once]
            try:
                futures = shielded(
                    partial(self.runner.run, [runner_input for _, runner_input in group])
                )
                for (candidate, _), future in zip(group, futures, strict=True):
                    tell(candidate, shielded(future.result))
            except MachinesGoneError as error:
                self.stop.reason = str(error)
                _LOG.error("%s", error)

    def _note(self, candidate: Candidate, measured: ms.runner.RunnerResult) -> None:
        error = None if measured.error_msg is None else str(measured.error_msg)
        if error is not None and self.stop.interrupted:
            return  # the worker was stopped, too
        self.known[candidate.plans] = measured
        if error is None:
            seconds = [float(t) for t in measured.run_secs]
            trial = Trial(candidate.plans, median(seconds))
            self._record(candidate, seconds)
        elif WRONG in error:
            trial = self._wrong(candidate.plans, error)
        else:
            trial = Trial(candidate.plans, None, error)
            _LOG.info("%s with %s did not run: %s", self.result.name, trial, error)
        self.result.trials.append(trial)
        best = self.result.best
        self.bar.advance(None if best is None else best.seconds)

    def _record(
        self, candidate: Candidate, seconds: list[float], instead_of: str | None = None
    ) -> None:
        # TVM orders records by the mean: of one number it is the median, too, by which we do.
        record = ms.database.TuningRecord(
            candidate.measure.sch.trace,
            ms.database.Workload(self.mod),
            [median(seconds)],
            self.target,
            candidate.measure.args_info,
        )
        plans = [str(plan) for plan in candidate.plans]
        facts = {**self.facts, "function": self.result.name, "plans": plans, "samples": seconds}
        entry = self.store.commit(self.mod, record, facts, instead_of=instead_of)
        self.recorded[candidate.plans] = (candidate, entry.digest)


def _nothing(reason: str) -> ms.runner.RunnerResult:
    return ms.runner.RunnerResult(None, reason)


def _line_with(word: str, text: str) -> str:
    return next((line for line in text.splitlines() if word in line), text)
