"""Kernels for GPUs, on the simulated device or a real one."""

from tests.support.tiers import Folder, everything

FOLDER = Folder(
    quick=(
        "test_blelloch_banks.py",
        "test_block_trees.py::test_lengths",
    ),
    full=("test_cusim.py::test_parallel_processes_build_the_runtime_once",),
    gpu=everything,
)
