"""Import from torch.export: dtypes that TVM's importer changes, and branches."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402

from tests.relax.test_torch import check, families  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
PRODUCTS = {
    "mm": lambda a, b: a @ b,
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "mv": lambda a, b: a @ b[:, 0],
    "linear": lambda a, b: torch.nn.functional.linear(a, b.T, b[0]),
    "addmm": lambda a, b: torch.addmm(b[0], a, b, beta=0.5, alpha=2),
    "baddbmm": lambda a, b: torch.baddbmm(b[0], a[None], b[None], beta=0, alpha=-1),
}


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-13), ("float16", 4e-3)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_of_their_own_dtype(name, dtype, rtol):
    torch.manual_seed(0)
    a, b = (torch.randn(s).to(getattr(torch, dtype)) for s in ((3, 4), (4, 5)))
    check(PRODUCTS[name], a, b, rtol=rtol, atol=rtol)


def test_a_product_leaves_out_what_has_no_factor():
    a, b = torch.rand(3, 4), torch.rand(4, 5)
    check(lambda c, a, b: torch.addmm(c, a, b, beta=0), torch.full((3, 5), torch.nan), a, b)


def test_a_product_of_integers():
    check(PRODUCTS["mm"], torch.arange(12).reshape(3, 4), torch.arange(20).reshape(4, 5))


CONVOLUTIONS = {
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 3, 1, 2), (2, 4, 7), (6, 2, 3)),
    "conv1d of one line": (
        lambda x, w, b: F.conv1d(x[0], w, b, padding="same"),
        (1, 3, 7),
        (6, 3, 3),
    ),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, None, padding=1), (2, 4, 5, 6), (6, 4, 3, 3)),
    "transposed": (lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 1, 1), (2, 4, 7), (4, 6, 3)),
}


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-13), ("float16", 4e-3)])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_of_their_own_dtype(name, dtype, rtol):
    torch.manual_seed(0)
    function, *shapes = CONVOLUTIONS[name]
    arrays = [torch.randn(s).to(getattr(torch, dtype)) for s in (*shapes, (6,))]
    check(function, *arrays, rtol=rtol, atol=rtol)


def test_a_step_in_double():
    def model(h, x, w):
        return scan(lambda h, x: (torch.tanh(h @ w + x), h.sum(-1)), h, x)

    h, x, w = (torch.randn(s, dtype=torch.float64) for s in ((2, 3), (8, 2, 3), (3, 3)))
    check(model, h, x, w / 3, rtol=1e-12, atol=1e-12)


def test_branches_use_our_converters():
    def model(h, x):
        return torch.cond(
            x.sum() > 0, lambda h, x: h * 2 + x.cumsum(0)[-1], lambda h, x: h - 1, (h, x)
        )

    for sign in (-1, 1):
        mod = check(model, torch.rand(3), sign * torch.rand(8, 3))
    assert "cond_true_branch" in mod.script()


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extrema_of_truth_values_and_bfloat16(name):
    operator = getattr(torch, name)
    torch.manual_seed(0)
    mod = check(lambda x: operator(x, 1), torch.randn(3, 9) > 0)
    assert families(mod) != [[]]
    x = torch.randn(3, 9).bfloat16()
    x[1, 3] = torch.nan
    # NumPy has no bfloat16: it comes in as float32.

    def model(x):
        values, where = operator(x.bfloat16(), 1)
        return values.float(), where

    check(model, x.float(), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4)])
@pytest.mark.parametrize("name", ["cumsum", "cummax", "logcumsumexp"])
def test_cumulative_operators_in_a_step(name, shape):
    def model(h, x):
        def step(h, x):
            y = getattr(torch, name)(x, 1)
            return h + (y if isinstance(y, torch.Tensor) else y[0]), h * 2

        return scan(step, h, x)

    check(model, torch.randn(shape), torch.randn(5, *shape))


def test_a_scan_in_a_step_starts_from_what_the_step_computes():
    def inner(c, x):
        c = c * 0.5 + x
        return c, c.clone()

    def step(c, xs):
        last, ys = scan(inner, torch.tanh(c), xs * 2)
        return last * 0.5 + ys[-1], torch.sin(ys)

    check(lambda h, x: scan(step, h, x), torch.randn(3), torch.randn(4, 5, 3))
