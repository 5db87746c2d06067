"""`sequence_parallel` on 2 to 4 processes over loopback, against one process with everything."""

import math
import os
import socket
import sys
import time
from subprocess import PIPE

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402
from tests import ROOT  # noqa: E402
from tests.support.forks import Forked  # noqa: E402
from tests.support.tiers import longer  # noqa: E402
from tvm_scan.torch.distributed import sequence_parallel  # noqa: E402

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
SLICES = {2: (3, 8), 3: (5, 0, 8), 4: (5, 1, 0, 7)}
STEPS = "L"
#: Name -> the time axis of inputs and result, shapes with time marked, and the rest.
CASES = {
    "linear_recurrence": (1, {"a": (2, STEPS, 3), "x": (2, STEPS, 3), "h0": (2, 3)}, {"dim": 1}),
    "rglru": (
        1,
        dict.fromkeys(("x", "input_gate", "recurrence_gate"), (2, STEPS, 3))
        | {"decay": (3,), "h0": (2, 3)},
        {},
    ),
    "hgrn": (1, {"x": (2, STEPS, 3), "forget_gate": (2, STEPS, 3), "h0": (2, 3)}, {}),
    "selective_scan": (
        -1,
        dict.fromkeys(("u", "delta", "z"), (2, 4, STEPS))
        | dict.fromkeys("BC", (2, 3, STEPS))
        | {"A": (4, 3), "D": (4,), "delta_bias": (4,), "h0": (2, 4, 3)},
        {"delta_softplus": True},
    ),
    "gla": (1, dict.fromkeys("qkvg", (1, STEPS, 2, 3)) | {"h0": (1, 2, 3, 3)}, {}),
    "rwkv6": (
        1,
        dict.fromkeys("rkvw", (1, STEPS, 2, 3)) | {"u": (2, 3), "h0": (1, 2, 3, 3)},
        {},
    ),
    "ssd": (
        1,
        {"x": (1, STEPS, 2, 3), "dt": (1, STEPS, 2), "A": (2,), "D": (2,), "h0": (1, 2, 3, 4)}
        | dict.fromkeys("BC", (1, STEPS, 1, 4)),
        {"dt_softplus": True},
    ),
    "delta_rule": (
        1,
        dict.fromkeys("qkv", (1, STEPS, 2, 3)) | {"beta": (1, STEPS, 2), "h0": (1, 2, 3, 3)},
        {},
    ),
    "gated_delta_rule": (
        1,
        {"v": (2, STEPS, 2, 4), "q": (2, STEPS, 1, 3), "k": (2, STEPS, 1, 3), "h0": (2, 2, 4, 3)}
        | dict.fromkeys(("g", "beta"), (2, STEPS, 2)),
        {"state_v_first": True, "use_qk_l2norm_in_kernel": True},
    ),
    "kda": (
        1,
        dict.fromkeys("qkvg", (1, STEPS, 2, 3)) | {"beta": (1, STEPS, 2), "h0": (1, 2, 3, 3)},
        {},
    ),
    "rwkv7": (1, dict.fromkeys("rwkvab", (1, STEPS, 2, 3)) | {"h0": (1, 2, 3, 3)}, {}),
    "causal_conv1d": (
        2,
        {"x": (2, 3, STEPS), "weight": (3, 4), "bias": (3,), "h0": (2, 3, 3)},
        {"activation": "silu"},
    ),
    "cumsum": (1, {"x": (2, STEPS, 3)}, {"dim": 1}),
    "cumprod": (1, {"x": (2, STEPS, 3)}, {"dim": -2}),
    "cummax": (1, {"x": (2, STEPS, 3)}, {"dim": 1}),
    "cummin": (1, {"x": (2, STEPS, 3)}, {"dim": 1}),
    "logcumsumexp": (1, {"x": (2, STEPS, 3)}, {"dim": 1}),
}
NEGATIVE = ("A", "g", "w")
BOTH = [False, True]
#: Without `reverse`, and with other names for the states.
FORWARD = ("delta_rule", "gated_delta_rule", "kda", "rwkv7", "causal_conv1d")
#: Of functions that pass on what others do one direction: what differs is not theirs.
REVERSE = {"rglru": [True], "hgrn": [False], "gla": [False], "rwkv6": [True], "ssd": [True]}
CUMULATIVE = {"cumsum": [False], "cumprod": [True], "cummax": [True], "cummin": [False]}
CUMULATIVE |= {"logcumsumexp": [True], "selective_scan": [False]}
REVERSE |= longer(CUMULATIVE, {})
REVERSE |= {key: [False] for key in FORWARD}
RESETS = {"linear_recurrence": (1, STEPS, 1), "rglru": (2, STEPS), "selective_scan": (2, STEPS)}
RESETS["ssd"] = (1, STEPS)


