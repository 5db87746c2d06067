"""No code asks what a device or a schedule is called: it asks the row, or the plan."""

import ast
from pathlib import Path

import pytest

from tests import ROOT
from tests.unit.test_arrows import sources
from tvm_scan.schedules.machine.device import DEVICES
from tvm_scan.schedules.registry import SCHEDULES

NAMES = {
    "gpu",
    *(name for row in DEVICES.values() for name in (row.name, row.plans, row.runtime)),
    *(name for schedule in SCHEDULES for name in (schedule.device, schedule.algorithm)),
}

#: Where such a word is no question about a device of ours.
WORDS_OF_OTHERS = {
    "tvm_scan/arguments.py": "words of a caller for targets, which the core makes",
    "tvm_scan/artifact.py": "words of a manifest",
    "tvm_scan/cuda_math.py": "the core's: of TVM's compilers CUDA's alone is told of fast math",
    "tvm_scan/relax/cubins.py": "kinds of TVM's runtime modules",
    "tvm_scan/relax/export.py": "the same, and the format of kernels in a manifest",
    "tvm_scan/torch/replacements.py": "torch's devices",
    "tvm_scan/torch/kernels/devices.py": "torch's devices",
}


def comparisons(source, names=frozenset(NAMES)):
    """Lines of a source file that compare with a name, test a container of them, or match one."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        else:
            continue
        words = [w for side in sides for w in getattr(side, "elts", [side])]
        if any(isinstance(w, ast.Constant) and w.value in names for w in words):
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("folder", ["schedules", "meta", "tvm_scan"])
def test_nothing_is_compared_with_the_name_of_a_device_or_schedule(folder):
    wrong = []
    for path in sources():
        if path.parts[0] == folder and path.as_posix() not in WORDS_OF_OTHERS:
            lines = comparisons((ROOT / path).read_text(encoding="utf-8"))
            wrong += [f"{path}:{line}" for line in lines]
    assert not wrong, f"ask the row (schedules/machine/device.py) or the plan: {wrong}"


@pytest.mark.parametrize("path", WORDS_OF_OTHERS)
def test_what_is_let_pass_is_there(path):
    assert comparisons(Path(ROOT, path).read_text(encoding="utf-8")), f"{path}: delete its line"


@pytest.mark.parametrize(
    "source",
    [
        "device_of(target) == 'cuda'",
        "'gpu' != plan.device",
        "if str(target.kind.name) in ('llvm', 'c'): pass",
        "x = 1 if plan.algorithm == 'three_phase' else 2",
        "match kind:\n    case 'opencl': pass",
    ],
)
def test_a_comparison_is_seen(source):
    assert comparisons(source) == [2 if source.startswith("match") else 1]


@pytest.mark.parametrize("source", ["device.is_gpu", "plan.device == row.plans", "x == 'lane'"])
def test_a_question_to_a_value_is_passed(source):
    assert comparisons(source) == []
