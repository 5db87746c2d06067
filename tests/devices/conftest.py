"""Kernels for GPUs that are not CUDA's, on software drivers, and as text or code objects."""

from tests.support.tiers import Folder

FOLDER = Folder(
    full=(
        "test_models.py::test_layers_of_models_compile",
        "test_pages.py::test_layers_of_exported_models",
    ),
    alike={
        "test_delta.py": 2,
        "test_pages.py": 2,
        "test_table.py::test_edge_lengths": 2,
    },
    gpu=("test_table.py::test_no_race_and_no_barrier_that_some_threads_miss",),
)
