"""Results and rounding errors of every plan, against float64."""

from tests.support.tiers import Folder

FOLDER = Folder(
    quick=("test_schedules.py",),
    gpu=(
        "test_schedules.py::test_on_cuda",
        "test_schedules.py::test_a_delta_rule_on_cuda",
        "test_schedules.py::test_threads_that_share_a_lane",
        "test_cuda.py",
        "test_integers.py::test_cuda",
        "test_families.py::test_the_law_on_cuda",
        "test_nonfinite.py::test_extrema_with_nan_on_cuda",
        "test_nonfinite.py::test_values_enter_at_their_step_on_cuda",
    ),
)
