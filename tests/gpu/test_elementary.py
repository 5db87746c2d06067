"""Softplus and the logistic function in few instructions: their errors, and where they are used."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.script import tirx as T

from bench.gpu_loops import rwkv6
from tests.support.cuda_harness import run_cuda
from tvm_scan import extract, library, tir
from tvm_scan.schedules.gpu.walk.common_factors import with_common_factors
from tvm_scan.schedules.gpu.walk.elementary import in_few_instructions

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-30, -1e-30, 88.8, -88.8, 126, -126]


def kernel(count, make):
    """A thread for each number, and ``make`` of it in few instructions."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((count,), "float32"), y: T.Buffer((count,), "float32")):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        for b in T.thread_binding(count // 64, thread="blockIdx.x"):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("element"):
                    i = T.axis.spatial(count, b * 64 + tx)
                    y[i] = x[i]

    def on_store(store):
        changed = in_few_instructions(
            tvm.tirx.BufferStore(store.buffer, make(store.value), store.indices)
        )
        assert "func_call" in str(changed), "expected the function, found the calls as they were"
        return changed

    return main.with_body(tvm_ffi.structural_map(main.body, (tvm.tirx.BufferStore, on_store)))


def softplus(x):
    one = tvm.tirx.FloatImm("float32", -1.0)
    return tvm.tirx.log1p(tvm.tirx.exp(tvm.tirx.abs(x) * one))


def thresholded(x):
    twenty = tvm.tirx.FloatImm("float32", 20.0)
    return T.if_then_else(x > twenty, x, tvm.tirx.log1p(tvm.tirx.exp(x)))


def gate(z):
    one = tvm.tirx.FloatImm("float32", 1.0)
    return z / (one + tvm.tirx.exp(z * tvm.tirx.FloatImm("float32", -1.0)))


def exact_gate(z):
    return z * np.where(z < 0, np.exp(-np.abs(z)), 1) / (1 + np.exp(-np.abs(z)))


@pytest.mark.parametrize(
    ("make", "exact"),
    [
        (softplus, lambda x: np.log1p(np.exp(-np.abs(x)))),
        (thresholded, lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))),
        (gate, exact_gate),
    ],
    ids=["softplus", "thresholded", "gate"],
)
def test_errors(make, exact):
    """In ulp: 6 to a magnitude of 16 and 8 to 80, two of which are the instruction's.

    The simulated device has an exact one.
    """
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-80, 80, 6000), rng.uniform(-16, 16, 2000), SPECIAL])
    x = np.resize(x, 8192).astype("float32")
    got = run_cuda(kernel(x.size, make), [x, np.zeros_like(x)], seeds=(0,))[1].astype("float64")
    with np.errstate(all="ignore"):
        want = exact(x.astype("float64"))
        unit = np.spacing(np.abs(want).astype("float32")).astype("float64")
        error = np.abs(got - want) / np.maximum(unit, 2.0**-120)
    assert 0.5 < error[np.abs(x) <= 16].max() <= 4
    assert error[np.abs(x) <= 80].max() <= 6
    beyond = ~(np.abs(x) <= 80) & ~np.isnan(want)
    assert (np.isinf(got[beyond]) == np.isinf(want[beyond])).all()
    finite = beyond & np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=2.0**-20, atol=2.0**-120)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


def test_other_expressions_stay():
    """A positive argument, another dtype, a sum that is not one and an exponential."""
    x = tvm.tirx.Var("x", "float32")
    wide = tvm.tirx.Var("w", "float64")
    one = tvm.tirx.FloatImm("float32", 1.0)
    for value in (
        tvm.tirx.log1p(tvm.tirx.exp(x)),
        tvm.tirx.log1p(tvm.tirx.exp(tvm.tirx.abs(wide) * tvm.tirx.FloatImm("float64", -1.0))),
        x / (one + tvm.tirx.exp(x)),
        # Below 17 the second term counts.
        T.if_then_else(x > one, x, tvm.tirx.log1p(tvm.tirx.exp(x))),
        T.if_then_else(
            x > tvm.tirx.FloatImm("float32", 20.0), one, tvm.tirx.log1p(tvm.tirx.exp(x))
        ),
        x / (tvm.tirx.FloatImm("float32", 2.0) + tvm.tirx.exp(x * -one)),
    ):
        stmt = tvm.tirx.Evaluate(value)
        assert tir.structurally_equal(in_few_instructions(stmt), stmt)


def test_factors_that_states_share_are_multiplied_once():
    found = extract(library.selective_scan(1, 4, 50, 16))
    changed = with_common_factors(found)
    assert len(changed.registers) == len(found.registers) + 1
    text = str(changed.body)
    assert "factor0[0] = dt" in text and "* factor0[0]" in text
    assert with_common_factors(changed) is changed, "nothing is left to take out"


def test_products_with_a_state_stay():
    """Of RWKV-6, k v is of one state and one column; nothing is the same for all states."""
    found = extract(rwkv6(2, 64, 8))
    assert with_common_factors(found) is found
