"""What looks bad is timed again, in a process of its own."""

from bench.regret import timed_anew
from bench.regret_cases import Case
from tvm_scan import ScanPlan
from tvm_scan.schedules.choose.default import host_target


def test_plans_are_timed_in_another_process():
    plans = [ScanPlan.parse(f"cpu/{plan}") for plan in ("sequential()", "lanes(lane_block=2)")]
    times, apart = timed_anew(Case("cumsum", (4, 300)), host_target(), plans, 0.01, 1)
    assert times.keys() == set(plans)
    assert all(0 < seconds < 1 for seconds in times.values())
    assert isinstance(apart, bool)
