"""What an operator has without saying so: a fake kernel, a rule of vmap, saved tensors."""

from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

from tests.support.derivatives import check_derivatives  # noqa: E402
from tvm_scan.torch.declare.dispatch import NAMESPACE  # noqa: E402
from tvm_scan.torch.declare.mapped import one_by_one  # noqa: E402
from tvm_scan.torch.declare.operator import operator  # noqa: E402


@operator(name="test_scaled", like="x w")
def scaled(w: Tensor, x: Tensor, shift: Tensor | None, factor: float) -> tuple[Tensor, Tensor]:
    y = factor * w * x
    return y if shift is None else y + shift, w.clone()


def scaled_adjoint(ctx, dy, dw):
    w, x, y, _ = ctx.saved_tensors
    assert y.shape == x.shape
    return ctx.factor * x * dy + dw, ctx.factor * w * dy


scaled.gradient(scaled_adjoint, "w x results")


class Pair(NamedTuple):
    left: Tensor
    right: Tensor | None


@operator(name="test_bundled", mapped=one_by_one)
def bundled(pair: Pair, others: list[Tensor], sign: int) -> list[Tensor]:
    left = pair.left if pair.right is None else pair.left + pair.right
    return [sign * left * t for t in others]


@bundled.fake
def _(pair: Pair, others: list[Tensor], sign: int) -> list[Tensor]:
    return [torch.empty_like(t) for t in others]


def bundled_adjoint(ctx, grads):
    left, right, *others = ctx.saved_tensors
    whole = left if right is None else left + right
    shared = sum(ctx.sign * g * t for g, t in zip(grads, others, strict=True))
    given = [ctx.sign * g * whole for g in grads]
    return shared, None if right is None else shared, given


bundled.gradient(bundled_adjoint, "left right others")


def draw(*shape):
    return torch.rand(shape, dtype=torch.float64, requires_grad=True)


def test_results_are_like_the_arguments_that_are_named():
    w, x = (torch.empty(2, 3, device="meta").mT for _ in range(2))
    y, kept = scaled(w, x.double(), None, 2.0)
    assert (y.dtype, kept.dtype, y.device.type) == (torch.float64, torch.float32, "meta")
    assert y.is_contiguous()
    with pytest.raises(ValueError, match="test_scaled: expected all tensors on one device, got"):
        scaled(w, torch.ones(3, 2), None, 2.0)


@pytest.mark.parametrize("shift", [None, 1.0])
def test_a_derivative_is_one_declaration(shift):
    w, x = draw(2, 3), draw(2, 3)
    shift = None if shift is None else torch.full((2, 3), shift, dtype=torch.float64)
    check_derivatives(lambda w, x: scaled(w, x, shift, 3.0), (w, x), second=False)
    want = torch.autograd.grad(scaled(w, x, shift, 3.0)[0].sum(), (w, x))
    plain = w.detach(), x.detach()
    got = torch.func.grad(lambda w, x: scaled(w, x, shift, 3.0)[0].sum(), (0, 1))(*plain)
    for g, e in zip(got, want, strict=True):
        torch.testing.assert_close(g, e)


def test_mapped_axes_are_folded_into_the_first():
    w, x = draw(3, 4, 2).detach(), draw(3, 2).detach()
    got = torch.vmap(lambda w: scaled(w, x, None, 2.0)[0], in_dims=1, out_dims=1)(w)
    torch.testing.assert_close(got, 2 * w * x[:, None])
    both = torch.vmap(torch.func.grad(lambda w, x: scaled(w, x, None, 2.0)[0].sum()))
    torch.testing.assert_close(both(w[:, :, 0], w[:, :, 1]), 2 * w[:, :, 1])


@pytest.mark.parametrize("both", [False, True])
def test_bundles_and_lists(both):
    pair, others = Pair(draw(3), draw(3) if both else None), [draw(3), draw(3)]
    assert str(getattr(torch.ops, NAMESPACE).test_bundled.default._schema) == (
        f"{NAMESPACE}::test_bundled(Tensor left, Tensor? right, Tensor[] others, SymInt sign) "
        "-> Tensor[]"
    )
    whole = pair.left + (pair.right if both else 0)
    for got, other in zip(bundled(*pair, others, -1), others, strict=True):
        torch.testing.assert_close(got, -whole * other)
    inputs = [t for t in (*pair, *others) if t is not None]

    def call(*tensors):
        left, right, *rest = tensors if both else (tensors[0], None, *tensors[1:])
        return sum(t.sum() * (i + 1) for i, t in enumerate(bundled(left, right, rest, -1)))

    want = torch.autograd.grad(call(*inputs), inputs)
    plain = tuple(t.detach() for t in inputs)
    got = torch.func.grad(call, tuple(range(len(inputs))))(*plain)
    rows = tuple(torch.stack([t, 2 * t]) for t in plain)
    mapped = torch.vmap(torch.func.grad(call, tuple(range(len(inputs)))))(*rows)
    for g, e, m in zip(got, want, mapped, strict=True):
        torch.testing.assert_close(g, e)
        torch.testing.assert_close(m[0], e)
        torch.testing.assert_close(m[1], 2 * e)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_there_is_no_forward_mode():
    message = "test_scaled: expected tensors without tangents"
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=message):
        scaled(forward_ad.make_dual(torch.ones(2), torch.ones(2)), torch.ones(2), None, 2.0)
