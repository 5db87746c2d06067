"""The NumPy twins against formulas that share no code with them."""

import itertools

import numpy as np
import pytest

from tvm_scan.library import (
    LIBRARY,
    cummax_reference,
    cummin_reference,
    cumprod_reference,
    cumsum_reference,
    ema_reference,
    linear_recurrence_reference,
    selective_scan_reference,
)
from tvm_scan.library.linear import LINEAR_LAYOUTS
from tvm_scan.library.selective_scan import silu_reference, softplus_reference

SEED = 41
NUMPY_TWINS = [
    (cumsum_reference, np.add.accumulate, 0),
    (cumprod_reference, np.multiply.accumulate, 1),
    (cummax_reference, np.maximum.accumulate, -np.inf),
    (cummin_reference, np.minimum.accumulate, np.inf),
]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(
    ("twin", "accumulate", "identity"), NUMPY_TWINS, ids=[t[0].__name__ for t in NUMPY_TWINS]
)
def test_cumulative(twin, accumulate, identity, axis, reverse):
    x = np.random.default_rng(SEED).standard_normal((3, 33, 5))
    turned = np.flip(x, axis) if reverse else x
    want = accumulate(turned, axis=axis)
    want = np.flip(want, axis) if reverse else want
    np.testing.assert_array_equal(twin(x, axis=axis, reverse=reverse), want)

    moved = np.roll(want, -1 if reverse else 1, axis)
    first = [slice(None)] * 3
    first[axis] = -1 if reverse else 0
    moved[tuple(first)] = identity
    np.testing.assert_array_equal(twin(x, axis=axis, reverse=reverse, exclusive=True), moved)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_wrap_around(dtype):
    top = np.iinfo(dtype).max
    x = np.array([[top, 1, 1]], dtype)
    got = cumsum_reference(x)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, [[top, -top - 1, -top]])
    np.testing.assert_array_equal(cumprod_reference(np.array([[top, 2]], dtype)), [[top, -2]])


def test_running_extrema_forget_nan():
    """The documented rule: ``carry > x ? carry : x`` holds a NaN for one step."""
    x = np.array([1, np.nan, 3, 2, np.nan, np.nan, -1])
    np.testing.assert_array_equal(cummax_reference(x), [1, np.nan, 3, 3, np.nan, np.nan, -1])
    np.testing.assert_array_equal(cummin_reference(x), [1, np.nan, 3, 2, np.nan, np.nan, -1])


def test_nan_and_infinity_in_a_sum_last():
    x = np.array([1, np.inf, 2, -np.inf, 3])
    np.testing.assert_array_equal(cumsum_reference(x), [1, np.inf, np.inf, np.nan, np.nan])


def _products(a):
    """M[t, s] = a[s+1] ... a[t] for s <= t, else 0: the recurrence as one matrix, (t, s, ...)."""
    length = len(a)
    t, s = np.ogrid[:length, :length]
    later = (t > s).reshape(length, length, *[1] * (a.ndim - 1))
    below = (t >= s).reshape(later.shape)
    return np.where(below, np.cumprod(np.where(later, a[:, None], 1), axis=0), 0)


