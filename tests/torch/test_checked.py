"""Checks of tensors by the signature of a function."""

from typing import Annotated

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from tvm_scan.torch.declare.checked import checked  # noqa: E402


@checked
def function(
    x: Annotated[Tensor, "batch length"],
    gate: Annotated[Tensor, "length | batch length"],
    y: Annotated[Tensor, "complex ..."],
    bound: Annotated[Tensor | float, "length"] = 0.5,
    *,
    reset: Annotated[Tensor | None, "bool batch"] = None,
    offsets: Annotated[Tensor | None, "integers sequences+1"] = None,
    flag: bool = False,
) -> tuple:
    """Return what it was given."""
    return x, gate, y, bound, reset, offsets, flag


X, Y = torch.rand(2, 3), torch.rand(5, dtype=torch.complex64)


def test_what_fits_goes_through_unchanged():
    for gate in (X[0], X):
        given = (X, gate, Y, 1.0, X[:, 0] > 0, torch.arange(4), True)
        named = dict(zip(("reset", "offsets", "flag"), given[4:], strict=True))
        assert all(a is b for a, b in zip(function(*given[:4], **named), given, strict=True))
    assert function(X, gate=X, y=X)[3:] == (0.5, None, None, False)
    assert function(X, X, Y, X[0])[3].shape == (3,)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": X[0]}, r"x with 2 axes, got \(3,\); reshape it"),
        ({"x": X.int()}, "floats in x, got torch.int32; convert it"),
        ({"x": None}, "x to be a tensor, got None; pass one"),
        ({"gate": X[:, 0]}, r"gate of shape \(3,\), got \(2,\)"),
        ({"gate": X[:1]}, r"gate of shape \(2, 3\), got \(1, 3\)"),
        ({"gate": X[None]}, r"gate with 1 or 2 axes, got \(1, 2, 3\)"),
        ({"y": Y.real.int()}, "floats or complex in y, got torch.int32"),
        ({"bound": None}, "bound as a tensor or a number, got None"),
        ({"bound": X[0, :2]}, r"bound of shape \(3,\), got \(2,\)"),
        ({"reset": X[:, 0]}, "a bool reset, got torch.float32"),
        ({"reset": 1}, "reset to be a tensor, got int"),
        ({"offsets": X[0]}, "integers in offsets, got torch.float32"),
        ({"y": Y.to("meta")}, "all tensors on one device, got x on cpu and y on meta"),
    ],
)
def test_what_does_not_fit_is_named(change, said):
    with pytest.raises(ValueError, match=f"tvm_scan.torch.function: expected {said}"):
        function(**{"x": X, "gate": X, "y": Y, **change})


def test_wrong_calls_are_those_of_python():
    for given, named in (((X, X), {}), ((X, X, Y), {"other": 1}), ((X, X, Y, 1.0, None), {})):
        with pytest.raises(TypeError, match=r"function\(\)"):
            function(*given, **named)
