"""The nearest shape that a plan is known for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log2

from tvm.target import Target

from tvm_scan.delta_rule import TimeLoop
from tvm_scan.schedules.choose.shape_key import shape_key
from tvm_scan.schedules.choose.unfit import why_unfit
from tvm_scan.schedules.common.sizes import UNKNOWN, sizes_of
from tvm_scan.schedules.plan import ScanPlan

#: Powers of two, of lanes and steps together, beyond which a shape says nothing about another.
_FARTHEST = 2


@dataclass(frozen=True)
class Known:
    """A plan that was measured.

    Attributes
    ----------
    key : str
        ``shape_key`` of the recurrence.
    rows, length : int
        Its lanes and steps.
    plan : ScanPlan or None
        What was measured; None where the default plan was the fastest.
    seconds : float
        Its time.
    record : str
        Name of the record.
    """

    key: str
    rows: int
    length: int
    plan: ScanPlan | None
    seconds: float
    record: str = ""


def nearest(known: Iterable[Known], target: Target, recurrence: TimeLoop) -> Known | None:
    """The fastest plan of the nearest shape of the same recurrence that fits this one.

    Lanes and steps are bucketed in powers of two. A size that is not known until run time is near
    to all, and nearest to 4096. Among shapes of one bucket the one nearest by ratio wins, and the
    larger one of two that are as near.

    Parameters
    ----------
    known : iterable of Known
        Of this target.
    target : tvm.target.Target
        What the plan is checked for.
    recurrence : Recurrence or DeltaRule
        What it is checked for.

    Returns
    -------
    Known or None
        None where no shape within a factor of about four is known.
    """
    key, sizes = shape_key(recurrence), sizes_of(recurrence)

    def order(entry: Known) -> tuple[int, float, int, float, str]:
        buckets, ratio = 0, 0.0
        for have, want in zip((entry.rows, entry.length), sizes, strict=True):
            if want is not None:
                buckets += abs(have.bit_length() - want.bit_length())
            ratio += abs(log2((have + 1) / ((UNKNOWN if want is None else want) + 1)))
        return buckets, ratio, -entry.rows * entry.length, entry.seconds, entry.record

    same = [(order(entry), entry) for entry in known if entry.key == key]
    for distance, entry in sorted(same, key=lambda pair: pair[0]):
        if distance[0] > _FARTHEST:
            break
        if entry.plan is None or why_unfit(entry.plan, target, recurrence) is None:
            return entry
    return None
