"""RG-LRU, HGRN, gated linear attention and RWKV-6 against their equations, step after step."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402
from tests.support.derivatives import check_derivatives  # noqa: E402
from tvm_scan.torch.ops.outer import outer_scan  # noqa: E402


def draw(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    ]


def steps(length, reverse):
    return range(length)[:: -1 if reverse else 1]


def rglru_loop(x, i, r, decay, h, reset=None, reverse=False, scale=8.0):
    out = [None] * x.shape[1]
    for t in steps(x.shape[1], reverse):
        log_a = -scale * F.softplus(decay) * r[:, t].sigmoid()
        gated = i[:, t].sigmoid() * x[:, t]
        new = log_a.exp() * h + (1 - log_a.exp() ** 2).sqrt() * gated
        h = new if reset is None else torch.where(reset[:, t, None], gated, new)
        out[t] = h
    return torch.stack(out, 1), h


def hgrn_loop(x, f, h, bound, reverse=False):
    out = [None] * x.shape[1]
    for t in steps(x.shape[1], reverse):
        forget = bound + (1 - bound) * f[:, t].sigmoid()
        h = forget * h + (1 - forget) * x[:, t]
        out[t] = h
    return torch.stack(out, 1), h


def matrix_loop(q, k, v, g, S, u=None, reverse=False):
    out = [None] * q.shape[1]
    for t in steps(q.shape[1], reverse):
        added = k[:, t, :, :, None] * v[:, t, :, None, :]
        new = g[:, t].exp()[..., None] * S + added
        read = new if u is None else S + u[..., None] * added
        out[t] = (read * q[:, t, :, :, None]).sum(2)
        S = new
    return torch.stack(out, 1), S


def matrix_inputs(length=5, dtype=torch.float64):
    q, k, v, g, h0, u = draw(
        *[(2, length, 2, 3)] * 2,
        (2, length, 2, 4),
        (2, length, 2, 3),
        (2, 2, 3, 4),
        (2, 3),
        dtype=dtype,
    )
    return q, k, v, (-g.detach().abs()).requires_grad_(), h0, u


@pytest.mark.parametrize("reverse", [False, True])
def test_rglru(reverse):
    arguments = draw(*[(2, 7, 3)] * 3, (3,), (2, 3))

    def call(*tensors):
        return ts.rglru(*tensors, reverse=reverse, return_last=True)

    for got, want in zip(call(*arguments), rglru_loop(*arguments, reverse=reverse), strict=True):
        torch.testing.assert_close(got, want)
    check_derivatives(call, arguments)


def test_rglru_resets():
    arguments = draw(*[(2, 7, 3)] * 3, (3,), (2, 3))
    reset = torch.zeros(2, 7, dtype=torch.bool)
    reset[0, 0] = reset[1, 4] = True
    want, _ = rglru_loop(*arguments, reset)
    torch.testing.assert_close(ts.rglru(*arguments, reset=reset), want)
    # A gate that is 1 to the last bit: no gradient is infinite.
    x, i, r, decay, _ = draw(*[(1, 3, 2)] * 3, (2,), (1, 2), dtype=torch.float32)
    ts.rglru(x, i, r - 200, decay).sum().backward()
    assert all(bool(t.grad.isfinite().all()) for t in (x, i, r, decay))


@pytest.mark.parametrize("reverse", [False, True])
def test_hgrn(reverse):
    x, f, h0 = draw(*[(2, 7, 3)] * 2, (2, 3))
    bound = torch.tensor([0.0, 0.3, 0.9], dtype=torch.float64, requires_grad=True)

    def call(x, f, h0, bound):
        return ts.hgrn(x, f, h0, lower_bound=bound, reverse=reverse, return_last=True)

    arguments = (x, f, h0, bound)
    for got, want in zip(call(*arguments), hgrn_loop(*arguments, reverse), strict=True):
        torch.testing.assert_close(got, want)
    check_derivatives(call, arguments)


@pytest.mark.parametrize("reverse", [False, True])
def test_gla(reverse):
    q, k, v, g, h0, _ = matrix_inputs()

    def call(*tensors):
        return ts.gla(*tensors, scale=0.5, reverse=reverse, return_last=True)

    want = matrix_loop(0.5 * q, k, v, g, h0, reverse=reverse)
    for got, expected in zip(call(q, k, v, g, h0), want, strict=True):
        torch.testing.assert_close(got, expected)
    check_derivatives(call, (q, k, v, g, h0))


@pytest.mark.parametrize("reverse", [False, True])
def test_rwkv6(reverse):
    r, k, v, w, h0, u = matrix_inputs()

    def call(*tensors):
        return ts.rwkv6(*tensors, reverse=reverse, return_last=True)

    want = matrix_loop(r, k, v, w, h0, u, reverse)
    for got, expected in zip(call(r, k, v, w, u, h0), want, strict=True):
        torch.testing.assert_close(got, expected)
    check_derivatives(call, (r, k, v, w, u, h0))


@pytest.mark.parametrize("gate", ["state", "lane"])
def test_the_late_form_which_only_derivatives_use(gate):
    g, a, x, c, h0 = draw((1, 4, 2, 2 if gate == "state" else 3), *_outer_shapes())

    def call(*tensors):
        return outer_scan(*tensors, None, gate, "late", False)

    check_derivatives(call, (g, a, x, c, h0))


def _outer_shapes():
    return (1, 4, 2, 2), (1, 4, 2, 3), (1, 4, 2, 2), (1, 2, 3, 2)


def test_gates_of_zero_cut_the_state_off():
    """exp(-inf): what is before the cut has no gradient from after it, and none is NaN."""
    q, k, v, g, _, _ = matrix_inputs(9)
    g = g.detach()
    g[:, 4] = -float("inf")
    got = ts.gla(q, k, v, g.requires_grad_())
    torch.testing.assert_close(got[:, 4:], ts.gla(*(t[:, 4:] for t in (q, k, v, g))))
    found = torch.autograd.grad(got[:, 4:].sum(), (k, v, g))
    for grad in found[:2]:
        assert not grad[:, :4].any()
    torch.testing.assert_close(found[2][:, :5], torch.zeros_like(found[2][:, :5]))


@pytest.mark.parametrize("length", [0, 1, 300])
def test_lengths_and_halves(length):
    q, k, v, g, h0, _ = matrix_inputs(length)
    if length:
        want, _ = matrix_loop(q, k, v, g, h0)
        torch.testing.assert_close(ts.gla(q, k, v, g, h0, scale=1.0), want)
    half = [t.detach().to(torch.bfloat16) for t in (q, k, v, g)]
    got, last = ts.gla(*half, return_last=True)
    assert got.dtype == torch.bfloat16
    assert got.shape == v.shape
    assert last.dtype == torch.float32
    if length:
        want, _ = ts.gla(*(t.float() for t in half), return_last=True)
        assert torch.equal(got, want.to(torch.bfloat16))


def test_a_good_citizen():
    g, a, x, c, h0 = draw((1, 4, 2, 2), *_outer_shapes(), dtype=torch.float32)
    operator = torch.ops.tvm_scan.outer_scan.default
    torch.library.opcheck(operator, (g, a, x, c, h0, None, "state", "inclusive", False))
    q, k, v, w, _, u = (t.detach() for t in matrix_inputs())
    rows = torch.func.vmap(lambda *t: ts.rwkv6(*(s.unsqueeze(0) for s in t), u).squeeze(0))
    torch.testing.assert_close(rows(q, k, v, w), ts.rwkv6(q, k, v, w, u))


def test_bad_calls():
    q, k, v, g, h0, u = (t.detach() for t in matrix_inputs())
    with pytest.raises(ValueError, match=r"expected k of shape \(2, 5, 2, 3\), got"):
        ts.gla(q, k[..., :2], v, g)
    with pytest.raises(ValueError, match=r"expected h0 of shape \(2, 2, 3, 4\), got"):
        ts.gla(q, k, v, g, h0.mT)
    with pytest.raises(ValueError, match="expected v with 4 axes"):
        ts.rwkv6(q, k, v[0], g, u)
    with pytest.raises(ValueError, match="expected floats in w"):
        ts.rwkv6(q, k, v, g.long(), u)
    x = torch.rand(2, 5, 3)
    with pytest.raises(ValueError, match=r"expected decay of shape \(3,\), got"):
        ts.rglru(x, x, x, torch.rand(4))
    with pytest.raises(ValueError, match="a bool reset"):
        ts.rglru(x, x, x, torch.rand(3), reset=torch.zeros(2, 5))
    with pytest.raises(ValueError, match="expected forget_gate to be a tensor"):
        ts.hgrn(x, 0.5)
