"""PyTorch functions: values, gradients, and what torch asks of an operator."""

from tests.support.tiers import Folder

FOLDER = Folder(
    gpu=(
        "test_cuda.py::test_a_built_kernel_loads_from_the_cache",
        "test_filters.py::test_through_export_on_a_gpu",
        "test_places.py",
    ),
)
