"""What only a GPU that torch sees can show: streams, captured graphs, memory, devices.

Skipped elsewhere. Set ``TVM_SCAN_REAL_GPU=1``, so that the simulated device is not installed.
"""

import os
import sys

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.support import cusim, forks  # noqa: E402
from tests.torch.oracles import linear_loop  # noqa: E402

needs_gpu = pytest.mark.skipif(
    cusim.is_simulated() or not torch.cuda.is_available(), reason="torch sees no GPU"
)


def pair(length=5000, rows=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (t.cuda() for t in torch.rand(2, rows, length, generator=generator).unbind(0))


def close(got, a, x):
    want = linear_loop(a.double().cpu(), x.double().cpu())[0]
    torch.testing.assert_close(got.double().cpu(), want, rtol=1e-4, atol=1e-4)


@needs_gpu
@pytest.mark.parametrize("length", [1, 100, 5000, 1 << 20])
def test_values_and_gradients(length):
    a, x = (t.requires_grad_() for t in pair(length, 2))
    h = ts.linear_recurrence(a, x)
    assert h.is_cuda
    if length <= 5000:
        close(h, a, x)
    found = torch.autograd.grad(h.sum(), (a, x))
    cpu = [t.detach().cpu().requires_grad_() for t in (a, x)]
    want = torch.autograd.grad(ts.linear_recurrence(*cpu).sum(), cpu)
    for got, expected in zip(found, want, strict=True):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-3, atol=1e-3)


@needs_gpu
def test_selective_scan_and_its_gradients():
    def inputs(device):
        generator = torch.Generator().manual_seed(0)
        shapes = [(2, 64, 300)] * 2 + [(64, 16)] + [(2, 16, 300)] * 2
        tensors = [torch.rand(s, generator=generator) for s in shapes]
        tensors[2].neg_()
        return [t.to(device).requires_grad_() for t in tensors]

    results = []
    for device in ("cpu", "cuda"):
        given = inputs(device)
        out = ts.compat.selective_scan_fn(*given, delta_softplus=True)
        results.append([t.cpu() for t in (out, *torch.autograd.grad(out.sum(), given))])
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)


@needs_gpu
def test_the_current_stream():
    """What a slow stream is still writing is read after it, without a wait in between."""
    a, x = pair()
    ts.linear_recurrence(a, x)
    side = torch.cuda.Stream()
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        late.copy_(x)
        h = ts.linear_recurrence(a, late)
        assert not side.query()  # still running: the call did not wait
    side.synchronize()
    close(h, a, x)


@needs_gpu
@pytest.mark.parametrize("length", [300, 1 << 20])
def test_a_captured_graph(length):
    """Also of a plan in several launches, whose scratch is torch's."""
    a, x = pair(length, 1)
    out = ts.linear_recurrence(a, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ts.linear_recurrence(a, x)
    a2, x2 = pair(length, 1, seed=1)
    a.copy_(a2), x.copy_(x2)
    graph.replay()
    torch.testing.assert_close(out, ts.linear_recurrence(a2, x2))


@needs_gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_first_call_in_a_capture_says_what_to_do():
    from tvm_scan import ScanError

    x = torch.ones(2, 77, device="cuda", dtype=torch.float64)
    graph = torch.cuda.graph(torch.cuda.CUDAGraph())
    with pytest.raises(ScanError, match="before a CUDA graph is captured"), graph:
        ts.cumprod(x, 1, reverse=True, exclusive=True)


@needs_gpu
def test_memory_is_torchs():
    a, x = pair(1 << 22, 1)
    ts.linear_recurrence(a, x)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    held = torch.cuda.memory_reserved()
    for _ in range(3):
        ts.linear_recurrence(a, x)
    torch.cuda.synchronize()
    assert free - torch.cuda.mem_get_info()[0] == torch.cuda.memory_reserved() - held


@needs_gpu
def test_two_gpus():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    a, x = (t.to("cuda:1") for t in pair())
    h = ts.linear_recurrence(a, x)
    assert (h.device.index, torch.cuda.current_device()) == (1, 0)
    close(h, a, x)


@needs_gpu
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
def test_compiled_and_mapped():
    a, x = pair(300)
    compiled = torch.compile(ts.linear_recurrence, fullgraph=True)
    torch.testing.assert_close(compiled(a, x), ts.linear_recurrence(a, x))
    mapped = torch.func.vmap(ts.linear_recurrence)(a, x)
    torch.testing.assert_close(mapped, ts.linear_recurrence(a, x))


def test_a_built_kernel_loads_from_the_cache(tmp_path):
    """In a process of its own, with the simulated driver where there is no GPU."""
    code = """
import sys
from tests.support import cusim
cusim.available() and cusim.install()
import torch, tvm_ffi
from tvm_scan.torch import store
from tvm_scan.torch.kernels import cache as kernels
from tvm_scan.torch.kernels import devices
from tvm_scan.torch.ops.affine import affine_spec
from tvm_scan.torch.kernels.runtime import load_runtime
from tvm_scan.torch.kernels.scratch import shapes_of
spec = affine_spec(torch.float32, "inclusive", False, False, False, True)
plan = "cuda/three_phase(threads_per_block=32, items_per_thread=4, block_tree=warp)"
if len(sys.argv) > 1:
    kernels.build_kernel = None
library = kernels._load(spec, plan, devices.gpu_device("sm_90"))
load_runtime("cuda")
library["main"]
print(shapes_of(library["scratch"], (1, 3, 1000)))
"""
    environment = {"TVM_SCAN_CACHE": str(tmp_path / "k")}

    def run(*arguments):
        done = forks.run(
            [sys.executable, "-c", code, *arguments],
            torch=True,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
        )
        assert not done.returncode, done.stderr
        return done.stdout.strip()

    tiles = "[((3, 8), torch.float32), ((3, 8), torch.float32), ((3, 8), torch.float32)]"
    assert run() == run("from the cache") == tiles
