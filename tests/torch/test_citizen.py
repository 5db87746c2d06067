"""What torch asks of an operator: opcheck, compile, export, vmap, func, threads, forks, layouts."""

import multiprocessing
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402
from tests.torch.oracles import linear_loop  # noqa: E402
from tvm_scan.torch.ops.affine import affine_scan  # noqa: E402
from tvm_scan.torch.ops.cumulative import cumulative, log_sum_exp  # noqa: E402
from tvm_scan.torch.ops.delta import delta_scan  # noqa: E402
from tvm_scan.torch.ops.extremum import extremum, extremum_gradient, positions  # noqa: E402
from tvm_scan.torch.ops.selective import selective_scan_grouped  # noqa: E402


def rand(*shape, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, **options)


def selective_inputs(length=9):
    # (batch, groups, channels, length), as the operator takes them
    u, delta, z = rand(3, 2, 1, 4, length).unbind(0)
    B, C = rand(2, 2, 1, 3, length, seed=1).unbind(0)
    return [u, delta, -rand(1, 4, 3), B, C, rand(1, 4), z, rand(1, 4), None, rand(2, 1, 4, 3)]


def operator_calls():
    x, a = rand(2, 5, 3, dtype=torch.float64), rand(2, 5, 3, seed=1, dtype=torch.float64)
    yield affine_scan, (a, x, rand(2, 3, dtype=torch.float64), None, "inclusive", False)
    yield affine_scan, (a, x, None, (a < 0).to(torch.int8), "late", True)
    yield cumulative, (x, "mul", False, True)
    yield positions, (x, True, False)
    yield log_sum_exp, (x, True)
    yield extremum, (x.float(), False, True)
    yield extremum, (x, True, False)
    yield extremum_gradient, (a, ts.cummax(x, 1, reverse=True).indices, True)
    yield selective_scan_grouped, (*selective_inputs(), True, False, True)
    u, delta, A, _, C, *others, h0 = selective_inputs()
    fixed = rand(1, 4, 3, seed=2)
    yield selective_scan_grouped, (u, delta, A, fixed, C, *others, h0, True, False, True)
    q, k, v, g = rand(4, 2, 5, 2, 3, seed=3).unbind(0)
    beta, states = rand(2, 5, 2), rand(2, 2, 3, 3)
    plain = (1.0, "w: exp", True)
    yield delta_scan, (q, k, v, -g, beta, None, None, None, None, states, None, *plain)
    reads = "q: unit, times scale; w: plus dt_bias, softplus, rate A_log, times -1, exp"
    learned = (rand(2, seed=4), rand(2, 3, seed=5))
    yield delta_scan, (q, k, v, -g, beta, None, None, *learned, states, None, 0.5, reads, True)
    ends = torch.tensor([0, 2, 2, 5])
    packed = [t[:1] for t in (q, k, v)]
    states = rand(3, 2, 3, 3)
    others = (None, None, -k[:1], k[:1], None, None, states, ends)
    yield delta_scan, (*packed, *others, 1.0, "", False)
    A, h0 = torch.complex(A, -A), torch.complex(h0, h0)
    yield selective_scan_grouped, (u, delta, A, fixed, C, *others, h0, True, False, True)


def _may_have_gradient(operator, argument):
    if not isinstance(argument, torch.Tensor) or operator is positions:
        return False
    return argument.is_floating_point() or argument.is_complex()


@pytest.mark.parametrize("index", range(13))
def test_opcheck(index):
    operator, arguments = list(operator_calls())[index]
    arguments = tuple(
        a.requires_grad_() if _may_have_gradient(operator, a) else a for a in arguments
    )
    overload = getattr(torch.ops.tvm_scan, operator.name.split("::")[1]).default
    torch.library.opcheck(overload, arguments)


@pytest.mark.parametrize("index", range(13))
def test_what_autograd_alone_sees_passes_the_dispatcher(index, monkeypatch):
    """Results, derivatives and what has none are those of the way through it."""
    operator, arguments = list(operator_calls())[index]
    if operator._recorded is None:  # its derivatives are given lists, or it has none
        return
    leaves = [a.requires_grad_() for a in arguments if _may_have_gradient(operator, a)]

    def run(call):
        results = call(*arguments)
        recorded = [results] if isinstance(results, torch.Tensor) else list(results)
        total = sum((r * r.conj()).real.sum() for r in recorded if r.grad_fn is not None)
        grads = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        again = [g for g in grads if g is not None and g.grad_fn is not None]
        second = sum((g * g.conj()).real.sum() for g in again)
        return (
            type(results),
            recorded,
            grads,
            torch.autograd.grad(second, leaves, allow_unused=True) if again else (),
        )

    want = run(operator._overload)
    monkeypatch.setattr(operator, "_overload", None)
    kind, *found = run(operator)
    assert kind is want[0]
    torch.testing.assert_close(found, list(want[1:]), rtol=0, atol=0)
    flags = [[r.requires_grad for r in results] for results in (found[0], want[1])]
    assert flags[0] == flags[1]


