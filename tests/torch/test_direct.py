"""Calls without a detour give what the general way gives, and leave it where they must."""

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tvm_scan import ScanError, library  # noqa: E402


@pytest.fixture(scope="module")
def scan():
    return ts.compile_primfunc(library.linear_recurrence(None, None))


def wanted(a, x):
    h, out = torch.zeros(len(x)), []
    for t in range(x.shape[1]):
        h = a[:, t] * h + x[:, t]
        out.append(h)
    return torch.stack(out, 1)


def test_repeated_calls(scan):
    for lanes, length in ((3, 8), (3, 8), (5, 8), (3, 8), (0, 4), (0, 4)):
        a, x = torch.rand(2, lanes, length).unbind(0)
        want = wanted(a, x)
        torch.testing.assert_close(scan(a, x), want)
        out = torch.empty_like(x)
        assert scan(a, x, out) is None
        torch.testing.assert_close(out, want)


def test_the_quick_way_is_left(scan):
    a, x = torch.rand(2, 4, 8).unbind(0)
    scan(a, x)
    want = wanted(a, x)
    torch.testing.assert_close(scan(a.t().contiguous().t(), x), want)  # strided
    shifted = torch.empty(33)[1:].view(4, 8).copy_(x)  # misaligned
    torch.testing.assert_close(scan(a, shifted), want)
    with pytest.raises(ScanError, match="expected float32 for"):
        scan(a.double(), x)
    with pytest.raises(ScanError, match="without requires_grad"):
        scan(a.clone().requires_grad_(), x)
    with pytest.raises(ScanError, match="overlap"):
        scan(a, x, x)
    with pytest.raises(ScanError, match="expected a torch tensor"):
        scan(a.numpy(), x)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_time_as_long_as_another_axis(dim):
    """The layout is known by the axis, not by an extent that another axis may share."""
    a, x = torch.rand(2, 5, 5, 5, dtype=torch.float64).unbind(0)
    h0 = torch.zeros(5, 5, dtype=torch.float64)
    plain = ts.linear_recurrence(a, x, h0, dim=dim)  # the general way
    assert torch.equal(ts.linear_recurrence(a, x, dim=dim), plain)
    torch.testing.assert_close(ts.cumsum(x, dim), torch.cumsum(x, dim))


def test_a_watched_call_goes_through_torch():
    """What torch records, transforms or fakes is seen by it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.rand(2, 6)
    with Watch():
        ts.cumsum(x, 1)
    assert "tvm_scan.cumulative.default" in seen
    y = x.clone().requires_grad_()
    assert ts.cumsum(y, 1).requires_grad
    with torch.no_grad():
        assert not ts.cumsum(y, 1).requires_grad


def test_a_sign_or_conjugate_that_is_put_off(scan):
    """Such tensors hold other numbers than they stand for; the kernel must see the latter."""
    x = torch._neg_view(torch.arange(1.0, 9.0).view(2, 4))
    a = torch.full_like(x, 0.5)
    assert x.is_neg()
    plain = -torch.arange(1.0, 9.0).view(2, 4)
    torch.testing.assert_close(ts.cumsum(x, 1), plain.cumsum(1))
    torch.testing.assert_close(ts.cummax(x, 1).values, plain.cummax(1).values)
    torch.testing.assert_close(ts.linear_recurrence(a, x), wanted(a, plain))
    torch.testing.assert_close(scan(a, x), wanted(a, plain))
    out = torch._neg_view(torch.zeros(2, 4))
    scan(a, plain, out)
    torch.testing.assert_close(out, wanted(a, plain))
    one = torch.tensor([[1.0 + 2.0j]]).conj().imag  # one element: contiguous whatever its stride
    assert ts.cumsum(one, 1).item() == -2
    z = torch.randn(2, 4, dtype=torch.complex64)
    for name in ("cumsum", "cumprod"):
        torch.testing.assert_close(
            getattr(ts, name)(z.conj(), 1), getattr(torch, name)(z.conj(), 1)
        )


def calls():
    a, x = torch.rand(2, 3, 5, 2).unbind(0)
    yield torch.ops.tvm_scan.affine_scan.default, (a, x, None, None, "inclusive", False)
    yield torch.ops.tvm_scan.affine_scan.default, (a, x, torch.rand(3, 2), None, "late", True)
    yield torch.ops.tvm_scan.cumulative.default, (x, "mul", True, False)
    yield torch.ops.tvm_scan.log_sum_exp.default, (x, False)


# torch's own use of what it has deprecated, on the way into forward mode
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("index", range(4))
def test_an_operator_that_nothing_records(index):
    """Its implementation is called at once, unless somebody looks on."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.autograd import forward_ad
    from torch.utils._python_dispatch import TorchDispatchMode

    operator, arguments = list(calls())[index]
    tensors = [i for i, t in enumerate(arguments) if isinstance(t, torch.Tensor)]

    def given(change):
        return [change(t) if i in tensors else t for i, t in enumerate(arguments)]

    plain = operator(*arguments)
    names = [a.name for a in operator._schema.arguments]
    assert torch.equal(operator(**dict(zip(names, arguments, strict=True))), plain)
    recorded = operator(*given(lambda t: t.clone().requires_grad_()))
    assert recorded.requires_grad and torch.equal(recorded, plain)
    with torch.no_grad():
        assert not operator(*given(lambda t: t.clone().requires_grad_())).requires_grad
    with torch.inference_mode():
        assert torch.equal(operator(*arguments), plain)

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        operator(*arguments)
    assert operator in seen
    mode = FakeTensorMode()
    faked = given(mode.from_tensor)
    with mode:
        assert isinstance(operator(*faked), FakeTensor)
    negative = given(lambda t: torch._neg_view(-t))
    assert torch.equal(operator(*negative), plain)
    with forward_ad.dual_level():
        dual = given(lambda t: forward_ad.make_dual(t, torch.ones_like(t)))
        with pytest.raises(NotImplementedError, match="without tangents, got a derivative in forw"):
            operator(*dual)


@pytest.mark.parametrize("index", range(4))
def test_opcheck_where_nothing_is_recorded(index):
    torch.library.opcheck(*list(calls())[index])


def test_shapes_that_were_seen_before_in_another_layout():
    for _ in range(2):
        x = torch.rand(6, 4)
        for view in (x, x.t(), x[:, ::2], x[:1].expand(6, 4), torch.rand(25)[1:].view(6, 4)):
            torch.testing.assert_close(ts.cumsum(view, 1), view.cumsum(1))
            torch.testing.assert_close(ts.cumsum(view, 0), view.cumsum(0))
            torch.testing.assert_close(ts.linear_recurrence(view, view), wanted(view, view))
