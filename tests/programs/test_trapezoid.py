"""Drives that read the step before, of scans and of delta rules: taken, and as their loop."""

import linecache

import numpy as np
import pytest

from tests.programs.suite.running import CPU, run_loop, run_scan
from tests.programs.test_oja import run_cpu
from tests.programs.trapezoid_programs import DELTAS, SELECTIVE
from tvm_scan import Recurrence, Refusal, parallelize
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.extraction import root_nests
from tvm_scan.extraction.delta import extract_delta
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.splice import ensure_blocks

CASES = [(DeltaRule, *case) for case in DELTAS] + [(Recurrence, *case) for case in SELECTIVE]


def program(source, folder):
    path = folder / "program.py"
    path.write_text(source)
    linecache.checkcache()
    space = {}
    exec(compile(source, str(path), "exec"), space)
    return space["program"]


def arguments(func):
    rng, arrays = np.random.default_rng(0), []
    for param in func.params:
        array = rng.standard_normal([int(extent) for extent in param.ty.shape])
        if param.name in ("Ks", "Q"):
            array /= np.linalg.norm(array, axis=-1, keepdims=True)
        if param.name in ("D", "W", "B", "A", "G"):
            array = rng.random(array.shape) * (-1 if param.name in "AG" else 1)
        arrays.append(array.astype("float32"))
    return arrays


@pytest.mark.parametrize(
    ("kind", "name", "source", "reason"), CASES, ids=[f"{c[0].__name__} {c[1]}" for c in CASES]
)
def test_forms(kind, name, source, reason, tmp_path):
    func = program(source, tmp_path)
    (finding,) = analyse(func).findings
    if reason is not None:
        assert isinstance(finding, Refusal)
        blocked = ensure_blocks(func)
        assert reason in extract_delta(blocked, root_nests(blocked)[0]).detail
        return
    assert isinstance(finding, kind), finding.message()
    given = arguments(func)
    scan = kind is Recurrence
    got = run_scan(func, given) if scan else run_cpu(parallelize(func, CPU), given)
    for one, want in zip(got, run_loop(func, given), strict=True):
        np.testing.assert_allclose(one, want, rtol=2e-5, atol=2e-5)
