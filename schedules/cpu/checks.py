"""What a CPU plan must hold to: lanes, chunks, vectors, and what the machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm.target import Target

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.cpu.lane_streams import takes_lane_tiles
from tvm_scan.schedules.cpu.line_stores import takes_line_stores
from tvm_scan.schedules.cpu.vector_values import takes_time_vectors
from tvm_scan.schedules.machine.limits import limits_of

if TYPE_CHECKING:
    from tvm_scan.schedules.plan import ScanPlan

__all__ = ["check_cpu"]


def check_cpu(plan: ScanPlan, target: Target, recurrence: Recurrence) -> None:
    """Check a plan for a CPU.

    Parameters
    ----------
    plan : ScanPlan
        For a CPU.
    target : tvm.target.Target
        Where the kernel will run.
    recurrence : Recurrence
        What will run.

    Raises
    ------
    PlanError
        With the number that was expected and the one that was found.
    """
    _check_lanes(plan)
    _check_time_vector(plan, recurrence)
    _check_transpose(plan, recurrence)
    _check_nontemporal(plan, target, recurrence)
    plan.require(
        not plan.ldexp or limits_of(target).ldexp,
        "a target with AVX-512 for ldexp",
        str(target.attrs.get("mcpu", "a generic CPU")),
        "leave ldexp at False",
    )


def _check_lanes(plan: ScanPlan) -> None:
    plan.require(
        plan.algorithm != "serial_tiles",
        "sequential, lanes or three_phase on a CPU",
        f"algorithm={plan.algorithm}",
        "serial_tiles needs CUDA",
    )
    plan.require(
        1 <= plan.lane_block <= (4096 if plan.vectorize else 64),
        f"1 to {4096 if plan.vectorize else 64} lanes per block",
        f"lane_block={plan.lane_block}",
        "use 4 interleaved lanes, or 32 vector lanes",
    )
    plan.require(
        plan.lane_block <= 32 or plan.lane_block % 32 == 0,
        "a multiple of 32 lanes in a wide block",
        f"lane_block={plan.lane_block}",
        f"use {max(32, plan.lane_block // 32 * 32)}",
    )
    if plan.algorithm == "three_phase":
        plan.require(
            2 <= plan.chunks <= 4096,
            "2 to 4096 chunks",
            f"chunks={plan.chunks}",
            "use a few chunks per core",
        )
        plan.require(
            plan.chunks % plan.lane_block == 0,
            "chunks divisible by lane_block",
            f"chunks={plan.chunks}, lane_block={plan.lane_block}",
            "round chunks up to a multiple of lane_block",
        )


def _check_transpose(plan: ScanPlan, recurrence: Recurrence) -> None:
    plan.require(
        plan.prefetch == 0 or (plan.transpose and 0 < plan.prefetch <= 16),
        "prefetch from 1 to 16 tiles ahead, with transpose",
        f"prefetch={plan.prefetch}, transpose={plan.transpose}",
        "leave prefetch at 0",
    )
    if not plan.transpose:
        return
    plan.require(
        plan.algorithm == "lanes" and plan.vectorize and plan.lane_block % 16 == 0,
        "lanes in vectors, a multiple of 16 in a block",
        f"algorithm={plan.algorithm}, vectorize={plan.vectorize}, lane_block={plan.lane_block}",
        "use lanes(lane_block=32, vectorize=True, transpose=True)",
    )
    plan.require(
        takes_lane_tiles(recurrence),
        "inputs or outputs along time, a row apart for neighbouring lanes",
        "none of four or eight bytes",
        "leave transpose at False",
    )


def _check_nontemporal(plan: ScanPlan, target: Target, recurrence: Recurrence) -> None:
    if not plan.nontemporal:
        return
    plan.require(
        limits_of(target).line_stores,
        "a target with AVX for stores past the caches",
        str(target.attrs.get("mcpu", "a generic CPU")),
        "leave nontemporal at False",
    )
    plan.require(
        plan.algorithm in ("lanes", "three_phase") and bool(plan.vectorize or plan.time_vector),
        "vectors of lanes or of time",
        f"vectorize={plan.vectorize}, time_vector={plan.time_vector}",
        "leave nontemporal at False",
    )
    axes = [recurrence.time.var, *(lane.var for lane in recurrence.lanes[-1:])]
    along = axes[0] if plan.time_vector or plan.transpose else axes[-1]
    plan.require(
        takes_line_stores(recurrence, along) or plan.transpose,
        "outputs whose vectors are neighbours in memory",
        "none",
        "leave nontemporal at False",
    )


def _check_time_vector(plan: ScanPlan, recurrence: Recurrence) -> None:
    if plan.time_vector == 0:
        plan.require(
            plan.cache_steps == 0,
            "vectors of time for cache_steps",
            f"cache_steps={plan.cache_steps}, time_vector=0",
            "leave cache_steps at 0",
        )
        plan.require(
            not plan.time_runs,
            "vectors of time for time_runs",
            "time_vector=0",
            "leave time_runs at False",
        )
        return
    plan.require(
        plan.time_vector in (4, 8, 16, 32, 64) and plan.algorithm in ("lanes", "three_phase"),
        "4, 8, 16, 32 or 64 steps in a vector of lanes or three_phase",
        f"time_vector={plan.time_vector}",
        "leave it at 0, or use 16",
    )
    plan.require(
        plan.time_vector >= 16 or not plan.time_runs,
        "16, 32 or 64 steps in 4 vectors for time_runs",
        f"time_vector={plan.time_vector}",
        "leave time_runs at False",
    )
    plan.require(
        plan.lane_block == 1 and not plan.vectorize,
        "one lane at a time where a vector holds steps",
        f"lane_block={plan.lane_block}, vectorize={plan.vectorize}",
        "leave lane_block at 1",
    )
    plan.require(
        plan.cache_steps == 0
        or (plan.algorithm == "three_phase" and 1024 <= plan.cache_steps <= 1 << 30),
        "tiles of 1024 to 2^30 steps, in three_phase",
        f"algorithm={plan.algorithm}, cache_steps={plan.cache_steps}",
        "leave cache_steps at 0",
    )
    plan.require(
        takes_time_vectors(recurrence),
        "one stage of carries of one cell, whose operators exist on vectors",
        ", ".join(algebra.name for algebra in recurrence.algebras),
        "leave time_vector at 0",
    )
