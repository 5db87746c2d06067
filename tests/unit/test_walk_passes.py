"""Steps of the passes of a walk whose threads share states."""

import pytest

from tvm_scan import ScanPlan
from tvm_scan.schedules.gpu.walk.passes import groups_written_out, steps_of_passes

PLAN = ScanPlan.parse(
    "cuda/lanes(threads_per_block=64, items_per_thread=4, vector_loads=True, threads_per_lane=2, "
    "block_load=transposed, stages=2)"
)


@pytest.mark.parametrize(
    ("shared", "items", "states", "groups", "steps"),
    [
        (2, 4, 8, 4, [32, 32]),  # a whole tile
        (1, 4, 16, 4, [16, 16]),  # of eight groups, twice the states each
        (1, 4, 24, 2, [8, 8]),
        (4, 4, 16, 1, [16, 16]),
        (4, 4, 4, 2, [32, 32]),
        (2, 1, 64, 2, [4, 4]),
        (8, 1, 2, 1, [8, 4]),  # owners in two passes, which are not written out
        (8, 4, 8, 1, [32, 16]),
    ],
)
def test_groups_are_written_out_as_far_as_they_are_short(shared, items, states, groups, steps):
    plan = PLAN.with_(threads_per_lane=shared, items_per_thread=items)
    assert groups_written_out(plan, states) == groups
    assert steps_of_passes(plan, states) == steps
    direct = plan.with_(block_load="direct", stages=1)
    assert steps_of_passes(direct, states)[0] == shared * items
