"""Results and rounding errors of every plan, against float64."""

from tests.support.tiers import Folder

FOLDER = Folder(
    quick=("test_schedules.py",),
    full=("test_vector_lanes.py::test_more_than_two_to_the_31_steps",),
    alike={
        "test_cuda.py::test_every_plan": 3,
        "test_cpu.py::test_any_number_of_lanes": 2,
        "test_cpu.py::test_integers_wrap_around": 2,
        "test_integers.py": 3,
        "test_families.py": 3,
        "test_vector_lanes.py": 3,
        "test_cuda.py::test_many_rows": 2,
        "test_cpu.py::test_constant_extents": 2,
        "test_cpu.py::test_halves_are_carried_in_float32": 2,
        "test_cpu.py::test_symbolic_extents": 3,
        "test_cuda.py::test_any_number_of_rows": 3,
        "test_cuda.py::test_constant_extents": 3,
        "test_cuda.py::test_options": 2,
        "test_time_vector.py::test_equals_the_loop": 3,
        "test_time_vector.py::test_lengths_around_vectors_and_chunks": 2,
    },
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
