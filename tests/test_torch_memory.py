"""Peak memory of a forward and backward pass: inputs and L / chunk states, never their history.

What torch's allocator hands out is counted by its profiler, inside our operators, too.
"""

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from bench.torch_peers import selective, selective_loop, sweeps  # noqa: E402
from tvm_scan.torch.selective import CHUNK  # noqa: E402

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
    return ts.selective_scan_fn(*tensors, delta_softplus=True)


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


@pytest.mark.parametrize("name", ["gla", "ssd"])
def test_matrix_states_leave_no_history(name):
    features = 16

    def peak(length):
        shape = (1, length, 1, features)
        q, k, v = torch.rand(3, *shape).requires_grad_().unbind(0)
        gates = -torch.rand(shape)
        if name == "gla":
            call = lambda: ts.gla(q, k, v, gates)  # noqa: E731
        else:
            call = lambda: ts.ssd(v, -gates[..., 0], -torch.ones(1), k, q)  # noqa: E731

        def run():
            torch.autograd.grad(call().sum(), [q, k, v])

        run()
        return peak_bytes(run)

    grows = (peak(1024) - peak(256)) / (1024 - 256)
    history = features * features * 4
    assert grows < 1.5 * history  # of some twenty sequences of features, each a 16th of it
