"""The source of candidates: those of a space, ranked by a cost model where there is one."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from math import inf, prod
from statistics import median

import numpy as np
from tvm import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_scan.meta.search.cost_model import TimeModel
from tvm_scan.meta.search.features import row_of
from tvm_scan.meta.space.decisions import enumerate_plans
from tvm_scan.meta.space.expand import expand_checked
from tvm_scan.meta.space.rule import annotate
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.choose.default import default_plan
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.splice import blocks_in

Plans = tuple[ScanPlan, ...]
#: Combinations of plans that are all looked at; of more, how many are drawn.
_WHOLE, _DRAWN = 1 << 14, 1 << 12
#: Candidates of a batch of which none is drawn at random; good ones whose neighbours are looked at.
_FEW = 2


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
    nests = [recurrence.nest for recurrence in analyse(mod["main"]).accepted]
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
    """Plans that are always measured: defaults, the loop, and each kind's best by its prediction.

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
    recurrences = analyse(mod["main"]).accepted
    spaces = [enumerate_plans(target, r) for r in recurrences]
    default = tuple(default_plan(target, r) for r in recurrences)
    loop = tuple(
        next((p for p in space if p.keeps_loop), chosen)
        for space, chosen in zip(spaces, default, strict=True)
    )

    machine = Machine.of(target)
    kinds = dict.fromkeys(p.kind for space in spaces for p in space)
    guesses = []
    for kind in kinds:
        guess = []
        for space, r, chosen in zip(spaces, recurrences, default, strict=True):
            same = [p for p in space if p.kind == kind]
            costs = {p: p.cost(r, machine).ranked for p in same}
            guess.append(min(costs, key=lambda p: costs[p]) if costs else chosen)
        guesses.append(tuple(guess))
    return list(dict.fromkeys([default, loop, *guesses]))


def space_size(mod: IRModule, target: Target) -> int:
    """Number of combinations of plans that fit."""
    return prod(len(enumerate_plans(target, r)) for r in analyse(mod["main"]).accepted)


class Candidates:
    """The space, the best first by what was measured of it so far; at random without a model.

    Nothing is built or expanded to be looked at: a plan's row follows from the plan. So all of a
    space is asked about at once, and what is measured is what the model likes best of everything.

    Parameters
    ----------
    mod : IRModule
        The sequential function.
    target : tvm.target.Target
        What to tune for.
    seed : int
        Of the model, and of what is tried beside it.
    learns : bool
        Whether there is a model.
    """

    def __init__(self, mod: IRModule, target: Target, seed: int, learns: bool = True) -> None:
        if learns:
            TimeModel.check_installed()
        self.mod, self.target = mod, target
        self.recurrences = analyse(mod["main"]).accepted
        self.spaces = [enumerate_plans(target, r) for r in self.recurrences]
        self.rows = [
            {plan: row_of(plan, target, recurrence) for plan in space}
            for recurrence, space in zip(self.recurrences, self.spaces, strict=True)
            if learns
        ]
        self.model, self.random = TimeModel(seed) if learns else None, random.Random(seed)
        self.seen: dict[Plans, float] = {}

    def next(self, count: int) -> list[Candidate]:
        """Return at most ``count`` candidates that were not seen; none once there is no other."""
        out: list[Candidate] = []
        for plans in self._ordered(count):
            self.seen[plans] = inf
            candidate = candidate_of(self.mod, plans, self.target)
            out += [] if candidate is None else [candidate]
            if len(out) == count:
                break
        return out

    def _ordered(self, count: int) -> list[Plans]:
        pool = [plans for plans in self._pool() if plans not in self.seen]
        self.random.shuffle(pool)
        guesses = None
        if pool and self.model is not None:
            guesses = self.model.predict(np.array([self._row(p) for p in pool]))
        if guesses is None:
            return pool
        best = [pool[i] for i in np.argsort(guesses, kind="stable")]
        # One of a batch is drawn at random: what the model is wrong about, it would never ask for.
        chance = pool[: 1 if count > _FEW else 0]
        likely = [plans for plans in best if plans not in chance]
        return [*likely[: count - len(chance)], *chance, *likely[count - len(chance) :]]

    def _pool(self) -> list[Plans]:
        """All plans; of very many some, and those that differ from a good one in one recurrence."""
        if prod(map(len, self.spaces)) <= _WHOLE:
            return list(itertools.product(*self.spaces))
        drawn = [tuple(map(self.random.choice, self.spaces)) for _ in range(_DRAWN)]
        for good in sorted(self.seen, key=self.seen.__getitem__)[: _FEW if self.model else 0]:
            for number, space in enumerate(self.spaces):
                drawn += [(*good[:number], plan, *good[number + 1 :]) for plan in space]
        return list(dict.fromkeys(drawn))

    def _row(self, plans: Plans) -> list[float]:
        parts = zip(plans, self.rows, self.recurrences, strict=True)
        return [v for p, known, r in parts for v in known.get(p) or row_of(p, self.target, r)]

    def tell(self, candidates: list[Candidate], results: list[ms.runner.RunnerResult]) -> None:
        """Learn from results; also from those of candidates that came from elsewhere."""
        for candidate, result in zip(candidates, results, strict=True):
            ran = [float(s) for s in result.run_secs or []]
            self.seen[candidate.plans] = median(ran) if ran else inf
            if self.model is not None:
                self.model.tell(np.array(self._row(candidate.plans)), median(ran) if ran else None)
