"""Kernels for GPUs, on the simulated device or a real one."""

from tests.support.tiers import Folder, everything

FOLDER = Folder(
    quick=(
        "test_blelloch_banks.py",
        "test_block_trees.py::test_lengths",
    ),
    full=(
        # 16 s of nvcc; smaller blocks of the same are in the default tier.
        "test_walk_tiles.py::test_one_buffer_and_symbolic_sizes_do_not_spill[2-8-64-False]",
        "test_bench.py::test_a_dry_run_compares_every_plan_with_float64_and_times_the_ladders",
        "test_bench.py::test_a_peer_that_crashes_or_hangs_takes_nobody_with_it",
        "test_bench.py::test_the_peers_in_cuda_compile",
        "test_tensor_cores.py::test_every_barrier_is_needed",
        "test_cusim.py::test_parallel_processes_build_the_runtime_once",
    ),
    alike={
        "test_tensor_cores.py": 3,
        "test_tree_counts.py": 3,
        "test_lanes_per_block.py": 2,
        "test_pairs.py": 3,
        "test_progressions.py": 2,
        "test_shared_items.py": 2,
        "test_shared_lanes.py": 2,
        "test_single_pass.py": 2,
        "test_table.py": 2,
        "test_walk_chunks.py": 3,
        "test_walk_counts.py": 2,
        "test_walk_tiles.py": 2,
    },
    gpu=everything,
)
