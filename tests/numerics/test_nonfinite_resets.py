"""A state that is not finite ends at the next reset, however the reset is written."""

import numpy as np
import pytest
import tvm
from tvm.script import from_source
from tvm.script import tirx as T

from tests.numerics.test_cpu import PLANS, compiled
from tests.numerics.test_nonfinite import DELAY, LENGTH, ROWS, SPECIAL, compiled_loop
from tests.support.recurrence_cases import SEED
from tvm_scan import extract


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_reset_within_a_choice_forgets(plan):
    """A state that is not finite ends at the next reset, also where two tests make one."""

    @T.prim_func(s_tir=True)
    def masked(
        X: T.Buffer((ROWS, LENGTH), "float32"),
        R: T.Buffer((ROWS, LENGTH), "int32"),
        Y: T.Buffer((ROWS, LENGTH), "float32"),
    ):
        for b in range(ROWS):
            s = T.sblock_alloc_buffer((1,), "float32")
            s[0] = T.float32(0)
            for t in range(LENGTH):
                if R[b, t] > 0:
                    if R[b, t] > 3:
                        s[0] = T.float32(0)
                    else:
                        s[0] = s[0] + X[b, t]
                Y[b, t] = s[0]

    rng = np.random.default_rng(SEED)
    x = rng.integers(-3, 4, (ROWS, LENGTH)).astype("float32")
    for row, value in enumerate(SPECIAL):
        x[row, 4::15] = value
    r = rng.integers(0, 5, x.shape).astype("int32")
    got, want = (tvm.runtime.tensor(np.zeros_like(x)) for _ in range(2))
    for run, out in ((compiled(masked, plan), got), (compiled_loop(masked), want)):
        run(tvm.runtime.tensor(x), tvm.runtime.tensor(r), out)
    np.testing.assert_array_equal(got.numpy(), want.numpy())


def resets_within(depth):
    """A reset within ``depth - 1`` choices, each with a step of its own where it does not hold."""
    step = "T.float32(0)"
    for level in reversed(range(depth)):
        other = "S[b] + X[b, t]" if level % 2 else "S[b] * T.float32(0.5)"
        step = f"T.if_then_else(R[b, t] > {level}, {step}, {other})"
    return from_source(
        f"""
@T.prim_func(s_tir=True)
def main(
    X: T.Buffer(({ROWS}, {LENGTH}), "float32"),
    R: T.Buffer(({ROWS}, {LENGTH}), "int32"),
    Y: T.Buffer(({ROWS}, {LENGTH}), "float32"),
):
    for b in range({ROWS}):
        S = T.sblock_alloc_buffer(({ROWS},), "float32")
        S[b] = T.float32(0)
        for t in range({LENGTH}):
            S[b] = {step}
            Y[b, t] = S[b]
""",
        {"T": T},
    )


@pytest.mark.parametrize("depth", [3, 5])
def test_a_reset_within_many_choices_forgets(depth):
    func = resets_within(depth)
    assert extract(func).algebras[0].name == "segmented"
    rng = np.random.default_rng(SEED)
    x = rng.integers(-3, 4, (ROWS, LENGTH)).astype("float32")
    for row, value in enumerate(SPECIAL):
        x[row, 4::15] = value
    r = rng.integers(0, depth + 1, x.shape).astype("int32")
    got, want = (tvm.runtime.tensor(np.zeros_like(x)) for _ in range(2))
    for run, out in ((compiled(func, DELAY), got), (compiled_loop(func), want)):
        run(tvm.runtime.tensor(x), tvm.runtime.tensor(r), out)
    assert np.isfinite(want.numpy()[:, -1]).any()
    np.testing.assert_array_equal(got.numpy(), want.numpy())
