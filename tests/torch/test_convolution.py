"""The short causal convolution: its definition, its state, packed sequences."""

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402


def by_definition(x, weight, bias, before, numbers):
    """Sum up step by step in float64."""
    x, weight, before = x.double(), weight.double(), before.double()
    width, out = weight.shape[1], torch.zeros_like(x)
    padded = torch.cat((before, x), 2)
    for t in range(x.shape[2]):
        for j in range(width):
            step = t - (width - 1) + j  # below 0 it is in the state
            same = numbers is None or (step >= 0 and numbers[:, step] == numbers[:, t])
            mask = same if isinstance(same, bool) else same[:, None]
            out[..., t] += torch.where(torch.as_tensor(mask), padded[..., t + j] * weight[:, j], 0)
    return out if bias is None else out + bias.double()[:, None]


def inputs(length, width, dtype=torch.float32):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 3, length), torch.randn(3, width), torch.randn(3)
    return tuple(t.to(dtype) for t in (x, weight, bias, torch.randn(2, 3, width - 1)))


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("length", [0, 1, 2, 9])
def test_values_and_states(length, width):
    x, weight, bias, before = inputs(length, width)
    got, last = ts.causal_conv1d(x, weight, bias, before, return_last=True)
    torch.testing.assert_close(got.double(), by_definition(x, weight, bias, before, None))
    assert torch.equal(last, torch.cat((before, x), 2)[..., length:])
    torch.testing.assert_close(
        ts.causal_conv1d(x, weight, activation="silu").double(),
        torch.nn.functional.silu(by_definition(x, weight, None, torch.zeros_like(before), None)),
    )


@pytest.mark.parametrize("width", [1, 2, 4])
def test_packed_sequences_do_not_touch(width):
    """Neither a NaN nor its gradient goes into another sequence; padding is 0."""
    x, weight, bias, before = inputs(9, width)
    numbers = torch.tensor([[4, 4, 4, 0, 7, 7, 7, 7, -1], [1, 1, 1, 1, 1, 1, 1, 2, 2]])
    x[0, :, 2] = float("nan")
    x[1, :, 6] = float("inf")
    want = by_definition(x, weight, bias, torch.zeros_like(before), numbers)
    want[0, :, 8] = 0
    x.requires_grad_()
    got = ts.causal_conv1d(x, weight, bias, seq_idx=numbers)
    torch.testing.assert_close(got.double(), want, equal_nan=True)
    (grad,) = torch.autograd.grad(got[0, :, 3:].sum() + got[1, :, 7:].sum(), x)
    assert torch.all(grad[0, :, :3] == 0)
    assert torch.all(grad[1, :, :7] == 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    x, weight, bias, before = inputs(9, 4, dtype)
    got = ts.causal_conv1d(x, weight, bias)
    want = by_definition(x, weight, bias, torch.zeros_like(before), None)
    assert got.dtype == dtype
    torch.testing.assert_close(got, want.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "relu"}, '"silu", "swish" or no activation'),
        ({"weight": torch.zeros(3, 0)}, "a weight for each channel and step"),
        ({"weight": torch.zeros(4, 2)}, r"weight of shape \(3, 2\)"),
        ({"initial_state": torch.zeros(2, 3, 5)}, "initial_state of 3 steps"),
        ({"seq_idx": torch.zeros(2, 9)}, "integers in seq_idx"),
        ({"seq_idx": torch.zeros(2, 9).long(), "return_last": True}, "seq_idx without states"),
    ],
)
def test_errors(options, message):
    x, weight, _, _ = inputs(9, 4)
    with pytest.raises(ValueError, match=message):
        ts.causal_conv1d(**{"x": x, "weight": weight, **options})
