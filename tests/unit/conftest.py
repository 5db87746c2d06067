"""One module at a time, without a compiled program where that is possible."""

from tests.support.tiers import Folder

FOLDER = Folder(
    quick=(
        "test_arrows.py",
        "test_caches.py",
        "test_costs.py",
        "test_cpu_cost.py",
        "test_docstrings.py",
        "test_locks.py",
        "test_plan.py",
        "test_rewrites.py",
        "test_staging_model.py",
        "test_tiers.py",
        "test_trace_roundtrip.py",
        "test_tvm_api.py",
    ),
    # What the tests of torch are built with, not the product.
    full=("test_quick_export.py::test_programs_are_what_they_are_without",),
    alike={
        "test_verify.py::test_families_hold": 2,
        "test_verify.py::test_laws_hold_on_samples": 2,
    },
    gpu=(
        "test_dispatch.py::test_on_a_gpu_the_host_branches",
        "test_dispatch.py::test_walks_whole_and_in_chunks_by_length",
        "test_verify.py::test_a_device_is_held_to_its_own_maxima",
    ),
)