def model(a, x, h0):
    h, last = ts.linear_recurrence(a, x, h0, dim=1, return_last=True)
    return (
        ts.logcumsumexp(ts.cumsum(h, 1, reverse=True), 1) * ts.cummax(h, 1).values + last[:, None]
    )


def mamba(u, A, B):
    return ts.compat.selective_scan_fn(u, u, A, B, B, delta_softplus=True)


# torch's own use of what it has deprecated, on the way into inductor
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile(backend, monkeypatch):
    if backend == "inductor":
        config = pytest.importorskip("torch._inductor.config")
        # Two kernels of a line each: to compile torch's headers beforehand takes longer.
        monkeypatch.setattr(config, "cpp_cache_precompile_headers", False, raising=False)
        # Nor do they need processes that compile side by side, each of which imports torch.
        monkeypatch.setattr(config, "compile_threads", 1)
        # Nor is the processor asked anew, by a program for each of its instruction sets.
        monkeypatch.setattr(config.cpp, "vec_isa_ok", True, raising=False)
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except Exception as error:  # whatever it raises, there is no compiler
            pytest.skip(f"no C++ compiler: {error}")
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *args: (model(*args[:3]), mamba(*args[3:])), fullgraph=True, backend=backend
    )
    inputs = [rand(2, 6, 3), rand(2, 6, 3, seed=1), rand(2, 3), rand(2, 4, 6), -rand(4, 3)]
    inputs = [t.requires_grad_() for t in (*inputs, rand(2, 3, 6))]
    got, wanted = compiled(*inputs), (model(*inputs[:3]), mamba(*inputs[3:]))
    torch.testing.assert_close(got, wanted)
    grads = [torch.autograd.grad([o.sum() for o in out], inputs) for out in (got, wanted)]
    torch.testing.assert_close(*grads)


def test_export_with_a_dynamic_length():
    class Model(torch.nn.Module):
        def forward(self, a, x, h0, u, A, B):
            return model(a, x, h0), mamba(u, A, B)

    def inputs(length):
        a, x = rand(2, 2, length, 3).unbind(0)
        return a, x, rand(2, 3), rand(2, 4, length), -rand(4, 3), rand(2, 3, length)

    length = torch.export.Dim("length", min=2)
    shapes = ({1: length}, {1: length}, None, {2: length}, None, {2: length})
    program = torch.export.export(Model(), inputs(8), dynamic_shapes=shapes)
    for extent in (8, 37):
        got = program.module()(*inputs(extent))
        torch.testing.assert_close(got, Model()(*inputs(extent)))


def test_vmap_and_func():
    a, x, h0 = rand(4, 2, 6, 3), rand(4, 2, 6, 3, seed=1), rand(2, 3)
    got = torch.func.vmap(model, in_dims=(0, 0, None))(a, x, h0)
    wanted = torch.stack([model(a[i], x[i], h0) for i in range(4)])
    torch.testing.assert_close(got, wanted)
    loss = lambda a, x: model(a, x, h0).sum()  # noqa: E731
    grads = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)))(a, x)
    alone = [torch.func.grad(loss, argnums=(0, 1))(a[i], x[i]) for i in range(4)]
    torch.testing.assert_close(grads, tuple(torch.stack(p) for p in zip(*alone, strict=True)))
    jacobian = torch.func.jacrev(lambda x: ts.cumsum(x, 0))(x[0, 0, :, 0])
    torch.testing.assert_close(jacobian, torch.ones(6, 6).tril())


@pytest.mark.parametrize("mapped", ["u", "A"])
def test_vmap_of_the_selective_scan(mapped):
    u, A, B = rand(3, 2, 4, 6), -rand(3, 4, 3), rand(2, 3, 6)
    dims = (0, None, None) if mapped == "u" else (None, 0, None)
    arguments = (u, A[0], B) if mapped == "u" else (u[0], A, B)
    pick = lambda i: [t[i] if d == 0 else t for t, d in zip(arguments, dims, strict=True)]  # noqa: E731
    got = torch.func.vmap(mamba, in_dims=dims)(*arguments)
    torch.testing.assert_close(got, torch.stack([mamba(*pick(i)) for i in range(3)]))
    gradient = torch.func.grad(lambda *t: mamba(*t).sum(), argnums=(0, 1, 2))
    got = torch.func.vmap(gradient, in_dims=dims)(*arguments)
    alone = [gradient(*pick(i)) for i in range(3)]
    torch.testing.assert_close(got, tuple(torch.stack(p) for p in zip(*alone, strict=True)))


