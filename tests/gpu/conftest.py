"""Kernels for GPUs, on the simulated device or a real one."""

from tests.support.tiers import Folder, everything

FOLDER = Folder(
    quick=(
        "test_blelloch_banks.py",
        "test_block_trees.py::test_lengths",
    ),
    full=(
        "test_bench.py::test_a_dry_run_compares_every_plan_with_float64_and_times_the_ladders",
        "test_bench.py::test_a_peer_that_crashes_or_hangs_takes_nobody_with_it",
        "test_bench.py::test_the_peers_in_cuda_compile",
        "test_cusim.py::test_parallel_processes_build_the_runtime_once",
    ),
    alike={
        "test_progressions.py::test_exponents_in_equal_steps": 2,
        "test_table.py::test_edge_lengths": 2,
        "test_walk_counts.py::test_counts_of_a_walk": 2,
        "test_walk_tiles.py::test_exact": 2,
    },
    gpu=everything,
)
