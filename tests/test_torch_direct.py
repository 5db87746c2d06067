"""Calls without a detour give what the general way gives, and leave it where they must."""

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tvm_scan import ScanError, library  # noqa: E402


@pytest.fixture(scope="module")
def scan():
    return ts.compile(library.linear_recurrence(None, None))


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
