"""Every function on a GPU: built for it, launched there, with scratch that torch allocates.

torch sees no GPU here. The seam is in one file: what says where a tensor lies, and what runs a
kernel there. CPU tensors are said to lie on a GPU, and the kernel that is then chosen and built
runs on copies of them on the simulated CUDA device.
"""

import pytest

torch = pytest.importorskip("torch")

import tvm  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402
from tests.support import cusim  # noqa: E402
from tests.torch.oracles import linear_loop, selective_loop  # noqa: E402
from tests.torch.test_delta import call, inputs_of, reference  # noqa: E402
from tvm_scan.torch.kernels import cache as kernels  # noqa: E402
from tvm_scan.torch.kernels import devices  # noqa: E402

GPU = devices.gpu_device("sm_90")


def to_device(value):
    if not isinstance(value, torch.Tensor):
        return value
    copy = tvm.runtime.empty(tuple(value.shape), str(value.dtype)[6:], tvm.cuda(0))
    return copy.copyfrom(tvm.runtime.from_dlpack(value))


@pytest.fixture
def launches(monkeypatch):
    """Let CPU tensors be those of a GPU; the number of arguments of every launch."""
    if not cusim.is_simulated():
        pytest.skip("expected the simulated device, which CPU tensors are copied to")
    found = []

    def run_at(device, call, arguments):
        assert device is GPU
        found.append(len(arguments))
        copies = [to_device(argument) for argument in arguments]
        call(*copies)
        for argument, copy in zip(arguments, copies, strict=True):
            if isinstance(argument, torch.Tensor):
                # .data: inputs come back as they were, and count as unchanged.
                argument.data.copy_(torch.from_dlpack(copy.copyto(tvm.cpu())))

    monkeypatch.setattr(devices, "device_of", lambda tensor: GPU)
    monkeypatch.setattr(devices, "run_at", run_at)
    return found


def leaves(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]


def agrees(function, reference, inputs, tolerance=1e-4):
    got, want = function(*inputs), reference(*inputs)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    upstream = torch.rand(want.shape, generator=torch.Generator().manual_seed(1), dtype=want.dtype)
    torch.testing.assert_close(
        torch.autograd.grad(got, inputs, upstream),
        torch.autograd.grad(want, inputs, upstream),
        rtol=tolerance,
        atol=tolerance,
    )


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp", "cummax"])
def test_cumulative(launches, name):
    def pick(out):
        return out.values if name == "cummax" else out

    agrees(
        lambda x: pick(getattr(ts, name)(x, 1)),
        lambda x: pick(getattr(torch, name)(x, 1)),
        leaves((3, 70)),
    )
    assert launches


@pytest.mark.parametrize("shape", [(3, 70), (2, 40, 3)])
def test_linear_recurrence(launches, shape):
    agrees(
        lambda a, x: ts.linear_recurrence(a, x, dim=1),
        lambda a, x: linear_loop(a.movedim(1, -1), x.movedim(1, -1))[0].movedim(-1, 1),
        leaves(shape, shape),
    )


def test_scratch_is_given(launches, monkeypatch):
    """A plan in three launches keeps its tiles in tensors that torch allocated."""
    plan = "cuda/three_phase(threads_per_block=32, items_per_thread=4, block_tree=warp)"
    monkeypatch.setattr(kernels, "_plan_text", lambda spec, bits, device: plan)
    monkeypatch.setattr(kernels, "_calls", {})
    x = torch.rand(3, 1000, generator=torch.Generator().manual_seed(0))
    for length in (1000, 129):  # one library, scratch by the length
        part = x[:, :length].contiguous()
        torch.testing.assert_close(ts.cumsum(part, 1), part.cumsum(1), rtol=1e-4, atol=1e-4)
    assert launches == [2 + 2] * 2
    built = next(iter(kernels._calls.values()))
    assert [t.shape for t in built.scratch((1, 3, 1000), x.device)] == [(3, 8)] * 2


