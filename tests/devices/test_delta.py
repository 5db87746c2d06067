"""The delta rule in chunks, on drivers of other GPUs: six barriers a chunk, 16 KiB of a block."""

import numpy as np
import pytest

from tests.devices.table import RUN, TARGETS
from tests.devices.test_table import driver_of
from tests.programs.suite.running import run_loop
from tests.programs.test_delta import FORMS, arguments, attention
from tests.support.drivers import emit, run
from tests.support.tiers import longer
from tvm_scan import parallelize

_FORMS = longer(["by_vectors"], ["by_vectors", "own_state", "two_vectors", "several_sums"])


def on(device, plan=None):
    driver = driver_of(device)

    def run_there(func, arrays):
        scheduled = parallelize(func, TARGETS[device], plan)
        assert "delta_block" in scheduled.script()
        return run(emit(scheduled, TARGETS[device]), driver, arrays)

    return run_there


@pytest.mark.parametrize("device", RUN)
@pytest.mark.parametrize("name", _FORMS)
def test_forms(device, name):
    given = arguments(FORMS[name])
    made = on(device)(FORMS[name], given)
    for got, want in zip(made, run_loop(FORMS[name], given), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("device", RUN)
def test_edge_lengths(device):
    for length, keys, values, each, symbolic in (
        (0, 8, 16, False, True),
        (1, 8, 16, True, False),
        (19, 7, 33, True, True),
    ):
        sizes = {"each": each, "symbolic": symbolic, "heads": 1}
        got, want = attention(length, keys, values, run=on(device), **sizes)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", RUN)
def test_segments_of_time(device):
    run_there = on(device, "cuda/delta_blocks(steps=4, chunks=3)")
    got, want = attention(29, 8, 33, each=True, heads=1, run=run_there)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
