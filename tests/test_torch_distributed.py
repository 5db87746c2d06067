"""`sequence_parallel` on 2 and 4 processes over loopback, against one process with everything."""

import os
import socket

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402
from tvm_scan.torch.distributed import sequence_parallel  # noqa: E402

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
SLICES = {2: (3, 8), 4: (5, 1, 0, 7)}


def problem(length):
    generator = torch.Generator().manual_seed(0)
    a, x = torch.rand(2, 2, length, 3, dtype=torch.float64, generator=generator).unbind(0)
    h0 = torch.rand(2, 3, dtype=torch.float64, generator=generator)
    weight = torch.rand(2, length, 3, dtype=torch.float64, generator=generator)
    reset = torch.rand(length, 1, generator=generator) < 0.2
    return a, x, h0, weight, reset


def _work(rank, lengths, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=len(lengths))
    found = {}
    for reverse in (False, True):
        a, x, h0, weight, reset = problem(sum(lengths))
        mine = slice(sum(lengths[:rank]), sum(lengths[: rank + 1]))
        leaves = [t.clone().requires_grad_() for t in (a[:, mine], x[:, mine], h0)]
        h = sequence_parallel(*leaves, dim=1, reverse=reverse, exclusive=reverse, reset=reset[mine])
        (h * weight[:, mine]).sum().backward()
        found[reverse] = [h.detach(), *(t.grad for t in leaves)]
    torch.save(found, f"{results}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("processes", [2, 4])
def test_slices_of_unequal_length(processes, tmp_path):
    lengths = SLICES[processes]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_work, args=(lengths, port, str(tmp_path)), nprocs=processes)
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


def test_without_a_group():
    with pytest.raises(ValueError, match="expected a process group, got none"):
        sequence_parallel(torch.zeros(2), torch.zeros(2))
