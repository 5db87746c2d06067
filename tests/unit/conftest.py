"""One module at a time, without a compiled program where that is possible."""

from tests.support.tiers import Folder

FOLDER = Folder(
    gpu=(
        "test_dispatch.py::test_on_a_gpu_the_host_branches",
        "test_dispatch.py::test_walks_whole_and_in_chunks_by_length",
    ),
)
