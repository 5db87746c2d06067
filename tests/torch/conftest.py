"""PyTorch functions: values, gradients, and what torch asks of an operator."""

import contextlib

from tests.support import quick_export, quick_kernels
from tests.support.tiers import Folder

with contextlib.suppress(ImportError):  # without torch its tests are skipped
    quick_export.install()
    quick_kernels.install()

FOLDER = Folder(
    quick=(
        "test_face.py",
        "test_functions.py::test_linear_recurrence",
        "test_functions.py::test_sums_and_products",
        "test_gated.py::test_gla",
        "test_selective.py::test_derivatives_over_chunks",
        "test_store.py",
    ),
    full=(
        "test_citizen.py::test_compile[eager]",
        "test_citizen.py::test_compile[aot_eager]",
        "test_varying_sizes.py::test_torchs_compiler_takes_projections_that_are_views",
    ),
    alike={
        "test_delta.py": 3,
        "test_extremum.py": 3,
        "test_filters.py": 3,
        "test_gated.py": 3,
        "test_memory.py": 3,
        "test_outer_gates.py": 3,
        "test_resets.py": 3,
        "test_selective.py": 3,
        "test_ssd.py": 3,
        "test_transformers.py::test_packed_sequences": 2,
        "test_arguments.py::test_autocast_changes_nothing": 3,
        "test_citizen.py::test_opcheck": 2,
        "test_delta_shapes.py::test_a_head_is_the_loop": 2,
        "test_properties.py::test_compile_and_export": 2,
        "test_transformers.py::test_gradients_have_as_many_digits": 2,
        "test_varying_sizes.py::test_compile": 2,
        "test_varying_sizes.py::test_export": 3,
    },
    gpu=(
        "test_cuda.py",
        "test_filters.py::test_through_export_on_a_gpu",
        "test_places.py",
    ),
)
