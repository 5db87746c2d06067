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
    full=("test_varying_sizes.py::test_torchs_compiler_takes_projections_that_are_views",),
    gpu=(
        "test_cuda.py::test_a_built_kernel_loads_from_the_cache",
        "test_filters.py::test_through_export_on_a_gpu",
        "test_places.py",
    ),
)
