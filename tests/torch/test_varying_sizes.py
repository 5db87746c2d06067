"""Every function in one program for all sizes: torch.compile and torch.export, each size varying.

But those that a kernel is a constant of, which `bound` names in the table: there a program is
bound to what it was traced with, and another is compiled.
"""

import weakref

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402
from tests.support.tiers import SEED, longer  # noqa: E402
from tests.torch.table import FUNCTIONS, arguments_of, results_of  # noqa: E402
from tvm_scan.torch.trace import traced  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def traced_anew(monkeypatch):
    """No trace of an earlier test or run stands for one that export or compile makes."""
    monkeypatch.setattr(traced, "_traces", weakref.WeakKeyDictionary())
    monkeypatch.setattr(traced, "stored_trace", lambda _key: None)


#: All others than those of the table.
OTHER = {"b": 2, "t": 9, "c": 6, "h": 6, "k": 5, "v": 3, "p": 5, "n": 4, "s": 6}


def other_of(name):
    entry = FUNCTIONS[name]
    fixed = dict(entry.sizes).keys() | {entry.bound}
    return {n: size for n, size in OTHER.items() if n not in fixed}


def module_of(name):
    class Module(torch.nn.Module):
        def forward(self, given):
            return results_of(name, given)

    return Module()


# All are exported below, and compiled for one size in test_properties.py.
@pytest.mark.parametrize("name", longer(list(FUNCTIONS)[SEED % 2 :: 2], list(FUNCTIONS)))
def test_compile(name):
    torch._dynamo.reset()
    counted = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda given: results_of(name, given), fullgraph=True, dynamic=True, backend=counted
    )
    counts = []
    for sizes in ({}, other_of(name)):
        given = arguments_of(name, torch.float32, **sizes)
        torch.testing.assert_close(compiled(given), results_of(name, given))
        counts.append(counted.frame_count)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_export(name):
    entry, module = FUNCTIONS[name], module_of(name)
    given = arguments_of(name, torch.float32)
    # Two sequences and an end between them; one step before another.
    least = {"s": 4, "t": 3}
    names = {n: torch.export.Dim(n, min=least.get(n)) for n in other_of(name)}
    for size in names.keys() & {"c", "h"}:  # of which there are several to a group
        names[size] = 2 * torch.export.Dim(f"half_{size}", min=2)

    def dims(spec):
        sizes = [n for n in spec.split() if n[0].isalpha()]
        return {i: names[n] for i, n in enumerate(sizes) if n in names}

    shapes = {argument: dims(spec) for argument, spec in entry.given.items()}
    program = torch.export.export(module, (given,), dynamic_shapes=(shapes,))
    for sizes in ({}, other_of(name)):
        given = arguments_of(name, torch.float32, **sizes)
        torch.testing.assert_close(program.module()(given), module(given))


def test_a_function_that_reads_a_size():
    """It is traced for every size: what it reads is a constant of the trace."""

    def call(x):
        return ts.associative_scan(lambda p, q: p + q / p.shape[0], x)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="eager")
    for size in (3, 4):
        x = torch.rand(5, size)
        torch.testing.assert_close(compiled(x), call(x))
    size = torch.export.Dim("size")

    class Module(torch.nn.Module):
        def forward(self, x):
            return call(x)

    with pytest.raises(torch._dynamo.exc.UserError, match="specialized it to be a constant"):
        torch.export.export(Module(), (x,), dynamic_shapes=({1: size},))


def test_torchs_compiler_takes_projections_that_are_views():
    """With gradients, so that what is saved is an output, whose strides it puts in order."""
    torch._dynamo.reset()
    A = -torch.rand(8, 4)

    def scan(x):
        u = torch.sigmoid(x)
        return ts.selective_scan(u, u * 2, A, u[:, :4], u[:, 4:])

    compiled = torch.compile(scan, fullgraph=True, dynamic=True)
    for batch, length in ((2, 11), (3, 7)):
        x = torch.randn(batch, 8, length, requires_grad=True)
        torch.testing.assert_close(compiled(x), scan(x))
