"""Transforms of torch, beyond `test_torch_citizen`: packed rows, forward mode, new steps."""

import pytest

torch = pytest.importorskip("torch")

import torch.autograd.forward_ad as forward_ad  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402

# torch's own use of what it has deprecated, on the way into its compiler and forward mode
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


def rand(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("reverse", [False, True])
def test_packed_rows_are_traced_and_mapped(reverse):
    u, A, B = rand(1, 4, 12), -rand(4, 3), rand(1, 3, 12)
    offsets = torch.tensor([[0, 5, 9, 12], [0, 7, 7, 12]])

    class Model(torch.nn.Module):
        def forward(self, u, A, B, cu_seqlens):
            return ts.selective_scan(u, u, A, B, B, cu_seqlens=cu_seqlens, reverse=reverse)

    call = Model()
    wanted = [call(u, A, B, row) for row in offsets]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(u, A, B, offsets[0]), wanted[0])
    mapped = torch.func.vmap(call, in_dims=(None, None, None, 0))(u, A, B, offsets)
    torch.testing.assert_close(mapped, torch.stack(wanted))
    length, count = torch.export.Dim("length", min=2), torch.export.Dim("count", min=4)
    shapes = ({2: length}, None, {2: length}, {0: count})
    program = torch.export.export(call, (u, A, B, offsets[0]), dynamic_shapes=shapes)
    more = torch.tensor([0, 2, 3, 3, 7])
    inputs = (u[..., :7], A, B[..., :7], more)
    torch.testing.assert_close(program.module()(*inputs), call(*inputs))


def products(m):
    return ts.associative_scan(lambda p, q: q @ p, m)


#: Functions of one tensor, and its shape.
FORWARD = {
    "cumsum": (lambda x: ts.cumsum(x, 0), (5,)),
    "logcumsumexp": (lambda x: ts.logcumsumexp(x, 0), (5,)),
    "linear_recurrence": (lambda x: ts.linear_recurrence(x, x), (5,)),
    "selective_scan": (lambda u: ts.selective_scan(u, u, -u[0], u, u), (1, 4, 4)),
    "gla": (lambda q: ts.gla(q, q, q, -q), (1, 5, 1, 2)),
    "associative_scan": (lambda x: ts.associative_scan(lambda p, q: p + q, x), (5,)),
    "products": (products, (5, 2, 2)),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_is_refused_and_never_lost(name):
    call, shape = FORWARD[name]
    x = rand(*shape)
    message = "expected tensors without tangents, got a derivative in forward mode"
    with pytest.raises(NotImplementedError, match=message), forward_ad.dual_level():
        call(forward_ad.make_dual(x, torch.ones_like(x)))
    with pytest.raises(NotImplementedError, match=message):
        torch.func.jvp(call, (x,), (x,))
    with forward_ad.dual_level():  # without a tangent nothing is lost
        torch.testing.assert_close(call(x), call(x.clone()))


def test_running_extrema_have_forward_mode():
    x = rand(5)
    got = torch.func.jvp(lambda x: ts.cummax(x, 0).values, (x,), (x,))
    torch.testing.assert_close(got, torch.func.jvp(lambda x: x.cummax(0).values, (x,), (x,)))


def test_a_hessian_by_jacrev_twice():
    x = rand(5).double()
    call = torch.func.jacrev(torch.func.jacrev(lambda x: ts.linear_recurrence(x, x * x).sum()))
    torch.testing.assert_close(call(x), call(x).T)
    u, delta, A, B = rand(1, 2, 2).double(), rand(1, 2, 2, seed=1).double(), -rand(2, 2), rand(2, 2)

    def total(u, delta):
        return ts.selective_scan(u, delta, A, B, B).square().sum()

    found = torch.func.jacrev(torch.func.jacrev(total, (0, 1)), (0, 1))(u, delta)
    torch.testing.assert_close(found, torch.autograd.functional.hessian(total, (u, delta)))


def test_a_step_that_is_first_seen_in_a_transform():
    x = rand(3, 5)

    def product(x):
        return ts.associative_scan(lambda p, q: p * q, x)  # another function at every call

    def running(x):
        return ts.scan(lambda c, v: (0.5 * c + v, c), torch.zeros(()), x)[1]

    torch.testing.assert_close(torch.func.vmap(product)(x), torch.cumprod(x, 1))
    torch.testing.assert_close(torch.func.vmap(running)(x), torch.stack([running(v) for v in x]))
    got = torch.func.grad(lambda v: product(v).sum())(x[0])
    torch.testing.assert_close(got, torch.func.grad(lambda v: v.cumprod(0).sum())(x[0]))
    jacobian = torch.func.jacrev(lambda v: ts.associative_scan(torch.add, v))(x[0])
    torch.testing.assert_close(jacobian, torch.ones(5, 5).tril())


def test_steps_that_mix_elements_are_mapped():
    m = 0.3 * rand(2, 9, 3, 3)
    got = torch.func.vmap(products, in_dims=1)(m.movedim(0, 1))
    torch.testing.assert_close(got, torch.stack([products(part) for part in m]))


def test_a_mapped_tensor_that_a_step_reads():
    def scan(w, x):
        return ts.scan(lambda c, v: (w * c + v, c), torch.zeros(()), x)[1]

    with pytest.raises(ValueError, match="expected a function of its arguments alone under"):
        torch.func.vmap(scan)(rand(3), rand(3, 5))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16])
def test_dtypes_that_are_none_of_ours(dtype):
    x = torch.ones(3, dtype=torch.float32).to(dtype)
    for call in (ts.cumsum, ts.cumprod, ts.cummax):
        with pytest.raises(ValueError, match=f"{call.__name__}: expected x .*, got {dtype}"):
            call(x, 0)


def test_tensors_without_strides():
    with pytest.raises(ValueError, match=r"expected x with strides, got torch.sparse_coo"):
        ts.cumsum(torch.eye(3).to_sparse(), 0)
