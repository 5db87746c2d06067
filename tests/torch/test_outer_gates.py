"""The gradient of the gates of matrix states: its values, and how many digits it has."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.torch.test_gated import matrix_loop  # noqa: E402
from tvm_scan.torch.ops.outer_gates import _by_products, gate_gradient  # noqa: E402

GATES, EMITS = ("head", "state", "lane"), ("inclusive", "exclusive", "late")


def draw(gate, length, scale, lanes=3, states=4, dtype=torch.float64):
    """g, a, x, c, dy, h0 and d_last; gates are between exp(-scale) and 1."""
    generator, batch, heads = torch.Generator().manual_seed(0), 2, 2

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    last = {"head": (), "state": (states,), "lane": (lanes,)}[gate]
    g = -scale * torch.rand((batch, length, heads, *last), generator=generator).double()
    a, c = normal(2, batch, length, heads, states)
    x, dy = normal(2, batch, length, heads, lanes)
    h0, d_last = normal(2, batch, heads, lanes, states)
    return [t.to(dtype) for t in (g, a, x, c, dy, h0, d_last)]


def loop(g, a, x, c, dy, h0, d_last, reset, gate, emit, reverse):
    """By the definition: what the state before a gate, times it, does through what is after it."""
    steps = range(g.shape[1])[:: -1 if reverse else 1]
    lift = {"head": (..., None, None), "state": (..., None, slice(None)), "lane": (..., None)}[gate]
    added = x.unsqueeze(4) * a.unsqueeze(3)
    asked = dy.unsqueeze(4) * c.unsqueeze(3)

    def decayed(t, state):
        state = g[:, t].exp()[lift] * state
        return state if reset is None else state.masked_fill(reset[:, t, None, None, None] > 0, 0)

    before, state = {}, h0
    for t in steps:
        state = state + added[:, t] if emit == "late" else state
        before[t] = state
        state = decayed(t, state)
        state = state if emit == "late" else state + added[:, t]
    found, adjoint = torch.zeros_like(g), d_last
    axes = {"head": (2, 3), "state": (2,), "lane": (3,)}[gate]
    for t in steps[::-1]:
        adjoint = adjoint + asked[:, t] if emit == "inclusive" else adjoint
        adjoint = decayed(t, adjoint)
        found[:, t] = (adjoint * before[t]).sum(axes)
        adjoint = adjoint if emit == "inclusive" else adjoint + asked[:, t]
    return found


def by_products(*given):
    """As it is done on a GPU, where lanes and states are swapped before."""
    *tensors, reset, gate, emit, reverse = given
    if gate == "lane":
        g, a, x, c, dy, h0, d_last = tensors
        tensors, gate = [g, x, a, dy, c, h0.mT, d_last.mT], "state"
    return _by_products((*tensors, reset, gate, emit, reverse))


WAYS = pytest.mark.parametrize("way", [gate_gradient, by_products], ids=["kernel", "products"])


@WAYS
@pytest.mark.parametrize("gate", GATES)
def test_values(gate, way):
    """Chunks of 16 steps: none whole, one whole, one and a bit. Lanes likewise."""
    # Where lanes and states are swapped the kernels are those of "state".
    emits = EMITS if gate != "lane" else ("late",)
    for emit, reverse, length in itertools.product(emits, (False, True), (1, 16, 35)):
        resets = reverse
        given = draw(gate, length, 3.0, lanes=19 if gate == "state" else 3)
        reset = None
        if resets:
            reset = (torch.rand(2, length, generator=torch.Generator().manual_seed(1)) < 0.2).char()
        rest = (reset, gate, emit, reverse)
        torch.testing.assert_close(way(*given, *rest), loop(*given, *rest))


@WAYS
@pytest.mark.parametrize("scale", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("gate", ["head", "state"])
def test_digits(gate, scale, way):
    """In float32 as many as a loop has that keeps every state, also of the sum over time.

    The sum is where errors that are alike from step to step show: in a model it is the gradient
    of a parameter.
    """
    rest = (None, gate, "inclusive", False)
    exact = loop(*draw(gate, 1000, scale), *rest)
    given = draw(gate, 1000, scale, dtype=torch.float32)
    errors = []
    for found in (way(*given, *rest), loop(*given, *rest)):
        error = found.double() - exact
        errors.append((float(error.abs().max()), float(error.sum(1).abs().max())))
    (each, total), (least, least_total) = errors
    assert each < 4 * least
    assert total < 8 * least_total


@pytest.mark.parametrize("name", ["gla", "rwkv6", "ssd"])
def test_digits_of_a_parameter(name):
    """Of decays that a model learns, through a long sequence; beside the equation in float64."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, weights = torch.randn(4, 1, 1500, 2, 8, generator=generator)
    steps = 3 * torch.rand(1, 1500, 2, 1, generator=generator)
    rate = torch.rand(2 if name == "ssd" else (2, 8), generator=generator)

    def ours(q, k, v, steps, rate):
        if name == "ssd":
            return ts.ssd(v, steps[..., 0], -rate, k, q)
        if name == "gla":
            return ts.gla(q, k, v, -rate * steps, scale=1.0)
        return ts.rwkv6(q, k, v, -rate * steps, torch.zeros(2, 8))

    def equation(q, k, v, steps, rate):
        if name == "ssd":
            v, rate = v * steps, rate.unsqueeze(1).expand(2, 8)
        bonus = torch.zeros(2, 8, dtype=q.dtype) if name == "rwkv6" else None
        return matrix_loop(q, k, v, -rate * steps, q.new_zeros(1, 2, 8, 8), bonus)[0]

    def gradient(call, dtype):
        *given, weight, leaf = (t.to(dtype) for t in (q, k, v, steps, weights, rate))
        y = call(*given, leaf.requires_grad_())
        return torch.autograd.grad((y * weight).sum(), leaf)[0].double()

    exact = gradient(equation, torch.float64)
    error = gradient(ours, torch.float32) - exact
    assert float(error.abs().max() / exact.abs().max()) < 4e-6


def test_a_good_citizen():
    rest = (None, "lane", "late", True)
    operator = torch.ops.tvm_scan.gate_gradient.default
    torch.library.opcheck(operator, (*draw("lane", 20, 1.0), *rest))
    rows = [torch.stack([t, 2 * t]) for t in draw("lane", 20, 1.0)]
    got = torch.func.vmap(lambda *given: gate_gradient(*given, *rest))(*rows)
    want = torch.stack([gate_gradient(*given, *rest) for given in zip(*rows, strict=True)])
    torch.testing.assert_close(got, want)


def test_a_first_derivative_of_a_graph_has_the_same_digits():
    """Where a second derivative is recorded, the first is not another one."""
    q, k, v = torch.randn(3, 1, 100, 1, 4, generator=torch.Generator().manual_seed(0)).unbind(0)
    g = (-8 * torch.rand(1, 100, 1, 4)).requires_grad_()
    runs = [
        torch.autograd.grad(ts.gla(q, k, v, g).sum(), g, create_graph=recorded)[0]
        for recorded in (False, True)
    ]
    assert torch.equal(*runs)
