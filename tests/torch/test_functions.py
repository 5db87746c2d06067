"""The torch functions: values against sequential loops, first and second derivatives."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.support.derivatives import check_derivatives  # noqa: E402
from tests.support.tiers import covering  # noqa: E402
from tests.torch.oracles import linear_loop  # noqa: E402

FLAGS = list(itertools.product((False, True), (False, True)))
SUMS = ("cumsum", "cumprod")


def randn(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=dtype, generator=generator)


def leaf(*shape, dtype=torch.float64, seed=0):
    return randn(*shape, dtype=dtype, seed=seed).requires_grad_()


@pytest.mark.parametrize(("reverse", "exclusive"), FLAGS)
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dim", [0, -1])
def test_sums_and_products(name, dim, reverse, exclusive):
    function, x = getattr(ts, name), leaf(3, 2, 7)
    with torch.no_grad():
        x[1, 1, 3] = 0  # where dividing by the input would fail
    start = x.new_zeros(()) if name == "cumsum" else x.new_ones(())
    moved = x.movedim(dim, -1).detach()
    gates, inputs = (torch.ones_like(moved), moved) if name == "cumsum" else (moved, 0 * moved)
    start = start.expand(moved.shape[:-1])
    expected, _ = linear_loop(gates, inputs, start, reverse=reverse, exclusive=exclusive)
    options = {"reverse": reverse, "exclusive": exclusive}
    torch.testing.assert_close(function(x, dim, **options), expected.movedim(-1, dim))
    check_derivatives(lambda x: function(x, dim, **options), (x,))


@pytest.mark.parametrize(("reverse", "exclusive"), FLAGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_linear_recurrence(dtype, reverse, exclusive):
    a, x, h0 = leaf(2, 5, dtype=dtype), leaf(2, 5, dtype=dtype, seed=1), leaf(2, dtype=dtype)

    def run(a, x, h0):
        return ts.linear_recurrence(
            a, x, h0, reverse=reverse, exclusive=exclusive, return_last=True
        )

    expected = linear_loop(a, x, h0, reverse=reverse, exclusive=exclusive)
    torch.testing.assert_close(run(a, x, h0), expected)
    check_derivatives(run, (a, x, h0))


def test_linear_recurrence_broadcasts_and_resets():
    gate, x, h0 = leaf(3, 1), leaf(2, 3, 6, seed=1), leaf(3, seed=2)
    reset = torch.tensor([False, False, True, False, True, False])
    function = lambda gate, x, h0: ts.linear_recurrence(gate, x, h0, reset=reset)  # noqa: E731
    expected, _ = linear_loop(gate.expand(x.shape) * ~reset, x, h0.expand(2, 3))
    torch.testing.assert_close(function(gate, x, h0), expected)
    check_derivatives(function, (gate, x, h0))


def test_complex_gates_of_zero():
    a, x = randn(1, 4, dtype=torch.complex64), randn(1, 4, dtype=torch.complex64, seed=1)
    a[0, 2] = 0
    torch.testing.assert_close(ts.linear_recurrence(a, x), linear_loop(a, x)[0])


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 1009, 9000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lengths_and_dtypes(length, dtype):
    a, x = torch.rand(2, 3, length, dtype=torch.float64).to(dtype).unbind(0)
    h, last = ts.linear_recurrence(a, x, return_last=True)
    expected, _ = linear_loop(a.double(), x.double())
    # Carries are float32, so only the result is rounded to a half; the gates are below 1, so
    # errors of earlier steps fade: a few units in the last place of what was added up.
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(h.double(), expected, rtol=tolerance, atol=tolerance)
    assert h.dtype == last.dtype == dtype
    assert torch.equal(last, h[..., -1])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers_wrap_around(dtype):
    a, x = (torch.randint(-9, 9, (4, 100), dtype=dtype) for _ in range(2))
    expected, _ = linear_loop(a, x)
    assert torch.equal(ts.linear_recurrence(a, x), expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int32])
def test_small_integers_as_torch_does(dtype):
    x = torch.randint(0, 2, (3, 9)).to(dtype)
    for name in SUMS:
        got, want = getattr(ts, name)(x, 1), getattr(torch, name)(x, 1)
        assert got.dtype == want.dtype == torch.int64
        assert torch.equal(got, want)
    assert torch.equal(ts.cumsum(x, 1, dtype=torch.float32), x.cumsum(1).float())


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


@pytest.mark.parametrize(
    ("name", "dim", "dtype"),
    covering(
        itertools.product(["cummax", "cummin"], [0, 1], DTYPES),
        lambda c: dict(zip(("name", "dim", "dtype"), c, strict=True)),
    ),
)
def test_extrema_as_torch_does(name, dim, dtype):
    x = torch.randint(-4 if dtype.is_signed else 0, 5, (40, 6)).to(dtype)
    if dtype.is_floating_point:
        x[3, 1], x[9, 1], x[:2, 2], x[5, 3] = float("nan"), float("nan"), float("-inf"), -0.0
        x[4, 3], x[7, 4] = 0.0, float("inf")
    values, indices = getattr(ts, name)(x, dim)
    wanted = getattr(torch, name)(x, dim)
    assert torch.equal(indices, wanted.indices)
    torch.testing.assert_close(values, wanted.values, rtol=0, atol=0, equal_nan=True)
    values, indices = getattr(ts, name)(x, dim, reverse=True)
    wanted = getattr(torch, name)(x.flip(dim), dim)
    assert torch.equal(indices, x.shape[dim] - 1 - wanted.indices.flip(dim))


def test_extrema_have_derivatives():
    x = leaf(3, 8)
    for name in ("cummax", "cummin"):
        check_derivatives(lambda x, name=name: getattr(ts, name)(x, 1).values ** 2, (x,))


@pytest.mark.parametrize("reverse", [False, True])
def test_logcumsumexp(reverse):
    x = leaf(2, 9)
    expected = torch.logcumsumexp(x.flip(1), 1).flip(1) if reverse else torch.logcumsumexp(x, 1)
    torch.testing.assert_close(ts.logcumsumexp(x, 1, reverse=reverse), expected)
    check_derivatives(lambda x: ts.logcumsumexp(x, 1, reverse=reverse), (x,))


def test_logcumsumexp_writes_no_positions():
    """Nobody reads where its running maximum was taken."""
    loops = ts.loops_of(lambda: ts.logcumsumexp(randn(3, 40, dtype=torch.float32), 1))
    assert [name.partition("(")[0] for name in loops] == ["extremum", "logcumsumexp"]
    dtypes = {str(p.ty.dtype) for loop in loops.values() for p in loop.params}
    assert dtypes == {"float32"}


def test_logcumsumexp_of_extreme_values():
    inf, nan = float("inf"), float("nan")
    x = torch.tensor(
        [
            [-inf, -inf, 0.0, -inf],
            [100.0, -3e4, 100.0, 1.0],
            [0.0, inf, 1.0, -inf],
            [0.0, nan, 1.0, 2],
        ]
    ).requires_grad_()
    y = ts.logcumsumexp(x, 1)
    torch.testing.assert_close(y, torch.logcumsumexp(x.detach(), 1), equal_nan=True)
    (grad,) = torch.autograd.grad(y[:2, 2:].sum(), x)  # rows 0 and 1 are finite there
    weights = torch.tensor([[0.0, 0, 2, 0], [1.0, 0, 1, 0]])
    torch.testing.assert_close(grad[:2], weights)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0,), (2, 0, 3), ()])
def test_empty_and_scalar(shape):
    x = torch.zeros(shape, requires_grad=True)
    for name in (*SUMS, "logcumsumexp"):
        y = getattr(ts, name)(x, 0)
        assert y.shape == x.shape
        y.sum().backward()
        assert x.grad.shape == x.shape
    assert ts.cummax(x, 0).indices.shape == x.shape
    if x.dim():
        h0 = torch.ones(x.shape[:-1], requires_grad=True)
        for exclusive in (False, True):
            h, last = ts.linear_recurrence(0.5, x, h0, exclusive=exclusive, return_last=True)
            assert h.shape == x.shape
            (h.sum() + last.sum()).backward()
            assert h0.grad.shape == h0.shape
        if x.shape[-1] == 0:
            assert torch.equal(last, h0)


def test_bad_arguments_say_what_to_do():
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"cumsum: expected dim between -2 and 1, got 5"):
        ts.cumsum(x, 5)
    with pytest.raises(ValueError, match="expected x to be a tensor, got list"):
        ts.cumsum([1, 2], 0)
    with pytest.raises(ValueError, match=r"a to broadcast to \(2, 3\), got \(4,\)"):
        ts.linear_recurrence(torch.zeros(4), x)
    with pytest.raises(ValueError, match=r"h0 to broadcast to \(2,\), got \(5,\)"):
        ts.linear_recurrence(x, x, torch.zeros(5))
    with pytest.raises(ValueError, match="expected floats, complex, int32 or int64"):
        ts.linear_recurrence(x.to(torch.uint8), x.to(torch.uint8))
    with pytest.raises(ValueError, match="expected numbers with an order"):
        ts.cummax(x.to(torch.complex64), 0)
    with pytest.raises(ValueError, match=r"expected floats in x, got torch\.int64"):
        ts.logcumsumexp(x.to(torch.int64), 0)
