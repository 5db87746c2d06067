"""Loops: which are taken, which refused, and that they compute what they say."""

from tests.support.tiers import Folder

FOLDER = Folder(
    quick=(
        "test_deceptive.py",
        "test_extraction.py::test_cpu_plans_equal_the_loop",
        "test_extraction.py::test_found_and_named",
        "test_families.py::test_cpu_plans_equal_the_loop",
        "test_families.py::test_every_family_has_a_program",
        "test_families.py::test_found_and_named",
        "test_refusals.py",
        "test_suite.py::test_refused_with_its_reason",
        "test_delta.py::test_forms",
    ),
    alike={
        "test_library_references.py::test_selective_scan": 2,
        "test_library_references.py::test_linear_recurrence": 2,
        "test_rolled.py::test_the_same_scan_as_the_plain_loop": 2,
        "test_delta.py": 3,
        "test_engine_loops.py": 3,
        "test_extraction.py::test_cuda_plans_equal_the_loop": 2,
        "test_families.py::test_cuda_plans_equal_the_loop": 3,
        "test_integer_widths.py::test_every_width_is_taken_and_right": 3,
        "test_proven.py::test_the_suite": 2,
    },
    gpu=(
        "test_associative.py::test_bicyclic_on_cuda",
        "test_delta.py::test_forms_on_a_gpu",
        "test_delta.py::test_no_step_sees_what_comes_later_on_a_gpu",
        "test_delta.py::test_segments_of_forms",
        "test_delta.py::test_no_step_sees_what_comes_later_in_segments",
        "test_delta.py::test_segments_against_float64",
        "test_delta.py::test_blocks_against_float64",
        "test_delta.py::test_real_heads_fit_a_block",
        "test_engine_loops.py::test_a_head_of_a_model_fits_a_block",
        "test_engine_loops.py::test_on_a_gpu",
        "test_extraction.py::test_cuda_plans_equal_the_loop",
        "test_extents.py::test_cuda",
        "test_families.py::test_cuda_plans_equal_the_loop",
        "test_families.py::test_nan_as_in_the_loop_on_cuda",
        "test_integer_families.py::test_cuda",
        "test_random_plans.py::test_cuda",
        "test_scalar_buffers.py::test_cuda",
        "test_serving_loops.py::test_cuda",
        "test_several_loops.py::test_cuda",
    ),
)
