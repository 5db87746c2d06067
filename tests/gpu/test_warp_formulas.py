"""Cheaper formulas of the warp tree: the bits of the careful ones, in both ways through a warp."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support import cusim
from tests.support.cuda_harness import CUDA_TARGET, compile_cuda, emit_cuda, run_cuda
from tvm_scan import ScanPlan, library, parallelize
from tvm_scan.schedules.machine.device import DEVICES

PLANS = {
    "one warp": "cuda/serial_tiles(threads_per_block=32, items_per_thread=2, block_tree=warp)",
    "four warps": "cuda/serial_tiles(threads_per_block=128, items_per_thread=1, block_tree=warp)",
    "many warps": "cuda/serial_tiles(threads_per_block=512, items_per_thread=1, block_tree=warp)",
    "phases": "cuda/three_phase(threads_per_block=64, items_per_thread=2, block_tree=warp)",
    "one pass": "cuda/single_pass(threads_per_block=64, items_per_thread=2, block_tree=warp)",
}
LOOPS = {"affine": library.linear_recurrence, "product": library.cumprod}
LENGTH, ROWS = 700, 12


def arrays(name):
    """Rows of which each has its own trouble, and one that has none."""
    rng = np.random.default_rng(7)
    gates = rng.uniform(0.5, 1.5, (ROWS, LENGTH)).astype("float32")
    inputs = rng.standard_normal((ROWS, LENGTH)).astype("float32")
    inputs[1] = 0  # products that overflow, of a state that stays zero
    gates[1] = 1e3
    inputs[2, :300], gates[2, :300] = 0, 1e30  # for a while
    gates[3, [5, 70, 650]], inputs[3, :80] = np.inf, 0  # gates that are infinite
    gates[4, 200], inputs[5, 300] = np.nan, np.inf
    gates[6] = np.where(rng.random(LENGTH) < 0.1, 0, 1e20)
    gates[7], inputs[7] = 2, 2.0**-140  # states that grow from nothing
    gates[8, 131], inputs[8] = -np.inf, -0.0
    gates[9, ::9], gates[9, 4::9], inputs[9] = 1e38, 1e-38, 0
    gates[10, 40] = 0
    gates[10, 41], inputs[10, :100] = np.inf, 0
    return [gates, inputs] if name == "affine" else [gates]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", LOOPS)
def test_both_ways_give_the_same_bits(name, plan, monkeypatch):
    """Where no thread's value is NaN, nothing was lost; else the warp goes the careful way."""
    func, given = LOOPS[name](ROWS, LENGTH), arrays(name)

    def results(votes):
        monkeypatch.setitem(DEVICES, "cuda", replace(DEVICES["cuda"], votes=votes))
        scheduled = parallelize(func, CUDA_TARGET, ScanPlan.parse(PLANS[plan]))
        assert ("scan_all(" in emit_cuda(scheduled)) == votes
        out = np.full((ROWS, LENGTH), 77, "float32")
        made = compile_cuda(scheduled)
        return run_cuda(scheduled, [*given, out], seeds=(0, 2), executable=made)[-1]

    fast, careful = results(True), results(False)
    if cusim.is_simulated() or name == "product":
        np.testing.assert_array_equal(fast.view("int32"), careful.view("int32"))
    else:  # nvcc makes one instruction of a product and its sum where the formula lets it
        np.testing.assert_allclose(fast, careful, rtol=5e-4)
    assert np.isnan(careful).any(axis=1).sum() >= 2
    if name == "affine":
        assert not careful[1].any(), "a state of zero stays zero where products overflow"
