"""DeltaProduct against its equations: several steps of the delta rule for each token."""

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402

HEADS, VALUE_HEADS, KEYS, VALUES = 1, 2, 3, 4


def inputs(length, count, gated=True):
    """Arguments in float64, two rows."""
    torch.manual_seed(0)

    def draw(*shape):
        return torch.randn(2, *shape, dtype=torch.float64)

    steps = length * count
    k = torch.nn.functional.normalize(draw(steps, HEADS, KEYS), dim=-1)
    return {
        "q": draw(length, HEADS, KEYS),
        "k": k,
        "v": draw(steps, VALUE_HEADS, VALUES),
        "g": -draw(length, VALUE_HEADS).abs() if gated else None,
        "beta": 2 * torch.rand(2, steps, VALUE_HEADS, dtype=torch.float64),
        "num_householder": count,
        "initial_state": draw(VALUE_HEADS, KEYS, VALUES),
    }


def by_definition(q, k, v, g, beta, num_householder, initial_state):
    """Token by token, and each of its steps."""
    out = v.new_zeros(2, q.shape[1], VALUE_HEADS, VALUES)
    last = initial_state.clone()
    for row in range(2):
        for h in range(VALUE_HEADS):
            state = initial_state[row, h]
            for t in range(q.shape[1]):
                state = state if g is None else g[row, t, h].exp() * state
                for s in range(t * num_householder, (t + 1) * num_householder):
                    key = k[row, s, 0]
                    missing = v[row, s, h] - state.mT @ key
                    state = state + key.outer(beta[row, s, h] * missing)
                out[row, t, h] = state.mT @ q[row, t, 0] * KEYS**-0.5
            last[row, h] = state
    return out, last


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("length", "count"), [(5, 1), (7, 3), (1, 2), (0, 2)])
def test_values(length, count, gated):
    given = inputs(length, count, gated)
    got = ts.gated_delta_product(**given, output_final_state=True)
    for part, want in zip(got, by_definition(**given), strict=True):
        torch.testing.assert_close(part, want)


def test_gradients():
    given = inputs(3, 2)
    names = [n for n, t in given.items() if isinstance(t, torch.Tensor)]
    leaves = [given[n].requires_grad_() for n in names]
    wanted = torch.autograd.grad(by_definition(**given)[0].sin().sum(), leaves)
    found = torch.autograd.grad(ts.gated_delta_product(**given)[0].sin().sum(), leaves)
    for name, got, want in zip(names, found, wanted, strict=True):
        torch.testing.assert_close(got, want, msg=name)


def test_packed_sequences_are_as_they_are_alone():
    given = inputs(9, 2)
    del given["initial_state"]
    row = {n: t[:1] if isinstance(t, torch.Tensor) else t for n, t in given.items()}
    options = {"output_final_state": True}
    out, last = ts.gated_delta_product(**row, cu_seqlens=torch.tensor([0, 4, 4, 9]), **options)
    for number, (start, stop) in enumerate([(0, 4), (4, 4), (4, 9)]):
        part = {
            n: t[:, start:stop] if n in "qg" else t[:, 2 * start : 2 * stop]
            for n, t in row.items()
            if isinstance(t, torch.Tensor)
        }
        alone, state = ts.gated_delta_product(**part, num_householder=2, **options)
        assert torch.equal(out[:, start:stop], alone)
        assert torch.equal(last[number], state[0])


def test_offsets_of_few_bits():
    """Steps have numbers that the dtype of the offsets has not."""
    given = inputs(100, 3)
    del given["initial_state"]
    row = {n: t[:1] if isinstance(t, torch.Tensor) else t for n, t in given.items()}
    ends = torch.tensor([0, 40, 100])
    want, _ = ts.gated_delta_product(**row, cu_seqlens=ends)
    got, _ = ts.gated_delta_product(**row, cu_seqlens=ends.to(torch.uint8))
    assert torch.equal(got, want)


def test_errors():
    given = inputs(4, 2)
    with pytest.raises(
        ValueError, match=r"3 steps for each token in k, v and beta, got \(2, 8, 1, 3\)"
    ):
        ts.gated_delta_product(**{**given, "num_householder": 3})
    with pytest.raises(ValueError, match="num_householder of at least 1, got 0"):
        ts.gated_delta_product(**{**given, "num_householder": 0})
    row = {n: t[:1] if isinstance(t, torch.Tensor) else t for n, t in given.items()}
    # In tokens, as they are given.
    with pytest.raises(
        ValueError,
        match=r"gated_delta_product: expected cu_seqlens rising from 0 to 4, got \[0, 5\]",
    ):
        ts.gated_delta_product(**row, cu_seqlens=torch.tensor([0, 5]))
