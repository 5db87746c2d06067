"""Forked and spawned processes, and the workers of a DataLoader, after the parent used its threads.

TVM's thread pool does not survive a fork: a kernel that waits for it hangs. So every wait here has
a limit, and a process that hangs is a failure.
"""

import sys
import threading

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.support.children import answer_of  # noqa: E402
from tvm_scan.torch.kernels import cache as kernels  # noqa: E402

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
SECONDS = 120


def numbers(seed):
    return torch.rand(2, 64, 4096, generator=torch.Generator().manual_seed(seed)).unbind(0)


def work(seed):
    """Forward and backward of kernels that run in several threads."""
    a, x = numbers(seed)
    a.requires_grad_()
    h = ts.linear_recurrence(a, x)
    (grad,) = torch.autograd.grad(h[:, -1].sum(), a)
    return h[:, -1].sum().item(), grad.sum().item()


def child(queue, seed):
    torch.set_num_threads(1)  # OpenMP's own threads do not survive a fork either
    queue.put(work(seed))


class Filtered(torch.utils.data.Dataset):
    """What a user does: a scan in the preparation of a sample."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return ts.linear_recurrence(*numbers(index))[:, -1]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_runs_parallel_kernels(method):
    wanted = work(0)  # the parent's pool is up
    assert answer_of(child, 0, method=method) == pytest.approx(wanted)
    assert work(0) == pytest.approx(wanted)  # and still is


def test_a_child_forked_while_another_thread_builds():
    """The lock of the builder is held for ever in the child, unless it is a new one."""
    wanted = work(0)
    held, done = threading.Event(), threading.Event()

    def build():
        with kernels._building:
            held.set()
            done.wait(SECONDS)

    builder = threading.Thread(target=build)
    builder.start()
    held.wait(SECONDS)
    try:
        assert answer_of(_builds) == pytest.approx(wanted)
    finally:
        done.set()
        builder.join()


def _builds(queue):
    kernels._calls.clear()  # so that kernels are asked for again, under the lock
    child(queue, 0)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(method):
    samples = Filtered()
    wanted = torch.stack([samples[i] for i in range(4)])
    loader = torch.utils.data.DataLoader(
        samples,
        batch_size=2,
        num_workers=2,
        multiprocessing_context=method,
        timeout=SECONDS,
    )
    got = torch.cat(list(loader))
    torch.testing.assert_close(got, wanted)