def problem(name, length, reverse):
    """Tensors that vary in time, others, options with a reset, and how to cut time."""
    generator = torch.Generator().manual_seed(0)
    dim, shapes, options = CASES[name]

    def rand(shape):
        sizes = [length if n is STEPS else n for n in shape]
        return torch.rand(sizes, dtype=torch.float64, generator=generator)

    def made(key, shape):
        if name in ("cummax", "cummin"):
            return rand(shape).mul(4).round()  # so that values are equal, within slices and across
        return -rand(shape) if key in NEGATIVE else rand(shape)

    tensors = {key: made(key, shape) for key, shape in shapes.items()}
    timed = {key for key, shape in shapes.items() if STEPS in shape}
    options = {**options, "reverse": reverse}
    if name in RESETS:
        options["reset"] = rand(RESETS[name]) < 0.1
        # A NaN between two resets stays between them, whosever steps those are.
        options["reset"][:, [4, 9]] = True
        for key in timed:
            tensors[key].select(dim, 5).fill_(math.nan)
    if name in ("linear_recurrence", "cumsum", "cumprod"):
        options["exclusive"] = reverse
    weight = rand(next(shape for shape in shapes.values() if STEPS in shape))
    return dim, tensors, timed, options, weight


def by_its_names(name, call):
    """The function with the arguments `h0`, `return_last` and `reverse` that others have."""
    if name not in FORWARD:
        return call
    last = "return_last" if name == "causal_conv1d" else "output_final_state"

    def run(h0, return_last, reverse, **options):
        assert not reverse
        return call(**options, initial_state=h0, **{last: return_last})

    return run


def cut(tensor, dim, mine):
    return tensor.movedim(dim, 0)[mine].movedim(0, dim)


def solve(call, name, length, reverse, mine=slice(None)):
    """What varies in time: results and gradients; the other gradients; the last state."""
    dim, tensors, timed, options, weight = problem(name, length, reverse)
    leaves = {
        key: (cut(t, dim, mine) if key in timed else t).clone().requires_grad_()
        for key, t in tensors.items()
    }
    if "reset" in options:
        options["reset"] = cut(options["reset"], 1, mine)
    ends = "h0" in tensors
    found = by_its_names(name, call)(**leaves, **options, **({"return_last": True} if ends else {}))
    out, *rest = found if isinstance(found, tuple) else (found,)
    out = out if isinstance(out, torch.Tensor) else out.values
    weight = cut(weight, dim, mine)
    total = (out * weight.expand(out.shape)).sum()
    grads = torch.autograd.grad(total, list(leaves.values()))
    grads = dict(zip(leaves, grads, strict=True))
    indices = [] if ends else [r for r in rest if not r.is_floating_point()]
    in_time = [out.detach(), *indices, *(grads[key] for key in leaves if key in timed)]
    return in_time, [grads[k] for k in leaves if k not in timed], rest[0] if ends else None


def _group(rank, size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)


def _work(rank, lengths, port, results):
    _group(rank, len(lengths), port)
    mine = slice(sum(lengths[:rank]), sum(lengths[: rank + 1]))
    found = {}
    for name in CASES:
        call = sequence_parallel(getattr(ts, name), timeout=100)
        for reverse in REVERSE.get(name, BOTH):
            found[name, reverse] = solve(call, name, sum(lengths), reverse, mine)
    start, stop = ((0, 300), (300, 400), (400, 400), (400, 400))[rank]
    a, x = (t[:, start:stop] for t in half_problem())
    found["halves"] = sequence_parallel(ts.linear_recurrence)(a, x, dim=1)
    u, A = torch.rand(1, 2, 4), torch.rand(2, 3)
    by_other_name = sequence_parallel(ts.compat.selective_scan_fn)(
        u, u, -A, A, A, None, None, None, True
    )
    found["fn"] = sequence_parallel(ts.selective_scan)(u, u, -A, A, A, delta_softplus=True)
    found["fn"] = torch.equal(by_other_name, found["fn"])
    torch.save(found, f"{results}/{rank}.pt")
    dist.destroy_process_group()


