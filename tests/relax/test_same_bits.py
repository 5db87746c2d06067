"""Relax and torch build the same loop for a function: their numbers are equal, bit for bit."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.target import Target

torch = pytest.importorskip("torch")
import tvm_scan.torch as ours  # noqa: E402
from tests.relax.test_torch import exported  # noqa: E402
from tests.support.compiled import compile_cached  # noqa: E402
from tvm_scan.relax import from_exported, get_pipeline  # noqa: E402
from tvm_scan.torch.functions import filters  # noqa: E402

CPU = Target.from_device("cpu")
#: Powers of two: torch keeps a plan for all sizes up to a factor of two, made for the least.
SHAPE, TIME = (2, 256, 8), 1
ROWS = (16, 256)


def numbers(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def gates(*shape, dtype=torch.float32):
    return torch.sigmoid(numbers(*shape, seed=7)).to(dtype)


def with_specials(x):
    """Ties, both zeros, infinities and NaNs, some of them in rows of their own."""
    x = x.round()
    rows = x.view(x.shape[0], -1)
    rows[0, 5::7], rows[0, 3::11] = -0.0, 0.0
    rows[1, 9], rows[1, 20], rows[1, 40] = float("inf"), float("-inf"), float("nan")
    return x


def of_rows(function, dtype=torch.float32, specials=False):
    x = numbers(*ROWS, dtype=dtype)
    return lambda x: function(x, 1), (with_specials(x) if specials else x,)


def of_channels(function, dtype=torch.float32, specials=False):
    x = numbers(*SHAPE, dtype=dtype)
    return lambda x: function(x, TIME), (with_specials(x) if specials else x,)


def recurrence(a, x, reset, **options):
    return ours.linear_recurrence(a, x, dim=TIME, reset=reset > 0, **options)


B, D, L, N = 2, 8, 256, 4
RESETS = (numbers(B, L, 1) > 1.5).to(torch.int8).expand(SHAPE).contiguous()
SELECTIVE = (numbers(B, D, L), gates(B, D, L), -gates(D, N), numbers(B, N, L), numbers(B, N, L))
CASES = {
    "cumsum": of_rows(ours.cumsum),
    "cumsum of channels": of_channels(ours.cumsum),
    "cumsum of halves": of_rows(ours.cumsum, torch.float16),
    "cumsum from the end": of_rows(lambda x, dim: ours.cumsum(x, dim, reverse=True)),
    "cumprod": of_channels(ours.cumprod),
    "exclusive cumprod": of_rows(lambda x, dim: ours.cumprod(x, dim, exclusive=True)),
    "torch's cumsum": of_rows(torch.cumsum),
    "cummax": of_rows(ours.cummax, specials=True),
    "cummax of channels": of_channels(ours.cummax, specials=True),
    "cummin": of_channels(ours.cummin, torch.float64, specials=True),
    "cummin from the end": of_rows(lambda x, dim: ours.cummin(x, dim, reverse=True)),
    "logcumsumexp": of_rows(ours.logcumsumexp, specials=True),
    "logcumsumexp of channels": of_channels(ours.logcumsumexp),
    "linear recurrence": (
        lambda a, x: ours.linear_recurrence(a, x, dim=TIME),
        (gates(*SHAPE), numbers(*SHAPE)),
    ),
    "sum with resets": (
        lambda x, reset: recurrence(torch.ones_like(x), x, reset),
        (numbers(*SHAPE), RESETS),
    ),
    "linear recurrence with resets": (recurrence, (gates(*SHAPE), numbers(*SHAPE), RESETS)),
    "selective scan": (
        lambda *given: ours.selective_scan(*given, delta_softplus=True, return_last=True),
        SELECTIVE,
    ),
    # The operator alone: with what the function does around it, Relax has one larger loop.
    "lfilter": (
        lambda *given: filters._lfilter(*given),
        (numbers(4, 1, L), torch.tensor([[1.0, -0.5, 0.25]]), torch.tensor([[0.2, 0.3, 0.1]])),
    ),
    "matrix states": (
        lambda *given: torch.ops.tvm_scan.outer_scan(*given, None, "state", "inclusive", False),
        (
            # Of 1 and 0, so that torch's own exponential has no part in it.
            torch.where(gates(B, L, 2, N) > 0.9, float("-inf"), 0.0),
            *(numbers(B, L, 2, n, seed=n) for n in (N, D)),
            numbers(B, L, 2, N, seed=1),
            numbers(B, 2, D, N),
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_bits_of_relax_are_those_of_torch(name):
    function, given = CASES[name]
    mod = from_exported(exported(function, *given))
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU))
    machine = relax.VirtualMachine(built, tvm.cpu())
    got = machine["main"](*(tvm.runtime.tensor(a.numpy()) for a in given))
    want = function(*given)
    if name == "torch's cumsum":
        want = ours.cumsum(*given, 1)
    want = tuple(want) if isinstance(want, tuple) else (want,)
    got = got if len(want) > 1 or not hasattr(got, "numpy") else (got,)
    for array, expected in zip(got, want, strict=True):
        bits = f"u{expected.element_size()}"
        np.testing.assert_array_equal(array.numpy().view(bits), expected.numpy().view(bits))
