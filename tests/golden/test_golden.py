"""Whole trees as text: a change of any kernel shows in the diff of a golden file.

python -m pytest tests/golden/test_golden.py --update-golden
"""

import difflib
from pathlib import Path

import pytest

from tests.support.cuda_harness import CUDA_TARGET, emit_cuda
from tvm_scan import ScanPlan, library, parallelize
from tvm_scan.arguments import host_target

FOLDER = Path(__file__).parent
WARP = "cuda/serial_tiles(threads_per_block=64, items_per_thread=2, block_tree=warp)"
FUNCTIONS = {
    "cumsum": lambda: library.cumsum(3, 100),
    "cummax_reverse": lambda: library.cummax(3, 100, reverse=True),
    "linear_symbolic_states": lambda: library.linear_recurrence(
        None, None, initial_state=True, final_state=True
    ),
    "selective_scan": lambda: library.selective_scan(1, 4, 50, 2),
}
PLANS = (
    "cpu/lanes(lane_block=8, vectorize=True)",
    "cpu/three_phase(lane_block=2, chunks=4)",
    "cuda/serial_tiles(threads_per_block=4, items_per_thread=3)",
    "cuda/three_phase(threads_per_block=4, items_per_thread=3)",
)
TREES = [(name, plan) for name in FUNCTIONS for plan in PLANS if name != "selective_scan"]
TREES.append(("selective_scan", PLANS[0]))
SHARED = "cuda/lanes(threads_per_block=32, items_per_thread=2, vector_loads=True, "
TREES.append(("selective_scan", SHARED + "threads_per_lane=2)"))
TRANSPOSED = (
    "cuda/serial_tiles(threads_per_block=32, items_per_thread=2, block_tree=warp, "
    "block_load=transposed, stages=2, lanes_per_block=2)"
)
TREES.append(("cumsum", TRANSPOSED))
TREES.append(("selective_scan", SHARED + "threads_per_lane=2, block_load=transposed, stages=2)"))
TREES.append(("selective_scan", SHARED + "threads_per_lane=2, chunks=2)"))


def compare(path, text, update):
    if update:
        path.write_text(text)
    kept = path.read_text()
    changes = "\n".join(
        difflib.unified_diff(kept.splitlines(), text.splitlines(), path.name, "now", lineterm="")
    )
    assert not changes, (
        f"{changes}\nexpected the kernel of {path.name}; if the change is meant, run "
        "python -m pytest tests/golden/test_golden.py --update-golden and read its diff"
    )


@pytest.mark.parametrize(("name", "plan"), TREES)
def test_tree(name, plan, request):
    chosen = ScanPlan.parse(plan)
    target = CUDA_TARGET if chosen.device == "cuda" else host_target()
    scheduled = parallelize(FUNCTIONS[name](), target, chosen)
    kind = "-transposed" if "transposed" in str(chosen) else ""
    kind += "-chunks" if chosen.device == "cuda" and chosen.chunks else ""
    path = FOLDER / f"{name}-{chosen.device}-{chosen.algorithm}{kind}.txt"
    text = f"# {name} under {plan}\n{scheduled.script(show_meta=False)}\n"
    compare(path, text, request.config.getoption("--update-golden"))


def test_barriers(request):
    """Barriers in the emitted kernels: none is lost, and none is added unseen."""
    lines = []
    for name, make in FUNCTIONS.items():
        for plan in (*PLANS, WARP, WARP.replace("serial_tiles", "three_phase"), TRANSPOSED):
            chosen = ScanPlan.parse(plan)
            if chosen.device == "cuda":
                source = emit_cuda(parallelize(make(), CUDA_TARGET, chosen))
                bodies = source.split("__global__")[1:]
                counts = [b.count("__syncthreads()") for b in bodies if "{" in b.split(";")[0]]
                lines.append(f"{name} {plan}: {counts}\n")
    path = FOLDER / "barriers.txt"
    compare(path, "".join(lines), request.config.getoption("--update-golden"))


def test_no_file_is_forgotten():
    names = {path.name for path in FOLDER.iterdir() if path.suffix in (".txt", ".json")}
    # Beside the trees: barriers.txt, and resources.json of test_resources.py.
    assert len(names) == len(TREES) + 2, sorted(names)
