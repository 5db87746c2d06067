"""`scan` of functions, against torch's and a plain loop."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402
from tests.support.derivatives import check_derivatives  # noqa: E402
from tvm_scan.errors import RefusalError  # noqa: E402


def doubles(*shape, count=2):
    generator = torch.Generator().manual_seed(0)
    return list(torch.rand(count, *shape, generator=generator, dtype=torch.float64) + 0.1)


def gated(carry, x):
    h = torch.sigmoid(x["a"]) * carry + x["b"]
    return h, (h, torch.tanh(h) * carry)


def looped(f, init, xs, dim=0, reverse=False):
    leaves, spec = torch.utils._pytree.tree_flatten(xs)
    length = leaves[0].shape[dim]
    ys = [None] * length
    for t in range(length)[:: -1 if reverse else 1]:
        step = torch.utils._pytree.tree_unflatten([x.select(dim, t) for x in leaves], spec)
        init, ys[t] = f(init, step)
    return init, tuple(torch.stack(parts, dim) for parts in zip(*ys, strict=True))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_scan(dim, reverse):
    a, b = doubles(5, 6)
    h0 = torch.rand(6 if dim == 0 else 5, dtype=torch.float64)
    xs = {"a": a, "b": b}
    carry, ys = ts.scan(gated, h0, xs, dim, reverse)
    want_carry, want = looped(gated, h0, xs, dim, reverse)
    torch.testing.assert_close(carry, want_carry)
    for got, expected in zip(ys, want, strict=True):
        torch.testing.assert_close(got, expected)


def test_scan_as_torch():
    from torch._higher_order_ops.scan import scan

    a, b = doubles(5, 6)
    h0 = torch.rand(5, dtype=torch.float64)

    def step(carry, x):
        h = x["a"] * carry + x["b"]
        return h, h * 2

    xs = {"a": a, "b": b}
    for got, want in zip(
        ts.scan(step, h0, xs, 1, True), scan(step, h0, xs, dim=1, reverse=True), strict=True
    ):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_scan(reverse):
    h0, *xs = (t.requires_grad_() for t in doubles(4, 3, count=3))

    def call(start, a, b):
        carry, ys = ts.scan(gated, start, {"a": a, "b": b}, 0, reverse)
        return carry, *ys

    arguments = (h0[0].detach().requires_grad_(), *xs)
    check_derivatives(call, arguments)


def test_carries_that_depend_on_each_other():
    """A rotation: its adjoint is a recurrence of two carries."""

    def step(carry, x):
        u, v = carry
        return (u * x[0] - v * x[1], u * x[1] + v * x[0] + x[0]), u + v

    starts = [t.requires_grad_() for t in doubles(3)]
    xs = [t.requires_grad_() for t in doubles(5, 3)]

    def call(u, v, a, b):
        (u, v), y = ts.scan(step, (u, v), (a, b))
        return u, v, y

    check_derivatives(call, (*starts, *xs))


def test_broadcast_and_shared():
    (a,), (x,) = doubles(7, 1, count=1), doubles(7, 4, count=1)
    weight = torch.rand(4, dtype=torch.float64).requires_grad_()

    def step(carry, xs):
        h = xs[0] * carry + weight * xs[1]
        return h, (h,)

    h0 = torch.zeros(4, dtype=torch.float64)
    _, (got,) = ts.scan(step, h0, (a, x))
    _, (want,) = looped(step, h0, (a, x))
    torch.testing.assert_close(got, want)
    (left,) = torch.autograd.grad(got.sum(), weight)
    (right,) = torch.autograd.grad(want.sum(), weight)
    torch.testing.assert_close(left, right)


def test_a_step_that_mixes_elements():
    (x,) = doubles(9, 2, count=1)
    matrix = torch.tensor([[0.5, 0.2], [-0.3, 0.9]], dtype=torch.float64)

    def step(carry, u):
        h = matrix @ carry + u
        return h, (h,)

    h0 = torch.ones(2, dtype=torch.float64)
    got, want = ts.scan(step, h0, x), looped(step, h0, x)
    torch.testing.assert_close(got[0], want[0])
    torch.testing.assert_close(got[1][0], want[1][0])


def test_what_is_no_scan_is_refused():
    x = torch.rand(9, 3)
    with pytest.raises(RefusalError, match=r"expected .*, got|expected"):
        ts.scan(lambda c, u: (torch.tanh(c + u), c), x[0], x)
    with pytest.raises(ValueError, match="expected a carry of"):
        ts.scan(lambda c, u: (u[:1] + c[:1], u), x[0], x)
    with pytest.raises(ValueError, match="a carry and what to emit"):
        ts.scan(lambda c, u: c + u, x[0], x)


def test_operators_of_torch_are_translated():
    """One step with many of them, in float64: no constant of it is rounded to float32."""
    x, y = (t * 3 - 1.7 for t in doubles(6, 40))

    def step(h, xs):
        u, v = xs
        gate = torch.sigmoid(u) * torch.exp(-v.abs()) + 0.1 * torch.tanh(u * v)
        drive = F.softplus(u) + F.silu(v) + F.gelu(u) + F.softsign(v) + torch.log1p(u.abs())
        drive = drive + torch.where(u > 0.3, u.clamp(0, 1), v**2) + torch.rsqrt(1.3 + u * u)
        drive = drive + torch.erf(v) + u.abs() ** 1.5 + torch.floor(u) + torch.sign(v) / 3
        h = gate * h + drive
        return h, (h,)

    h0 = torch.ones(40, dtype=torch.float64)
    _, (got,) = ts.scan(step, h0, (x, y))
    _, (want,) = looped(step, h0, (x, y))
    torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)
