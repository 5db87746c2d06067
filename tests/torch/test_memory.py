"""Peak memory of a forward and backward pass: inputs and L / chunk states, never their history.

What torch's allocator hands out is counted by its profiler, inside our operators, too.
"""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from bench.torch_peers import selective, selective_loop, sweeps  # noqa: E402
from tests.support.tiers import paired  # noqa: E402
from tvm_scan.torch.kernels.runtime import ALIGNMENT, aligned_like  # noqa: E402
from tvm_scan.torch.ops.chunked import CHUNK  # noqa: E402

CHANNELS, STATES = 64, 16


def inputs_of(length):
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape):
        return torch.rand(*shape, generator=generator).requires_grad_()

    sequence, projection = (1, CHANNELS, length), (1, STATES, length)
    A = (-torch.rand(CHANNELS, STATES, generator=generator)).requires_grad_()
    shapes = [projection, projection, (CHANNELS,), sequence, (CHANNELS,)]
    return [leaf(*sequence), leaf(*sequence), A, *(leaf(*shape) for shape in shapes)]


def peak_bytes(call):
    """The most that was allocated at once beside what was there before."""
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def peak_of(scan, length):
    leaves = inputs_of(length)
    upstream = torch.ones(1, CHANNELS, length)

    def run():
        torch.autograd.grad(scan(*leaves), leaves, upstream)

    run()  # kernels are built, or loaded
    return peak_bytes(run)


def ours(*tensors):
    return ts.compat.selective_scan_fn(*tensors, delta_softplus=True)


def test_the_profiler_counts():
    found = peak_bytes(lambda: torch.ones(1000) + torch.ones(1000))
    assert 8000 <= found < 16000


def test_memory_grows_with_the_inputs_alone():
    sequence = CHANNELS * 4  # bytes of one step of one input
    short, long = (peak_of(ours, length) for length in (512, 2048))
    grows = (long - short) / (2048 - 512) / sequence
    # u, delta, z and the upstream gradient with time and channels swapped (4), three gradients
    # both ways around (6), the output (1), B, C and theirs, a quarter of a sequence each (2), and
    # the heads of chunks (1/2). The history of the states alone would be 16 sequences.
    assert grows < 14 < STATES, grows
    assert STATES / CHUNK == 0.5
    # What does not grow are the states of one chunk.
    fixed = short - grows * 512 * sequence
    assert fixed < 4 * CHUNK * STATES * CHANNELS * 4


def test_others_need_more():
    """As mamba.py does it; and one step after another, as lean as autograd allows."""
    most = peak_of(ours, 512)
    assert peak_of(selective(sweeps), 512) > 4 * most
    assert peak_of(selective_loop, 512) > 2 * most


def derivative(call, leaves, order):
    """The gradients of a sum of squares, or those of the sum of their squares."""
    grads = torch.autograd.grad(call().square().sum(), leaves, create_graph=order > 1)
    if order > 1:
        total = sum(g.abs().square().sum() for g in grads)
        torch.autograd.grad(total, leaves, allow_unused=True)


def growth(make, order, lengths=(64, 192)):
    """Bytes of peak memory a step."""
    peaks = []
    for length in lengths:
        call, leaves = make(length)
        derivative(call, leaves, order)  # kernels are built, or loaded
        peaks.append(peak_bytes(lambda: derivative(call, leaves, order)))  # noqa: B023
    return (peaks[1] - peaks[0]) / (lengths[1] - lengths[0])


