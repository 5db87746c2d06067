"""Steps of a pass of the loops over time, where threads share states.

The steps of up to four owners are written out one after another, and with tiles those of several
groups: what a pass asks, and the indices that move with it, are for all of them, and what one group
reads can be loaded before the one ahead of it is done.
"""

from __future__ import annotations

from tvm_scan.schedules.gpu.shared.walk_layout import walk_steps
from tvm_scan.schedules.gpu.thread.plans import WalkPlan
from tvm_scan.schedules.gpu.walk.exchange import TOGETHER

#: Steps of states that a pass over groups has at most, if it has several groups.
_MOST = 256


def groups_written_out(plan: WalkPlan, states_each: int) -> int:
    """Return how many groups of a tile a pass of the loop over them has.

    Parameters
    ----------
    plan : WalkPlan
        One with tiles.
    states_each : int
        States of a thread.
    """
    together = plan.threads_per_lane * plan.items_per_thread
    groups = walk_steps(plan) // together
    most = _MOST // (together * states_each) if plan.threads_per_lane <= TOGETHER else 1
    return next(n for n in range(groups, 0, -1) if groups % n == 0 and n <= max(1, most))


def steps_of_passes(plan: WalkPlan, states_each: int) -> list[int]:
    """Return how many steps of a lane a pass of the loop over groups has, and one inside of it.

    Parameters
    ----------
    plan : WalkPlan
        Whose threads share states.
    states_each : int
        States of a thread.
    """
    groups = groups_written_out(plan, states_each) if plan.block_load == "transposed" else 1
    owners = plan.threads_per_lane, min(TOGETHER, plan.threads_per_lane)
    return [n * groups * plan.items_per_thread for n in owners]
