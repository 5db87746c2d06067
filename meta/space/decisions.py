"""Which values every decision of a plan may take: the one source of every search.

A space is a few branches, one for each algorithm; within a branch every decision has its own
ordered values. Sampling draws from them, enumeration walks through them, and a mutation moves to
the value beside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import tvm_ffi
from tvm.ir import Call
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.errors import PlanError
from tvm_scan.meta.space.gpu_decisions import cuda_branches, extent_of, powers, registers_fit
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.choose.default import default_plan
from tvm_scan.schedules.cpu.lane_streams import takes_lane_tiles
from tvm_scan.schedules.cpu.line_stores import takes_line_stores
from tvm_scan.schedules.cpu.vector_math import has_transcendentals
from tvm_scan.schedules.cpu.vector_values import takes_time_vectors
from tvm_scan.schedules.machine.limits import Limits, device_of, limits_of
from tvm_scan.schedules.plan import ScanPlan

__all__ = ["Branch", "branches", "enumerate_plans", "fits", "size"]

#: Fewest steps in a chunk that are worth a task of their own.
_LEAST_CHUNK = 16
#: Steps of a tile that goes through the three phases in the cache.
_TILES = (1 << 15, 1 << 17, 1 << 19)
#: Calls for which ``library_math`` decides.
_TRANSCENDENTAL = ("exp", "exp2", "log", "log2", "log1p", "tanh", "sigmoid", "pow")


@dataclass(frozen=True)
class Branch:
    """One algorithm, and what is left to decide in it.

    Attributes
    ----------
    base : ScanPlan
        The plan whose open decisions are to be replaced.
    choices : tuple of (str, tuple of int)
        Field name and its values in ascending order; neighbours in the order are alike.
    """

    base: ScanPlan
    choices: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def size(self) -> int:
        """Combinations, those included that do not fit."""
        return prod(len(values) for _, values in self.choices)

    def plans(self) -> Iterator[ScanPlan]:
        """Every combination, fitting or not."""
        names = [name for name, _ in self.choices]
        for values in product(*(values for _, values in self.choices)):
            yield _with(self.base, dict(zip(names, values, strict=True)))

    def holds(self, plan: ScanPlan) -> bool:
        """Whether ``plan`` is one of the combinations."""
        changed = {name: getattr(plan, name) for name, _ in self.choices}
        same = _with(self.base, changed) == plan
        return same and all(int(changed[name]) in values for name, values in self.choices)


def branches(target: Target, recurrence: Recurrence) -> list[Branch]:
    """The space of plans of a recurrence on a target.

    Parameters
    ----------
    target : tvm.target.Target
        Where it will run.
    recurrence : Recurrence
        What will run. Extents that are symbolic are taken as large.

    Returns
    -------
    list of Branch
        The sequential plan first; the default plan is in one of them. None is empty.

    Raises
    ------
    PlanError
        For a target that is neither a CPU nor CUDA.
    """
    limits = limits_of(target)
    found = (
        _on_cuda(limits, recurrence) if device_of(target) == "cuda" else _cpu(limits, recurrence)
    )
    found = [b for b in found if any(fits(plan, target, recurrence) for plan in b.plans())]
    default = default_plan(target, recurrence)
    return found if any(b.holds(default) for b in found) else [*found, Branch(default)]


@lru_cache(maxsize=1 << 14)
def fits(plan: ScanPlan, target: Target, recurrence: Recurrence) -> bool:
    """Whether a plan can be built: its own check, and registers by estimate.

    Parameters
    ----------
    plan : ScanPlan
        Any plan.
    target : tvm.target.Target
        Where it will run.
    recurrence : Recurrence
        What will run.

    Returns
    -------
    bool
    """
    try:
        plan.check(target, recurrence)
    except PlanError:
        return False
    return plan.device != "cuda" or registers_fit(plan, recurrence)


def enumerate_plans(target: Target, recurrence: Recurrence) -> list[ScanPlan]:
    """Every plan that fits: the default first, then the sequential one, then the others.

    Parameters
    ----------
    target : tvm.target.Target
        Where it will run.
    recurrence : Recurrence
        What will run.

    Returns
    -------
    list of ScanPlan
        Without repetitions.
    """
    first = default_plan(target, recurrence)
    rest = (p for b in branches(target, recurrence) for p in b.plans())
    return list(dict.fromkeys([first, *(p for p in rest if fits(p, target, recurrence))]))


def size(target: Target, recurrence: Recurrence) -> int:
    """Number of plans that fit."""
    return len(enumerate_plans(target, recurrence))


def _with(plan: ScanPlan, values: dict[str, Any]) -> ScanPlan:
    typed = {name: type(getattr(plan, name))(value) for name, value in values.items()}
    return plan.with_(**typed)


def _on_cuda(limits: Limits, recurrence: Recurrence) -> list[Branch]:
    return [Branch(*branch) for branch in cuda_branches(limits, recurrence)]


def _cpu(limits: Limits, recurrence: Recurrence) -> list[Branch]:
    found = []
    if not any(tir.is_half(tir.dtype_of(c.register.buffer)) for c in recurrence.carries):
        # A carry kept in halves is rounded at every step of the loop: other numbers.
        found.append(Branch(ScanPlan("cpu", "sequential")))
    # A guard, or no lanes at all, leaves one lane to a task whatever the plan says.
    alone = not recurrence.lanes or recurrence.guard is not None
    lanes = 1 if alone else extent_of(recurrence.lanes[-1].extent)
    rows = prod(extent_of(lane.extent) for lane in recurrence.lanes)
    if rows > 1:
        widths = tuple(w for w in (1, 2, 4, 8, 16) if w <= lanes)
        found.append(Branch(ScanPlan("cpu", "lanes"), (("lane_block", widths),)))
    found += _vector_lanes(limits, recurrence, lanes)
    most = min(4096, extent_of(recurrence.time.extent) // _LEAST_CHUNK)
    by_core = {limits.cores * k for k in (1, 2, 4, 8)}
    chunks = tuple(sorted(c for c in {*powers(2, 4096), *by_core} if 2 <= c <= most))
    if chunks:
        widths = tuple(w for w in (1, 2, 4, 8) if w <= chunks[-1])
        base = ScanPlan("cpu", "three_phase", chunks=chunks[0])
        found.append(Branch(base, (("chunks", chunks), ("lane_block", widths))))
    if takes_time_vectors(recurrence):
        for runs, widths in ((False, (4, 8, 16, 32)), (True, (16, 32, 64))):
            found += _time_vectors(limits, recurrence, chunks, runs, widths)
    return found


def _time_vectors(
    limits: Limits,
    recurrence: Recurrence,
    chunks: tuple[int, ...],
    runs: bool,
    widths: tuple[int, ...],
) -> list[Branch]:
    """Steps of time in vectors, with runs of steps in every lane or without."""
    steps = ("time_vector", widths)
    past = _past_caches(limits, recurrence, recurrence.time.var)
    ldexp = _ldexp(limits, recurrence)
    base = ScanPlan("cpu", "lanes", time_vector=widths[0], time_runs=runs, ldexp=ldexp)
    found = [Branch(base, (steps, *past))]
    if chunks:
        base = base.with_(algorithm="three_phase", chunks=chunks[0])
        tiles = tuple(n for n in _TILES if 2 * n <= extent_of(recurrence.time.extent))
        cached = (("cache_steps", (0, *tiles)),) if tiles else ()
        found.append(Branch(base, (("chunks", chunks), steps, *cached, *past)))
    return found


def _vector_lanes(limits: Limits, recurrence: Recurrence, lanes: int) -> list[Branch]:
    """Lanes in vectors: neighbours in memory, or transposed from rows."""
    widths = tuple(w for w in powers(4, 4096) if w <= lanes)
    if not widths:
        return []
    maths = (("library_math", (0, 1)),) if _is_transcendental(recurrence) else ()
    base = ScanPlan("cpu", "lanes", vectorize=True, ldexp=_ldexp(limits, recurrence))
    past = _past_caches(limits, recurrence, recurrence.lanes[-1].var)
    found = [Branch(base, (("lane_block", widths), *maths, *past))]
    squares = tuple(w for w in widths if w % 16 == 0 and w <= 256)
    if squares and takes_lane_tiles(recurrence):
        past = _past_caches(limits, recurrence, recurrence.time.var)
        base = base.with_(transpose=True, lane_block=squares[0])
        found.append(Branch(base, (("lane_block", squares), ("prefetch", (0, 1, 2, 4)), *past)))
    return found


def _ldexp(limits: Limits, recurrence: Recurrence) -> bool:
    return limits.ldexp and has_transcendentals(recurrence)


def _past_caches(limits: Limits, recurrence: Recurrence, along: Any) -> tuple[Any, ...]:
    """Whether to store past the caches, where the target can and the stores are neighbours."""
    takes = limits.line_stores and takes_line_stores(recurrence, along)
    return (("nontemporal", (0, 1)),) if takes else ()


def _is_transcendental(recurrence: Recurrence) -> bool:
    found: list[bool] = []

    def visit(call: Call) -> None:
        found.append((tir.call_name(call) or "").rpartition(".")[2] in _TRANSCENDENTAL)

    tvm_ffi.structural_walk(recurrence.body, [(Call, visit)])
    return any(found)
