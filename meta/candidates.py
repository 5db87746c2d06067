"""Where candidates come from: a list for a small space, evolution under a cost model else."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_scan.errors import ScanError
from tvm_scan.meta.check import recurrences_of
from tvm_scan.meta.context import light_context
from tvm_scan.meta.costs import costs_of
from tvm_scan.meta.decisions import enumerate_plans, neighbours
from tvm_scan.meta.expand import expand_checked
from tvm_scan.meta.space import annotate, scan_space
from tvm_scan.schedules.annotated import annotated_plans
from tvm_scan.schedules.default import default_plan
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.splice import blocks_in

__all__ = [
    "Candidate",
    "Evolved",
    "Listed",
    "candidate_of",
    "first_plans",
    "plan_sets",
    "space_size",
]

Plans = tuple[ScanPlan, ...]
_LOG = logging.getLogger("tvm_scan.search")


@dataclass(frozen=True, eq=False)
class Candidate:
    """One program to measure.

    Attributes
    ----------
    plans : tuple of ScanPlan
        One for each recurrence of the function, in order.
    measure : MeasureCandidate
        Its schedule, expanded, and the arguments.
    """

    plans: Plans
    measure: ms.MeasureCandidate


def candidate_of(mod: IRModule, plans: Plans, target: Target) -> Candidate | None:
    """Annotate and expand, with the same trace that a sampled candidate has.

    Parameters
    ----------
    mod : IRModule
        The sequential function, called ``main``.
    plans : tuple of ScanPlan
        One for each of its recurrences.
    target : tvm.target.Target
        What to tune for.

    Returns
    -------
    Candidate or None
        None where a plan does not fit.
    """
    sch = Schedule(mod)
    root = sch.get_sblock(mod["main"].body.block.name_hint)
    nests = [found.nest for found in recurrences_of(mod["main"])]
    done: set[int] = set()
    for block in sch.get_child_blocks(root):
        stmt = sch.get(block)
        for number, nest in enumerate(nests):
            if number not in done and any(b.same_as(stmt) for b in blocks_in(nest)):
                done.add(number)
                annotate(sch, block, plans[number])
    sch.enter_postproc()
    if len(done) < len(plans) or not expand_checked(sch, target):
        return None
    return Candidate(plans, _measure(sch, mod))


def _measure(sch: Schedule, mod: IRModule) -> ms.MeasureCandidate:
    return ms.MeasureCandidate(sch, ms.arg_info.ArgInfo.from_prim_func(mod["main"]))


def first_plans(mod: IRModule, target: Target) -> list[Plans]:
    """What is always measured: the defaults, the loop, and each algorithm's best by its costs.

    Parameters
    ----------
    mod : IRModule
        The sequential function.
    target : tvm.target.Target
        What to tune for.

    Returns
    -------
    list of tuple of ScanPlan
        Without repetitions; the default plans first, the sequential ones second.
    """
    found = recurrences_of(mod["main"])
    spaces = [enumerate_plans(target, r) for r in found]
    default = tuple(default_plan(target, r) for r in found)
    loop = tuple(
        next((p for p in space if p.algorithm == "sequential"), chosen)
        for space, chosen in zip(spaces, default, strict=True)
    )

    def kind_of(plan: ScanPlan) -> tuple[Any, ...]:
        transposed = plan.transpose or plan.block_load == "transposed"
        chunks = plan.device == "cuda" and plan.chunks > 0
        return plan.algorithm, plan.vectorize, plan.time_vector > 0, transposed, chunks

    kinds = dict.fromkeys(kind_of(p) for space in spaces for p in space)
    guesses = []
    for kind in kinds:
        guess = []
        for space, r, chosen in zip(spaces, found, default, strict=True):
            same = [p for p in space if kind_of(p) == kind]
            # The last of equals: larger blocks and tiles have less to start and to exchange.
            costs = {p: costs_of(p, target, r).span for p in reversed(same)}
            guess.append(min(costs, key=lambda p: costs[p]) if costs else chosen)
        guesses.append(tuple(guess))
    return list(dict.fromkeys([default, loop, *guesses]))


def space_size(mod: IRModule, target: Target) -> int:
    """Number of combinations of plans that fit."""
    return prod(len(enumerate_plans(target, r)) for r in recurrences_of(mod["main"]))


def plan_sets(mod: IRModule, target: Target, seed: int) -> Iterator[Plans]:
    """Every combination of plans, shuffled if they are few, drawn at random else."""
    spaces = [enumerate_plans(target, r) for r in recurrences_of(mod["main"])]
    rng = random.Random(seed)
    if prod(map(len, spaces)) <= 4096:
        every = list(itertools.product(*spaces))
        rng.shuffle(every)
        yield from every
        return
    seen: set[Plans] = set()
    for _ in range(1 << 16):
        drawn = tuple(rng.choice(space) for space in spaces)
        if drawn not in seen:
            seen.add(drawn)
            yield drawn


class Listed:
    """Candidates in a given order; results are not looked at."""

    def __init__(self, mod: IRModule, target: Target, plans: Iterator[Plans]) -> None:
        self.mod, self.target, self.plans = mod, target, iter(plans)

    def next(self, count: int) -> list[Candidate]:
        """Up to ``count`` candidates; none at the end."""
        out: list[Candidate] = []
        for plans in self.plans:
            found = candidate_of(self.mod, plans, self.target)
            if found is not None:
                out.append(found)
            if len(out) == count:
                break
        return out

    def tell(self, candidates: list[Candidate], results: list[ms.runner.RunnerResult]) -> None:
        """Nothing is learnt."""


class Evolved:
    """TVM's ``EvolutionarySearch``, its population sized for spaces of a hundred plans.

    Parameters
    ----------
    mod : IRModule
        The sequential function.
    target : tvm.target.Target
        What to tune for.
    trials : int
        Upper bound of candidates.
    batch : int
        Candidates at a time.
    seed : int
        Of sampling and mutation.
    cost_model : CostModel, optional
        XGBoost on ``ScanFeatures`` if not given.
    """

    def __init__(
        self,
        mod: IRModule,
        target: Target,
        trials: int,
        batch: int,
        seed: int,
        cost_model: Any = None,
    ) -> None:
        self.mod, self.target = mod, target
        self.database = ms.database.MemoryDatabase()
        self.workload = self.database.commit_workload(mod)
        self.cost_model = cost_model or _xgboost()
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=24,
            init_measured_ratio=0.25,
            init_min_unmeasured=8,
            max_fail_count=20,
            genetic_num_iters=2,
            genetic_max_fail_count=4,
            eps_greedy=0.1,
        )
        self.context = light_context(
            mod,
            target,
            space=scan_space(target, seed=seed, marked=False),
            strategy=strategy,
            seed=seed % ((1 << 31) - 1) + 1,
            logger=_LOG,
        )
        self.strategy = self.context.search_strategy
        spaces = self.context.generate_design_space()
        self.strategy.pre_tuning(trials, batch, spaces, self.database, self.cost_model)
        self.pending: list[Any] = []
        self.seen: set[Plans] = set()

    def near(self, plans: Plans, count: int) -> list[Candidate]:
        """Neighbours of good plans, those first that cost less by analysis.

        Parameters
        ----------
        plans : tuple of ScanPlan
            The best so far.
        count : int
            Most candidates.

        Returns
        -------
        list of Candidate
        """
        found = recurrences_of(self.mod["main"])
        moves: dict[Plans, float] = {}
        for number, recurrence in enumerate(found):
            for plan in neighbours(plans[number], self.target, recurrence):
                moved = (*plans[:number], plan, *plans[number + 1 :])
                moves[moved] = costs_of(plan, self.target, recurrence).span
        ordered = sorted((m for m in moves if m not in self.seen), key=lambda m: moves[m])
        made = [candidate_of(self.mod, m, self.target) for m in ordered[:count]]
        return [candidate for candidate in made if candidate is not None]

    def next(self) -> list[Candidate]:
        """A batch; none once the search finds nothing new."""
        for _ in range(3):
            found = self.strategy.generate_measure_candidates()
            if found is None:
                return []
            self.pending = list(found)
            if self.pending:
                return [Candidate(_plans_of(m, self.mod), m) for m in self.pending]
            self.strategy.notify_runner_results([], [])
        return []

    def tell(self, candidates: list[Candidate], results: list[ms.runner.RunnerResult]) -> None:
        """Learn from results; also from those of candidates that came from elsewhere."""
        for candidate, result in zip(candidates, results, strict=True):
            self.seen.add(candidate.plans)
            if result.run_secs:
                record = ms.database.TuningRecord(
                    candidate.measure.sch.trace,
                    self.workload,
                    list(result.run_secs),
                    self.target,
                    candidate.measure.args_info,
                )
                self.database.commit_tuning_record(record)
        measured = [candidate.measure for candidate in candidates]
        self.cost_model.update(self.context, measured, results)

    def done(self, results: list[ms.runner.RunnerResult]) -> None:
        """Close a batch of ``next``: one result for each of its candidates."""
        self.strategy.notify_runner_results(self.pending, results)


def _plans_of(measure: ms.MeasureCandidate, mod: IRModule) -> Plans:
    sch = Schedule(mod)
    measure.sch.trace.apply_to_schedule(sch, remove_postproc=False)
    return tuple(plan for _, plan in annotated_plans(sch))


def _xgboost() -> ms.cost_model.CostModel:
    try:
        import xgboost  # noqa: F401
    except ImportError:
        raise ScanError(
            "tune: expected xgboost for the cost model of a search, found none; run "
            "python -m pip install 'tvm_scan[tune]', or raise trials to the size of the space"
        ) from None
    from tvm_scan.meta.features import ScanFeatures

    return ms.cost_model.XGBModel(
        extractor=ScanFeatures(), num_warmup_samples=6, num_tuning_cores=1, adaptive_training=False
    )