@pytest.mark.parametrize("layout", LINEAR_LAYOUTS)
@pytest.mark.parametrize(
    ("gate", "reverse", "exclusive", "start"),
    list(itertools.product(["time", "lane", 0.9], *[[False, True]] * 3)),
)
def test_linear_recurrence(layout, gate, reverse, exclusive, start):
    rng = np.random.default_rng(SEED)
    lanes = (4, 3) if layout.startswith("b") else (3,)
    h0 = rng.standard_normal(lanes)
    x = rng.standard_normal((33, *lanes))
    a = {"time": rng.uniform(-1, 1, x.shape), "lane": rng.uniform(-1, 1, 3)}.get(gate, gate)
    matrix = _products(np.broadcast_to(a, x.shape))
    states = np.einsum("ts...,s...->t...", matrix, x)
    states += (matrix[:, 0] * (a[0] if gate == "time" else a) * h0) if start else 0
    want = np.concatenate([(h0 if start else 0 * h0)[None], states[:-1]]) if exclusive else states

    def ordered(array):
        """Give the twin time where the layout has it, and backward when it walks backward."""
        return np.moveaxis(array[::-1] if reverse else array, 0, LINEAR_LAYOUTS[layout])

    got, last = linear_recurrence_reference(
        ordered(a) if gate == "time" else a,
        ordered(x),
        h0 if start else None,
        layout=layout,
        reverse=reverse,
        exclusive=exclusive,
    )
    np.testing.assert_allclose(got, ordered(want), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(last, states[-1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["dl", "ld"])
def test_ema(layout):
    rng = np.random.default_rng(SEED)
    x, h0 = rng.standard_normal((33, 3)), rng.standard_normal(3)
    alpha = rng.uniform(0.05, 0.5, 3)
    ages = np.arange(33)[:, None] - np.arange(33)
    kernel = np.where(ages[..., None] >= 0, (1 - alpha) ** np.maximum(ages, 0)[..., None], 0)
    want = np.einsum("tsd,sd->td", kernel, alpha * x)
    decay = (1 - alpha) ** np.arange(1, 34)[:, None]

    def ordered(array):
        return array if layout == "ld" else array.T

    def check(expected, *args, **options):
        got = ema_reference(ordered(x), alpha, *args, layout=layout, **options)
        np.testing.assert_allclose(got, ordered(expected), rtol=1e-12, atol=1e-12)

    check(want)
    check(want + decay * h0, h0, initial="buffer")
    check(want + decay * x[0], initial="first")


@pytest.mark.parametrize("layout", ["bdl", "bld"])
@pytest.mark.parametrize(
    ("softplus", "bias", "skip", "gate", "start"),
    list(itertools.product([False, True], repeat=5)),
)
def test_selective_scan(layout, softplus, bias, skip, gate, start):
    """The unrolled sum with one decay per pair of steps, as exp of sums of step sizes."""
    options = {"layout": layout, "softplus": softplus, "has_bias": bias, "has_D": skip}
    options |= {"has_z": gate, "initial_state": start}
    rng = np.random.default_rng(SEED)
    arrays = LIBRARY["selective_scan"].example_inputs(rng, 2, 3, 33, 4, "float64", **options)
    got, last = selective_scan_reference(**arrays, layout=layout, softplus=softplus)

    def by_time(key):
        """(batch, time, ...)"""
        return arrays[key].transpose(0, 2, 1) if layout == "bdl" else arrays[key]

    dt = by_time("delta") + arrays.get("delta_bias", 0)
    dt = np.logaddexp(0, dt) if softplus else dt
    until = np.cumsum(dt, axis=1)
    between = until[:, :, None] - until[:, None]
    causal = np.tril(np.ones((33, 33)))[None, :, :, None, None]
    # Above the diagonal the exponent is positive: mask it before exp, not only after.
    decay = np.exp(causal * between[..., None] * arrays["A"]) * causal
    states = np.einsum("btsdn,bsd,bsn,bsd->btdn", decay, dt, by_time("B"), by_time("u"))
    if start:
        states += np.exp(until[..., None] * arrays["A"]) * arrays["h0"][:, None]
    y = np.einsum("btdn,btn->btd", states, by_time("C"))
    y += arrays["D"] * by_time("u") if skip else 0
    y *= by_time("z") / (1 + np.exp(-by_time("z"))) if gate else 1
    want = y.transpose(0, 2, 1) if layout == "bdl" else y
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(last, states[:, -1], rtol=1e-11, atol=1e-12)


def test_softplus_and_silu_are_stable():
    x = np.array([-1e4, -800, -40, 0, 40, 800, 1e4])
    np.testing.assert_array_equal(
        softplus_reference(x), [0, 0, np.exp(-40.0), np.log(2), 40, 800, 1e4]
    )
    np.testing.assert_array_equal(silu_reference(x)[[0, 1, 3, 5, 6]], [-0.0, -0.0, 0, 800, 1e4])
