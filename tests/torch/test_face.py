"""Compiled recurrences on torch tensors: no copies, and no misuse that goes unnoticed."""

from operator import attrgetter

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch  # noqa: E402
from tvm_scan import ScanError, library  # noqa: E402

ROWS, LENGTH = 3, 300


@pytest.fixture(scope="module")
def linear():
    return tvm_scan.torch.compile_primfunc(library.linear_recurrence(ROWS, LENGTH))


@pytest.fixture(scope="module")
def symbolic():
    return tvm_scan.torch.compile_primfunc(library.linear_recurrence(None, None))


def tensors(rows=ROWS, length=LENGTH):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, rows, length, generator=generator).unbind(0)


def reference(a, x):
    h, _ = library.linear_recurrence_reference(a.double().numpy(), x.double().numpy())
    return torch.from_numpy(h)


def close(got, want):
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_returns_outputs_that_were_left_out(linear):
    a, x = tensors()
    close(linear(a, x), reference(a, x))


def test_writes_into_given_outputs_without_a_copy(linear):
    a, x = tensors()
    h = torch.empty(ROWS, LENGTH)
    pointer = h.data_ptr()
    assert linear(a, x, h) is None
    assert h.data_ptr() == pointer
    close(h, reference(a, x))


def test_state_parameters_are_not_optional():
    scan = tvm_scan.torch.compile_primfunc(
        library.linear_recurrence(ROWS, LENGTH, final_state=True)
    )
    a, x = tensors()
    h, last = scan(a, x)
    close(h, reference(a, x))
    close(last, reference(a, x)[:, -1])


@pytest.mark.parametrize("offset", [1, 2, 3, 5])
def test_misaligned_views(symbolic, offset):
    flat = torch.rand(2 * 1000 + 64)
    a, x = flat[offset:1001].view(1, -1)[:, :900], flat[1001 + offset :][:900].view(1, -1)
    out = torch.zeros(1000)[offset : offset + 900].view(1, -1)
    symbolic(a, x, out)
    close(out, reference(a.contiguous(), x))


def test_strided_inputs_and_outputs(symbolic):
    a, x = (t.t() for t in tensors(40, 7))
    out = torch.zeros(40, 7).t()
    symbolic(a, x, out)
    close(out, reference(a.contiguous(), x.contiguous()))


def test_expanded_input(symbolic):
    gate = torch.tensor([[0.5]]).expand(4, 50)
    x = torch.rand(4, 50)
    close(symbolic(gate, x), reference(gate.contiguous(), x))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1)])
def test_zero_and_one(symbolic, shape):
    a, x = torch.rand(2, *shape).unbind(0)
    got = symbolic(a, x)
    assert got.shape == shape
    close(got, reference(a, x))


def test_wrong_number(linear):
    with pytest.raises(ScanError, match=r"expected 3 tensors \(A, X, H\) or 2 \(A, X\), got 1"):
        linear(torch.rand(ROWS, LENGTH))


def test_wrong_dtype(linear):
    a, x = tensors()
    with pytest.raises(ScanError, match="expected float32 for A, got float64"):
        linear(a.double(), x)


def test_wrong_shape(linear):
    a, x = tensors()
    with pytest.raises(ScanError, match="expected 300 in dimension 1 for X"):
        linear(a, x[:, :-1])
    with pytest.raises(ScanError, match="expected 2 dimensions for X"):
        linear(a, x[0])


def test_shapes_that_disagree(symbolic):
    with pytest.raises(ScanError, match="expected 5 in dimension 1 for X"):
        symbolic(torch.rand(2, 5), torch.rand(2, 6))


def test_wrong_device(linear):
    for place, name in enumerate("AXH"):
        given = [*tensors(), torch.empty(ROWS, LENGTH)]
        given[place] = given[place].to("meta")
        with pytest.raises(ScanError, match=f"expected a tensor on cpu for {name}, got meta"):
            linear(*given)
    with pytest.raises(ScanError, match="expected a tensor on cpu for A, got meta"):
        linear(*(t.to("meta") for t in tensors()))


def test_not_a_tensor(linear):
    a, _ = tensors()
    with pytest.raises(ScanError, match="expected a torch tensor for X, got ndarray"):
        linear(a, np.zeros((ROWS, LENGTH), "float32"))


def test_gradients_are_refused_not_lost(linear):
    a, x = tensors()
    a.requires_grad_()
    with pytest.raises(ScanError, match="this function has no gradient"):
        linear(a, x)
    with torch.no_grad():
        close(linear(a, x), reference(a.detach(), x))


def test_overlapping_output(linear):
    a, x = tensors()
    with pytest.raises(ScanError, match="expected H and X in separate memory"):
        linear(a, x, x)


def test_expanded_output(linear):
    a, x = tensors()
    out = torch.zeros(1, LENGTH).expand(ROWS, LENGTH)
    with pytest.raises(ScanError, match="whose elements share no memory"):
        linear(a, x, out)


def test_refused_function_raises_with_the_reason():
    from tests.relax.test_passes import squared_carry

    with pytest.raises(ScanError, match="unsupported-step"):
        tvm_scan.torch.compile_primfunc(squared_carry)


def test_threads_share_one_object(symbolic):
    from concurrent.futures import ThreadPoolExecutor

    cases = [tensors(2, 100 + i) for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda pair: symbolic(*pair), cases))
    for (a, x), got in zip(cases, results, strict=True):
        close(got, reference(a, x))


@pytest.mark.parametrize(("old", "new"), sorted(tvm_scan.torch._MOVED.items()))
def test_a_name_that_moved(old, new):
    with pytest.warns(DeprecationWarning, match=rf"tvm_scan.torch.{old} is now .*{new}$"):
        found = getattr(tvm_scan.torch, old)
    assert found is attrgetter(new)(tvm_scan.torch)
    assert old not in dir(tvm_scan.torch)
