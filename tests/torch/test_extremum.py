"""Running extrema in one kernel: values, positions and gradients, bit by bit against torch."""

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.support.derivatives import check_derivatives  # noqa: E402
from tests.support.tiers import longer, paired  # noqa: E402

SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-45, 3.0, -3.0]
LENGTHS = (1, 17, 300, 1031)
DTYPES = tuple(
    getattr(torch, n) for n in ["float32", "bfloat16", "float16", "float64", "int32", "int64"]
)
#: Of several tiles; where the two other frames are walked, too.
BEYOND = (1, 1031)
WALKS = (("cummax", False), ("cummin", True), ("cummin", False), ("cummax", True))


def values_of(shape, dtype, seed=0):
    """Few different values, so that ties are many; NaN rare, since it ends a row."""
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(-4, 5, shape, generator=generator).to(dtype)
    table = torch.tensor([v for v in SPECIAL if v == v] + [2.5, -7.0], dtype=torch.float64)
    x = table[torch.randint(len(table), shape, generator=generator)]
    nan = torch.rand(shape, generator=generator) < 1 / 200
    return x.masked_fill(nan, float("nan")).to(dtype)


def torch_extremum(name, x, dim, reverse):
    walked = x.flip(dim) if reverse else x
    values, indices = getattr(torch, name)(walked, dim)
    if reverse:
        values, indices = values.flip(dim), (x.shape[dim] - 1 - indices).flip(dim)
    return values, indices


@pytest.mark.parametrize(("dtype", "walk"), paired(DTYPES, WALKS))
def test_bits(dtype, walk):
    """Equal, with the sign of zeros; rows are enough for threads and vectors to take part."""
    name, reverse = walk
    for length in LENGTHS:
        # A frame of each kind is a kernel of its own, for the plan of its length.
        others = [((2, length, 5), 1), ((length,), 0)]
        for shape, dim in (((37, length), 1), *longer(others * (length in BEYOND), others)):
            x = values_of(shape, dtype, seed=length)
            got = getattr(ts, name)(x, dim, reverse=reverse)
            values, indices = torch_extremum(name, x, dim, reverse)
            assert torch.equal(got.indices, indices), (shape, dim)
            number = ~values.isnan()
            assert torch.equal(got.values.isnan(), ~number)
            assert torch.equal(got.values[number], values[number]), (shape, dim)
            signs = torch.signbit(got.values[number]) == torch.signbit(values[number])
            assert bool(signs.all()), (shape, dim)


@pytest.mark.parametrize(
    ("dtype", "reverse"), paired([torch.float32, torch.float64, torch.bfloat16], [False, True])
)
def test_gradients_go_where_the_indices_say(dtype, reverse):
    for length in LENGTHS:
        x = values_of((37, length), dtype).requires_grad_()
        values, indices = ts.cummax(x, 1, reverse=reverse)
        assert not indices.requires_grad
        upstream = torch.randint(-3, 4, x.shape).to(dtype)  # sums are exact
        (got,) = torch.autograd.grad(values, x, upstream)
        want = torch.zeros_like(x).scatter_add(1, indices, upstream)
        assert torch.equal(got, want)


def test_a_gradient_that_is_no_number_stays_with_its_element():
    x = torch.tensor([[1.0, 0.0, 2.0, 1.0, 3.0, 0.0]], requires_grad=True)
    upstream = torch.tensor([[1.0, 2.0, float("nan"), 1.0, float("inf"), 5.0]])
    (got,) = torch.autograd.grad(ts.cummax(x, 1).values, x, upstream)
    assert got[0, 0] == 3 and got[0, 2].isnan() and got[0, 4] == float("inf")
    assert got[0, [1, 3, 5]].tolist() == [0, 0, 0]


# torch's own use of what it has deprecated, on the way into forward mode
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_second_derivatives_and_forward_mode():
    x = torch.randn(3, 40, dtype=torch.float64, requires_grad=True)
    for reverse in (False, True):
        call = lambda x, r=reverse: ts.cummin(x, 1, reverse=r).values ** 2  # noqa: E731
        check_derivatives(call, x)
        tangent = torch.randn_like(x)
        _, got = torch.func.jvp(call, (x,), (tangent,))
        want = torch.func.jvp(lambda x, r=reverse: _by_torch(x, r), (x,), (tangent,))[1]
        torch.testing.assert_close(got, want)


def _by_torch(x, reverse):
    indices = torch_extremum("cummin", x, 1, reverse)[1]
    return x.gather(1, indices) ** 2
