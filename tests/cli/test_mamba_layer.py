"""The float64 Mamba layer: shapes, causality, initialisation, and the scan put in its place."""

import numpy as np
import pytest
import tvm

from tests.support.library_runs import error_bound, run_serial
from tvm_scan.cli.support.mamba_layer import MambaLayer
from tvm_scan.library import LIBRARY, selective_scan
from tvm_scan.library.selective_scan import softplus_reference

TEXT = b"A person writes a recurrence the way the maths is written."
TOKENS = np.frombuffer(TEXT, np.uint8)[None]


def test_shapes():
    layer = MambaLayer(d_model=24, d_state=8)
    inputs = layer.scan_inputs(TOKENS)
    func = selective_scan(1, layer.d_inner, len(TEXT), 8)
    read = [p for p in func.params if p.name != "out"]
    assert list(inputs) == [param.name for param in read]
    for param in read:
        assert inputs[param.name].shape == tuple(int(extent) for extent in param.ty.shape)
    assert layer.dt_rank == 2
    assert layer.reference(TOKENS).shape == (1, len(TEXT), 24)
    assert layer.reference(TOKENS[:, :0]).shape == (1, 0, 24)
    batch = np.frombuffer(TEXT, np.uint8)[:56].reshape(4, 14)
    assert layer.reference(batch).shape == (4, 14, 24)


def test_batches_are_independent():
    layer = MambaLayer(d_model=16)
    batch = np.frombuffer(TEXT, np.uint8)[:56].reshape(4, 14)
    alone = np.concatenate([layer.reference(row[None]) for row in batch])
    np.testing.assert_allclose(layer.reference(batch), alone, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("position", [0, 1, 20, len(TEXT) - 1])
def test_causal(position):
    """A changed byte changes its own output and later ones, and no earlier one."""
    layer = MambaLayer(d_model=16)
    changed = TOKENS.copy()
    changed[0, position] = ord("#")
    before, after = layer.reference(TOKENS)[0], layer.reference(changed)[0]
    # Not bit for bit: BLAS may round a row differently when another row differs.
    np.testing.assert_allclose(before[:position], after[:position], rtol=1e-12, atol=1e-13)
    reached = np.abs(before - after).max(axis=1)[position : position + 8]
    assert (reached > 1e-6).all()


def test_initialisation():
    layer = MambaLayer(d_model=64, seed=3)
    weights = layer.weights
    np.testing.assert_allclose(np.exp(weights["A_log"][5]), np.arange(1, 17), rtol=1e-14)
    steps = softplus_reference(weights["dt_bias"])
    assert steps.min() >= 1e-3 * (1 - 1e-12)
    assert steps.max() <= 1e-1 * (1 + 1e-12)
    # Log-uniform: the mean of the logarithm is the middle, within 4 standard errors of 128.
    width = np.log(100)
    error = np.log(steps).mean() - np.log(1e-2)
    assert abs(error) < 4 * width / np.sqrt(12 * len(steps))
    assert MambaLayer(64, seed=3).weights["conv"][0, 0] == weights["conv"][0, 0]
    assert MambaLayer(64, seed=4).weights["conv"][0, 0] != weights["conv"][0, 0]


def test_compiled_scan_in_its_place():
    layer = MambaLayer(d_model=16)
    inputs = {name: array.astype("float32") for name, array in layer.scan_inputs(TOKENS).items()}
    func = selective_scan(1, layer.d_inner, len(TEXT))
    want = LIBRARY["selective_scan"].expected(inputs)
    got = run_serial(tvm.compile(func, target="llvm"), func, inputs, want)
    bound = error_bound("selective_scan", inputs, {}, len(TEXT))["out"]
    assert (np.abs(got["out"] - want["out"]) <= bound).all()
    hidden = layer.finish(got["out"])
    # Against weights in float64, rounding the inputs to float32 counts too: a few roundings of
    # each step's gate and drive, far below this at 58 steps.
    np.testing.assert_allclose(hidden, layer.reference(TOKENS), atol=1e-5)