def test_autocast_promotes_to_the_widest():
    a, x = rand(2, 3, 9).unbind(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = torch.nn.functional.linear(x, torch.eye(9))  # a bfloat16 tensor
        assert half.dtype == torch.bfloat16
        h = ts.linear_recurrence(a, half)
    torch.testing.assert_close(h, linear_loop(a, half.float())[0])


def test_any_layout():
    base = rand(2, 64, 5, 40)
    views = {
        "transposed": base.transpose(2, 3),
        "sliced": base[:, ::2, 1:, ::3],
        "misaligned": base.flatten()[3:12003].view(2, 60, 4, 25),
        "expanded": base[:, :1].expand(2, 6, 5, 40),
        "one element": base[:1, :1, :, ::2][..., :1],
    }
    for name, view in views.items():
        for dim in range(4):
            got = ts.linear_recurrence(view, view, dim=dim)
            moved = view.movedim(dim, -1)
            wanted = linear_loop(moved, moved)[0].movedim(-1, dim)
            torch.testing.assert_close(got, wanted, msg=f"{name}, dim {dim}")


def test_same_bits_every_time():
    a, x = rand(2, 7, 5000).unbind(0)
    first = ts.linear_recurrence(a, x)
    assert all(torch.equal(first, ts.linear_recurrence(a, x)) for _ in range(5))


def test_threads_share_kernels():
    inputs = [rand(2, 4, 100 + 7 * i).unbind(0) for i in range(12)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda pair: ts.linear_recurrence(*pair), inputs))
    for (a, x), got in zip(inputs, results, strict=True):
        torch.testing.assert_close(got, linear_loop(a, x)[0])


def _in_child(queue):
    torch.set_num_threads(1)  # OpenMP's own threads do not survive a fork either
    a, x = rand(2, 64, 4096).unbind(0)
    queue.put(ts.linear_recurrence(a, x)[:, -1].sum().item())


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork"])
def test_a_forked_child_runs_parallel_kernels(method):
    a, x = rand(2, 64, 4096).unbind(0)
    wanted = ts.linear_recurrence(a, x)[:, -1].sum().item()  # the parent's pool is up
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60) == pytest.approx(wanted)
    finally:
        child.join(10)
        if child.is_alive():
            child.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere TVM has threads of its own")
def test_kernels_run_on_torchs_own_threads():
    """Which wait for the next operator in a loop, and would take the cores from others."""
    code = (
        "import os, torch, tvm_scan.torch as ts\n"
        "threads = lambda: len(os.listdir('/proc/self/task'))\n"
        "torch.ones(1 << 20).exp().sum()\n"
        "before, (a, x) = threads(), torch.rand(2, 64, 4096)\n"
        "got, want = ts.linear_recurrence(a, x), torch.zeros(64)\n"
        "for t in range(4096): want = a[:, t] * want + x[:, t]\n"
        "torch.testing.assert_close(got[:, -1], want)\n"
        "print(torch.get_num_threads(), threads() - before)"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "0"]


def test_the_next_process_needs_no_tvm():
    """Kernels from the cache load without importing the compiler, in any process."""
    code = (
        "import sys, torch, tvm_scan.torch as ts\n"
        "print(ts.cumsum(torch.ones(2, 10), 1).sum().item(), 'tvm' in sys.modules)"
    )
    run = lambda: subprocess.run(  # noqa: E731
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert run()[0] == "110.0"
    assert run() == ["110.0", "False"]


class Watching(TorchDispatchMode):
    """As profilers and torch's own tracing see calls; below it torch resolves no lazy bits."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_complex_numbers_below_a_dispatch_mode():
    u, delta, A, B, C, *_ = selective_inputs()
    h0 = torch.complex(rand(2, 1, 4, 3), rand(2, 1, 4, 3))
    A, B, C = (torch.complex(t, t) for t in (A[0], B, C))
    named = {"u": u[:, 0], "delta": delta[:, 0], "A": A, "B": B, "C": C}

    def results():
        inputs = {n: t.clone().requires_grad_() for n, t in named.items()}
        out = ts.selective_scan(**inputs, h0=h0[:, 0], delta_softplus=True)
        h = ts.linear_recurrence(inputs["A"].conj(), h0[:, 0].conj(), dim=1)
        (out.sum() + h.abs().sum()).backward()
        return out, h, *(t.grad for t in inputs.values())

    with Watching():
        watched = results()
    torch.testing.assert_close(watched, results())