def test_selective_scan(launches):
    B, G, D, L, N = 2, 1, 32, 40, 4
    shapes = [(B, D, L), (B, D, L), (D, N), (B, G, N, L), (B, G, N, L), (D,), (B, D, L), (D,)]
    inputs = leaves(*shapes)
    with torch.no_grad():
        inputs[2].neg_()
    agrees(
        lambda *t: ts.selective_scan(*t, delta_softplus=True),
        lambda u, dt, A, B, C, D, z, b: selective_loop(u, dt, A, B, C, D, z, b, softplus=True)[0],
        inputs,
    )
    backward = ts.selective_scan(*inputs, delta_softplus=True, reverse=True)
    want = ts.selective_scan(
        *(t.flip(-1) if t.dim() > 2 else t for t in inputs), delta_softplus=True
    ).flip(-1)
    torch.testing.assert_close(backward, want)
    torch.testing.assert_close(
        torch.autograd.grad(backward.sum(), inputs),
        torch.autograd.grad(want.sum(), inputs),
        rtol=1e-4,
        atol=1e-4,
    )


def test_matrix_states(launches):
    q, k, v, g = leaves((1, 20, 2, 3), (1, 20, 2, 3), (1, 20, 2, 4), (1, 20, 2, 3))
    with torch.no_grad():
        g.neg_()

    def loop(q, k, v, g):
        state, out = torch.zeros(1, 2, 3, 4), []
        for t in range(20):
            state = g[:, t].exp()[..., None] * state + k[:, t, :, :, None] * v[:, t, :, None]
            out.append((state * q[:, t, :, :, None]).sum(2))
        return torch.stack(out, 1)

    agrees(lambda *t: ts.gla(*t, scale=1.0), loop, (q, k, v, g))


@pytest.mark.parametrize("name", ["gated_delta_rule", "rwkv7"])
def test_delta_rules(launches, name):
    """In chunks, and a thread for each column; then the sequences of a row one by one."""
    given, state = inputs_of(name, 20, batch=1, heads=2)
    inputs = [t.float().requires_grad_() for t in (*given.values(), state)]

    def run(function, *tensors, **options):
        *timed, first = tensors
        named = dict(zip(given, timed, strict=True))
        return function(name, named, first, **options)[0]

    agrees(lambda *t: run(call, *t), lambda *t: run(reference, *t), inputs)
    assert launches
    inputs[-1] = torch.cat([inputs[-1]] * 3).detach().requires_grad_()
    ends = torch.tensor([0, 8, 8, 20])

    def apart(*tensors):
        *timed, first = tensors
        parts = [(0, slice(0, 8)), (2, slice(8, 20))]
        rows = [run(reference, *(t[:, s] for t in timed), first[n : n + 1]) for n, s in parts]
        return torch.cat(rows, 1)

    agrees(lambda *t: run(call, *t, cu_seqlens=ends), apart, inputs)


def test_associative_scan_and_scan(launches):
    (a, x) = leaves((30, 4), (30, 4))
    pair = lambda p, q: (q[0] * p[0], q[0] * p[1] + q[1])  # noqa: E731
    want = lambda a, x: linear_loop(a.T, x.T)[0].T  # noqa: E731
    agrees(lambda a, x: ts.associative_scan(pair, (a, x))[1], want, (a, x))
    step = lambda c, ax: (ax[0] * c + ax[1],) * 2  # noqa: E731
    agrees(lambda a, x: ts.scan(step, torch.zeros(4), (a, x))[1], want, (a, x))


def test_lfilter(launches):
    x, b = leaves((2, 50), (2,))
    a = torch.tensor([1.0, -0.5])

    def want(x, b):
        before = torch.nn.functional.pad(x[:, :-1], (1, 0))
        return linear_loop(torch.full_like(x, 0.5), b[0] * x + b[1] * before)[0]

    agrees(lambda x, b: ts.lfilter(x, a, b, clamp=False), want, (x, b))


def test_a_loop_of_your_own(launches):
    from tests.support.cuda_harness import CUDA_TARGET
    from tvm_scan import ScanPlan, library
    from tvm_scan.schedules.machine.device import DEVICES

    plan = "cuda/three_phase(threads_per_block=32, items_per_thread=4, block_tree=warp)"
    scan = ts.compile_primfunc(
        library.linear_recurrence(None, None), CUDA_TARGET, ScanPlan.parse(plan)
    )
    scan._signature.device = DEVICES["llvm"]  # where these tensors say that they are
    a, x = torch.rand(2, 3, 500, generator=torch.Generator().manual_seed(0)).unbind(0)
    torch.testing.assert_close(scan(a, x), linear_loop(a, x)[0], rtol=1e-4, atol=1e-4)
    assert launches == [3 + 3]