def in_processes(name, count, *arguments):
    """Call a function of this module with each rank, in a process for each."""
    code = f"import sys\nfrom {__name__} import {name}\n{name}(int(sys.argv[1]), *{arguments!r})"
    started = [
        Forked(
            [sys.executable, "-c", code, str(rank)], torch=True, cwd=ROOT, stderr=PIPE, text=True
        )
        for rank in range(count)
    ]
    try:
        for process in started:
            _, error = process.communicate(timeout=300)
            assert process.returncode == 0, error
    finally:
        for process in started:
            process.kill()
            process.communicate()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module", params=longer([3], [2, 3, 4]))
def parts(request, tmp_path_factory):
    """What the processes found, one after another."""
    folder, lengths = tmp_path_factory.mktemp("parts"), SLICES[request.param]
    for name in CASES:  # kernels are built here, once, and found by the processes
        for reverse in REVERSE.get(name, BOTH):
            solve(getattr(ts, name), name, sum(lengths), reverse)
    in_processes("_work", len(lengths), lengths, free_port(), str(folder))
    return lengths, [torch.load(folder / f"{rank}.pt") for rank in range(len(lengths))]


@pytest.mark.parametrize("name", CASES)
def test_slices_of_unequal_length(name, parts):
    lengths, found = parts
    dim = CASES[name][0]
    for reverse in REVERSE.get(name, BOTH):
        sliced, summed, last = solve(getattr(ts, name), name, sum(lengths), reverse)
        got = [part[name, reverse] for part in found]
        for index, wanted in enumerate(sliced):
            pair = torch.cat([g[0][index] for g in got], dim), wanted
            if name in RESETS:
                steps = torch.tensor([0, 1, 2, 3, *range(10, sum(lengths))])
                pair = [t.index_select(dim, steps) for t in pair]
                assert pair[1].isfinite().all()
            torch.testing.assert_close(*pair)
        for index, wanted in enumerate(summed):
            torch.testing.assert_close(sum(g[1][index] for g in got), wanted, equal_nan=True)
        if last is not None:
            torch.testing.assert_close(got[0 if reverse else -1][2], last)


def test_halves(parts):
    """The gates of a slice are multiplied in float32: 8 bits would round 300 times."""
    _, found = parts
    assert all(part["fn"] for part in found)
    got = torch.cat([part["halves"] for part in found], 1)
    want = ts.linear_recurrence(*half_problem(), dim=1)
    # The state between the slices is rounded once, and the results once.
    torch.testing.assert_close(got, want, rtol=3 * 2**-8, atol=0)


def half_problem():
    generator = torch.Generator().manual_seed(0)
    gates = 1 - 0.004 * torch.rand(2, 400, 3, generator=generator)
    return gates.bfloat16(), torch.rand(2, 400, 3, generator=generator).bfloat16()


def _lose(rank, port, results):
    """Process 1 is late once, and then gone."""
    _group(rank, 2, port)
    x = torch.ones(2, 3)
    if rank == 1:
        sequence_parallel(ts.linear_recurrence)(x, x)
        time.sleep(2.5)
        os._exit(0)
    said = []
    sequence_parallel(ts.linear_recurrence)(x, x)
    for timeout in (1.0, None):
        start = time.monotonic()
        try:
            sequence_parallel(ts.linear_recurrence, timeout=timeout)(x, x)
        except RuntimeError as error:
            said.append((str(error), time.monotonic() - start))
    torch.save(said, f"{results}/said.pt")
    os._exit(0)


def test_a_lost_process_is_an_error(tmp_path):
    in_processes("_lose", 2, free_port(), str(tmp_path))
    said = torch.load(tmp_path / "said.pt")
    assert len(said) == 2
    for text, seconds in said:
        assert "expected all 2 processes of the group to take part" in text
        assert seconds < 30


def test_what_it_is_not_for():
    with pytest.raises(ValueError, match="expected a process group, got none"):
        sequence_parallel(ts.cumsum)
    with pytest.raises(
        ValueError, match=r"expected one of causal_conv1d, .*, ssd, got lfilter; a rec"
    ):
        sequence_parallel(ts.lfilter)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        x, bad = torch.rand(1, 4, 2), torch.zeros(3)
        with pytest.raises(ValueError, match=r"h0 that broadcasts to \(1, 2\), got \(3,\)"):
            sequence_parallel(ts.hgrn)(x, x, bad)
        A, offsets = -torch.rand(4, 3), torch.tensor([0, 2])
        with pytest.raises(ValueError, match="expected no cu_seqlens, got some; mark the first"):
            sequence_parallel(ts.selective_scan)(x, x, A, A, A, cu_seqlens=offsets)
    finally:
        dist.destroy_process_group()
