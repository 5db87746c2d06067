"""`sequence_parallel` on 2 and 4 processes over loopback, against one process with everything."""

import os
import socket
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402
from tvm_scan.torch.distributed import (  # noqa: E402
    sequence_parallel,
    sequence_parallel_selective_scan,
)

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
SLICES = {2: (3, 8), 4: (5, 1, 0, 7)}


def problem(length):
    generator = torch.Generator().manual_seed(0)
    a, x = torch.rand(2, 2, length, 3, dtype=torch.float64, generator=generator).unbind(0)
    h0 = torch.rand(2, 3, dtype=torch.float64, generator=generator)
    weight = torch.rand(2, length, 3, dtype=torch.float64, generator=generator)
    reset = torch.rand(length, 1, generator=generator) < 0.2
    return a, x, h0, weight, reset


def selective_problem(length):
    """What varies in time (along its last axis), what does not, and the weights of a loss."""
    generator = torch.Generator().manual_seed(1)

    def rand(*shape):
        return torch.rand(*shape, dtype=torch.float64, generator=generator)

    u, delta, z = rand(3, 2, 4, length).unbind(0)
    B, C = rand(2, 2, 3, length).unbind(0)
    timed = {"u": u, "delta": delta, "B": B, "C": C, "z": z}
    fixed = {"A": -rand(4, 3), "D": rand(4), "delta_bias": rand(4), "h0": rand(2, 4, 3)}
    return timed, fixed, rand(2, 4, length), rand(2, length) < 0.2


def _selective(scan, timed, fixed, weight, reset, reverse, **options):
    """Output, gradients of what varies in time, and gradients of the rest."""
    timed = {n: t.clone().requires_grad_() for n, t in timed.items()}
    fixed = {n: t.clone().requires_grad_() for n, t in fixed.items()}
    named = {**timed, **fixed, "reset": reset, "reverse": reverse}
    out = scan(**named, delta_softplus=True, **options)
    (out * weight).sum().backward()
    return [out.detach(), *(t.grad for t in timed.values())], [t.grad for t in fixed.values()]


def _group(rank, size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)


def _work(rank, lengths, port, results):
    _group(rank, len(lengths), port)
    found = {}
    mine = slice(sum(lengths[:rank]), sum(lengths[: rank + 1]))
    for reverse in (False, True):
        a, x, h0, weight, reset = problem(sum(lengths))
        leaves = [t.clone().requires_grad_() for t in (a[:, mine], x[:, mine], h0)]
        h = sequence_parallel(*leaves, dim=1, reverse=reverse, exclusive=reverse, reset=reset[mine])
        (h * weight[:, mine]).sum().backward()
        found[reverse] = [h.detach(), *(t.grad for t in leaves)]
        timed, fixed, weight, reset = selective_problem(sum(lengths))
        found["selective", reverse] = _selective(
            sequence_parallel_selective_scan,
            {n: t[..., mine] for n, t in timed.items()},
            fixed,
            weight[..., mine],
            reset[:, mine],
            reverse,
            timeout=60,
        )
    torch.save(found, f"{results}/{rank}.pt")
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("processes", [2, 4])
def test_slices_of_unequal_length(processes, tmp_path):
    lengths = SLICES[processes]
    mp.spawn(_work, args=(lengths, free_port(), str(tmp_path)), nprocs=processes)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(processes)]
    for reverse in (False, True):
        *leaves, weight, reset = problem(sum(lengths))
        leaves = [t.requires_grad_() for t in leaves]
        h = ts.linear_recurrence(*leaves, dim=1, reverse=reverse, exclusive=reverse, reset=reset)
        (h * weight).sum().backward()
        found = [part[reverse] for part in parts]
        for index, wanted in enumerate((h.detach(), leaves[0].grad, leaves[1].grad)):
            torch.testing.assert_close(torch.cat([f[index] for f in found], 1), wanted)
        torch.testing.assert_close(sum(f[3] for f in found), leaves[2].grad)
        sliced, summed = _selective(ts.selective_scan, *selective_problem(sum(lengths)), reverse)
        found = [part["selective", reverse] for part in parts]
        for index, wanted in enumerate(sliced):
            torch.testing.assert_close(torch.cat([f[0][index] for f in found], -1), wanted)
        for index, wanted in enumerate(summed):
            torch.testing.assert_close(sum(f[1][index] for f in found), wanted)


def _lose(rank, port, results):
    """Process 1 is late once, and then gone."""
    _group(rank, 2, port)
    x = torch.ones(2, 3)
    if rank == 1:
        sequence_parallel(x, x)
        time.sleep(4)
        os._exit(0)
    said = []
    sequence_parallel(x, x)
    for timeout in (1.0, None):
        start = time.monotonic()
        try:
            sequence_parallel(x, x, timeout=timeout)
        except RuntimeError as error:
            said.append((str(error), time.monotonic() - start))
    torch.save(said, f"{results}/said.pt")
    os._exit(0)


def test_a_lost_process_is_an_error(tmp_path):
    mp.spawn(_lose, args=(free_port(), str(tmp_path)), nprocs=2)
    said = torch.load(tmp_path / "said.pt")
    assert len(said) == 2
    for text, seconds in said:
        assert "expected all 2 processes of the group to take part" in text
        assert seconds < 30


def test_without_a_group():
    with pytest.raises(ValueError, match="expected a process group, got none"):
        sequence_parallel(torch.zeros(2), torch.zeros(2))


def _halves(rank, port, results):
    _group(rank, 2, port)
    a, x = half_problem()
    mine = slice(0, 300) if rank == 0 else slice(300, 400)
    torch.save(sequence_parallel(a[:, mine], x[:, mine], dim=1), f"{results}/{rank}.pt")
    dist.destroy_process_group()


def half_problem():
    generator = torch.Generator().manual_seed(0)
    gates = 1 - 0.004 * torch.rand(2, 400, 3, generator=generator)
    return gates.bfloat16(), torch.rand(2, 400, 3, generator=generator).bfloat16()


def test_halves(tmp_path):
    """The gates of a slice are multiplied in float32: 8 bits would round 300 times."""
    mp.spawn(_halves, args=(free_port(), str(tmp_path)), nprocs=2)
    got = torch.cat([torch.load(tmp_path / f"{rank}.pt") for rank in range(2)], 1)
    want = ts.linear_recurrence(*half_problem(), dim=1)
    # The state between the slices is rounded once, and the results once.
    torch.testing.assert_close(got, want, rtol=3 * 2**-8, atol=0)
