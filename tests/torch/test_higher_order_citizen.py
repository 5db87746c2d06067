"""The higher-order functions under torch's transforms, compilers and exporters."""

import io

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.torch.test_higher_order import affine, doubles  # noqa: E402


def test_opcheck():
    from tvm_scan.torch.trace.graph import trace

    x = torch.rand(2, 5, 3)
    kinds = (((3,), torch.float32),) * 4
    step = lambda a, b, c, d: affine((a, b), (c, d))  # noqa: E731
    graph, _ = trace(step, kinds, "test", torch.device("cpu"))
    tensors = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    operator = torch.ops.tvm_scan.step_scan.default
    torch.library.opcheck(operator, (tensors, graph, 2, True, False))


def test_transforms():
    (x,) = doubles(6, 5, 3, count=1)

    def call(row):
        return ts.associative_scan(affine, (row, row), 0)[1]

    want = torch.stack([call(row) for row in x])
    torch.testing.assert_close(torch.func.vmap(call)(x), want)
    slopes = torch.func.vmap(torch.func.grad(lambda row: call(row).square().sum()))(x)
    y = x.clone().requires_grad_()
    torch.stack([call(row) for row in y]).square().sum().backward()
    torch.testing.assert_close(slopes, y.grad)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    torch._dynamo.reset()

    def model(a, x):
        return ts.associative_scan(affine, (a.sigmoid(), x), 1)[1].square().sum()

    a, x = (t.requires_grad_() for t in doubles(3, 7))
    grads = []
    for call in (model, torch.compile(model, backend=backend, fullgraph=True)):
        grads.append(torch.autograd.grad(call(a, x), (a, x)))
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want)


class Model(torch.nn.Module):
    def forward(self, a, x):
        h = ts.associative_scan(affine, (a.sigmoid(), x), 1)[1]
        return ts.scan(lambda c, u: (u[0] * c + u[1],) * 2, h[:, 0], (a, h), 1)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_export_with_a_dynamic_length():
    """The program holds the traced functions as text, so that it can be saved."""
    a, x = doubles(3, 7, 4)
    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(Model(), (a, x), dynamic_shapes=({1: length}, {1: length}))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for steps in (7, 33):
        a, x = doubles(3, steps, 4)
        for got, want in zip(loaded(a, x), Model()(a, x), strict=True):
            torch.testing.assert_close(got, want)
