"""Kernels for the target ``c``: sources that any C compiler takes, without a function of LLVM's."""

import numpy as np
import pytest
import tvm
from tvm.target import Target

from bench.regret_cases import Case, inputs_of
from tvm_scan import default_plan, extract, parallelize
from tvm_scan.errors import PlanError

PLANS = [
    None,
    "cpu/sequential()",
    "cpu/lanes()",
    "cpu/lanes(lane_block=4)",
    "cpu/three_phase(chunks=2)",
]
CASES = [
    Case("cumsum", (24, 40), {"dtype": "int32"}),
    Case("linear_recurrence", (24, 40), {"dtype": "float32"}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
@pytest.mark.parametrize("plan", PLANS)
def test_every_schedule_compiles_as_c_and_is_right(case, plan, tmp_path):
    arrays = inputs_of(case)
    results = []
    for name, func, target in [
        ("loop", case.func, Target("llvm")),
        ("scan", parallelize(case.func, Target("c"), plan), Target("c")),
    ]:
        library = tmp_path / f"{name}.so"
        tvm.compile(func, target=target).export_library(str(library))
        out = tvm.runtime.tensor(np.zeros(case.sizes, arrays[0].dtype))
        tvm.runtime.load_module(str(library))["main"](*map(tvm.runtime.tensor, arrays), out)
        results.append(out.numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "plan",
    [
        "lanes(time_vector=8)",
        "lanes(lane_block=16, vectorize=True)",
        "three_phase(chunks=2, time_vector=8)",
    ],
)
def test_vectors_are_refused_where_tvm_writes_none(plan):
    with pytest.raises(PlanError, match="in whose code TVM writes vectors, got c"):
        parallelize(CASES[0].func, Target("c"), f"cpu/{plan}")


def test_no_default_has_vectors_where_tvm_writes_none(tmp_path):
    long = Case("cumsum", (1, 1 << 18), {"dtype": "float32"})
    plan = default_plan(Target("c"), extract(long.func))
    executable = tvm.compile(parallelize(long.func, Target("c"), plan), target=Target("c"))
    executable.export_library(str(tmp_path / "scan.so"))
