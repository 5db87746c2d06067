"""The default plan of a CPU: of some dozens, the one of which the least time is predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tvm.target import Target

from tvm_scan import tir
from tvm_scan.errors import PlanError
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.cpu.cost import lanes_work, loop_work, seconds_of, three_phase_work
from tvm_scan.schedules.cpu.lane_streams import takes_lane_tiles
from tvm_scan.schedules.cpu.step_counts import Step, step_of
from tvm_scan.schedules.cpu.vector_values import takes_time_vectors
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_constants import chip_of
from tvm_scan.schedules.machine.limits import Limits
from tvm_scan.schedules.plan import ScanPlan

__all__ = ["RULES", "Rule", "candidates", "cpu_default", "predict"]

#: By how much a later plan must be ahead of an earlier, simpler one: less is noise.
_AHEAD = 0.97
#: The same of the loop, which is what it is compared with.
_AHEAD_OF_LOOP = 0.88
_WORK = {"sequential": loop_work, "lanes": lanes_work, "three_phase": three_phase_work}


@dataclass(frozen=True)
class Rule:
    """A plan that is not taken whatever is predicted of it.

    Attributes
    ----------
    name : str
        In a few words.
    measured : str
        What was seen.
    forbids : callable
        Whether it forbids a plan for a recurrence.
    """

    name: str
    measured: str
    forbids: Callable[[ScanPlan, Recurrence, Step], bool]


def _rounds_carries(plan: ScanPlan, recurrence: Recurrence, step: Step) -> bool:
    halves = any(tir.is_half(tir.dtype_of(c.register.buffer)) for c in recurrence.carries)
    return plan.algorithm == "sequential" and halves


def _multiplies_chunks(plan: ScanPlan, recurrence: Recurrence, step: Step) -> bool:
    scalar = plan.algorithm == "three_phase" and not plan.time_vector
    return scalar and any(part.extend_chain.products for part in step.parts)


def _chooses_in_vectors(plan: ScanPlan, recurrence: Recurrence, step: Step) -> bool:
    return plan.vectorize and not step.in_vectors


#: What no count says, in order.
RULES = (
    Rule(
        "the loop rounds a carry of halves at every step",
        "other numbers than those of every other plan, which keep the carry in float32",
        _rounds_carries,
    ),
    Rule(
        "chunks of scalars multiply their gates until they are denormal",
        "5 to 30 times the predicted time with gates of 0.9 to 1 and chunks of 1000 steps",
        _multiplies_chunks,
    ),
    Rule(
        "lanes of which each chooses what it reads are no vectors",
        "2 to 4 times the time of interleaved lanes",
        _chooses_in_vectors,
    ),
)


def cpu_default(target: Target, limits: Limits, recurrence: Recurrence) -> ScanPlan:
    """Choose a plan for a CPU.

    Parameters
    ----------
    target : tvm.target.Target
        Where it will run.
    limits : Limits
        Its cores.
    recurrence : Recurrence
        What will run.

    Returns
    -------
    ScanPlan
        Of the candidates the one of which the least time is predicted; the earlier of two that
        are alike.
    """
    step, chip = step_of(recurrence), chip_of(target)
    ranked: list[tuple[float, ScanPlan]] = []
    for plan in candidates(limits, recurrence, step):
        if not any(rule.forbids(plan, recurrence, step) for rule in RULES):
            ahead = _AHEAD_OF_LOOP / _AHEAD if plan.algorithm == "sequential" else 1.0
            ranked.append((ahead * predict(plan, step, chip, limits.cores), plan))
    while ranked:
        least = min(seconds for seconds, _ in ranked)
        place = next(i for i, (seconds, _) in enumerate(ranked) if seconds * _AHEAD <= least)
        plan = ranked.pop(place)[1]
        try:
            plan.check(target, recurrence)
        except PlanError:
            continue
        return plan
    return ScanPlan("cpu", "lanes")


def predict(plan: ScanPlan, step: Step, chip: CpuChip, cores: int) -> float:
    """Seconds of a plan."""
    return seconds_of(_WORK[plan.algorithm](plan, step, chip), chip, cores)


def candidates(limits: Limits, recurrence: Recurrence, step: Step) -> Iterator[ScanPlan]:
    """The plans that are compared, simple ones first.

    Parameters
    ----------
    limits : Limits
        Of the target.
    recurrence : Recurrence
        What will run.
    step : Step
        Its counts.
    """
    yield ScanPlan("cpu", "sequential")
    lanes = ScanPlan("cpu", "lanes")
    # A guard leaves one lane to a task whatever the plan says.
    alone = recurrence.guard is not None or not recurrence.lanes
    if step.rows > 1:
        for width in (1, 2, 4, 8, 16) if not alone else (1,):
            if width <= step.lanes:
                yield lanes.with_(lane_block=width)
    ldexp = limits.ldexp and step.transcendental
    past = (False, True) if limits.line_stores else (False,)
    if not alone:
        yield from _vectors(lanes.with_(vectorize=True, ldexp=ldexp), step, past)
        if takes_lane_tiles(recurrence):
            tiles = lanes.with_(vectorize=True, transpose=True, prefetch=1, ldexp=ldexp)
            for width in (16, 32, 64):
                if width <= step.lanes:
                    for line in past:
                        yield tiles.with_(lane_block=width, nontemporal=line)
    if takes_time_vectors(recurrence):
        yield from _time_vectors(lanes.with_(ldexp=ldexp), limits, step, past)
    if step.rows < 4 * limits.cores and limits.cores > 1:
        for streams in (1, 4):
            chunks = 4 * limits.cores
            if step.length >= 256 * chunks:
                yield ScanPlan("cpu", "three_phase", chunks=chunks, lane_block=streams)


def _vectors(base: ScanPlan, step: Step, past: tuple[bool, ...]) -> Iterator[ScanPlan]:
    neighbours = any(a.along_lane == 1 for a in step.accesses)
    widths = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048) if neighbours else (4, 8, 16)
    for width in widths:
        if width <= step.lanes:
            for line in past if neighbours and width >= 16 else (False,):
                yield base.with_(lane_block=width, nontemporal=line)


def _time_vectors(
    lanes: ScanPlan, limits: Limits, step: Step, past: tuple[bool, ...]
) -> Iterator[ScanPlan]:
    shapes = [(w, False) for w in (4, 8, 16, 32)] + [(w, True) for w in (16, 32, 64)]
    for width, runs in shapes:
        if width > step.length:
            continue
        one = lanes.with_(time_vector=width, time_runs=runs)
        for line in past:
            yield one.with_(nontemporal=line)
        if limits.cores > 1 and step.rows < 2 * limits.cores and step.length >= 1 << 13:
            for chunks in (limits.cores, 4 * limits.cores):
                for tile in (0, 1 << 17):
                    if tile and step.length < 4 * tile:
                        continue
                    for line in past:
                        yield one.with_(
                            algorithm="three_phase",
                            chunks=chunks,
                            cache_steps=tile,
                            nontemporal=line,
                        )