@pytest.mark.parametrize(("kind", "order"), paired(["real", "complex", "fixed"], [1, 2]))
def test_no_derivative_holds_all_states(kind, order):
    """Of a complex `A`, of projections that are fixed in time, and of the second order."""
    channels, states = 32, 64

    def make(length):
        generator = torch.Generator().manual_seed(0)

        def leaf(*shape, sign=1):
            return (sign * torch.rand(*shape, generator=generator)).requires_grad_()

        A = leaf(channels, states, sign=-1)
        if kind == "complex":
            A = torch.complex(A, leaf(channels, states)).detach().requires_grad_()
        shape = {"real": (1, states, length), "complex": (1, states, 2 * length)}
        B, C = (leaf(*shape.get(kind, (channels, states))) for _ in range(2))
        leaves = [leaf(1, channels, length), leaf(1, channels, length), A, B, C]
        return lambda: ts.selective_scan(*leaves, delta_softplus=True), leaves

    history = channels * states * 4 * (2 if kind == "complex" else 1)
    # Inputs, gradients, weights and what the first order left are sequences of channels or of
    # states; the heads of chunks are 4 / CHUNK of the history at most.
    assert growth(make, order) < 0.6 * history


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", ["gla", "ssd", "kda", "rwkv7"])
def test_matrix_states_leave_no_history(name, order):
    features = 64

    def make(length):
        shape = (1, length, 1, features)
        q, k, v = torch.rand(3, *shape).requires_grad_().unbind(0)
        gates = -torch.rand(shape)
        if name == "gla":
            return lambda: ts.gla(q, k, v, gates), [q, k, v]
        if name == "kda":
            return lambda: ts.kda(q, k, v, gates, gates[..., 0])[0], [q, k, v]
        if name == "rwkv7":
            return lambda: ts.rwkv7(q, gates, k, v, -k, k * gates)[0], [q, k, v]
        return lambda: ts.ssd(v, -gates[..., 0], -torch.ones(1), k, q), [q, k, v]

    # Of some forty sequences of features at most, each a 64th of the history.
    assert growth(make, order) < 0.7 * features * features * 4


@pytest.mark.skipif(not Path("/proc/self/smaps").is_file(), reason="Linux tells of its pages")
def test_the_gradient_of_states_is_left_where_that_of_the_last_ones_was():
    """Of a sum over the states after time, which autograd passes as one cell, expanded."""
    tokens = [torch.rand(1, 8, 4, 32, requires_grad=True) for _ in "qkv"]
    gate, rate = -torch.rand(1, 8, 4), torch.rand(1, 8, 4)
    state = torch.rand(1, 4, 32, 32, requires_grad=True)
    options = {"initial_state": state, "output_final_state": True}

    def run():
        _, last = ts.gated_delta_rule(*tokens, gate, rate, **options)
        torch.autograd.grad(last.sum(), (*tokens, state))

    run()
    # The states after time, and one array more; what has tokens is a quarter of one.
    assert peak_bytes(run) < 4 * state.nbytes


def test_a_tensor_like_another_is_allocated_as_kernels_take_it(monkeypatch):
    """Compact and aligned, whatever the other one is, and where torch's own allocator is not."""
    base = torch.ones(2, 3, 40, dtype=torch.float64)
    empty_like = torch.empty_like

    def astray(tensor, **options):
        return empty_like(torch.ones(tensor.numel() + 1, dtype=tensor.dtype))[1:].view(tensor.shape)

    for maker in (empty_like, astray):
        monkeypatch.setattr(torch, "empty_like", maker)
        for other in (base, base.mT, base[:, :, 1:], base[:1].expand(4, 3, 40)):
            found = aligned_like(other)
            assert (found.shape, found.dtype) == (other.shape, other.dtype)
            assert found.is_contiguous() and not found.data_ptr() % ALIGNMENT


def test_large_outputs_ask_for_large_pages():
    """By the operator, by the way of a call alone, and by that of a call that is repeated."""
    x, v = torch.ones(4, 1 << 20), torch.ones(1, 1 << 15, 1, 64)
    rule = (v[..., :1], v[..., :1], v, v[..., 0])
    for call in (
        lambda: ts.cumsum(x, 1),
        *[lambda: ts.delta_rule(*rule)[0]] * 3,
        lambda: ts.linear_recurrence(x, x),
    ):
        y = call()
        inside = y.data_ptr() + (4 << 20)
        for area in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
            start, stop = (int(end, 16) for end in area.split(" ", 1)[0].split("-"))
            if start <= inside < stop:
                assert " hg" in area.split("VmFlags:")[1]
