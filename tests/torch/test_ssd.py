"""Mamba-2's recurrence against its equation, step after step."""

import inspect
import itertools

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402
from tests.support.derivatives import check_derivatives  # noqa: E402
from tests.support.tiers import covering  # noqa: E402


def inputs(length=5, groups=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape):
        made = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return made.to(dtype).requires_grad_()

    batch, heads, features, states = 2, 2, 3, 2
    return {
        "x": leaf(batch, length, heads, features),
        "dt": leaf(batch, length, heads),
        "A": (-leaf(heads).detach().abs()).requires_grad_(),
        "B": leaf(batch, length, groups, states),
        "C": leaf(batch, length, groups, states),
        "D": leaf(heads),
        "z": leaf(batch, length, heads, features),
        "dt_bias": leaf(heads),
        "h0": leaf(batch, heads, features, states),
    }


def loop(x, dt, A, B, C, D=None, z=None, dt_bias=None, h0=None, reset=None, reverse=False):
    share = x.shape[2] // B.shape[2]
    B, C = (t.repeat_interleave(share, 2) for t in (B, C))
    d = F.softplus(dt if dt_bias is None else dt + dt_bias)
    S = x.new_zeros(*x.shape[::2], x.shape[3], B.shape[3]) if h0 is None else h0
    out = [None] * x.shape[1]
    for t in range(x.shape[1])[:: -1 if reverse else 1]:
        if reset is not None:
            S = S * ~reset[:, t, None, None, None]
        added = (d[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        S = (d[:, t] * A).exp()[..., None, None] * S + added
        out[t] = (S * C[:, t, :, None]).sum(-1)
    y = torch.stack(out, 1)
    if D is not None:
        y = y + x * (D if D.dim() == 2 else D[:, None])
    return (y if z is None else y * F.silu(z)), S


def run(given, **options):
    return ts.ssd(**given, dt_softplus=True, return_last=True, **options)


@pytest.mark.parametrize(
    ("groups", "full", "reverse"),
    covering(
        itertools.product([1, 2], [True, False], [False, True]),
        lambda c: dict(zip(("groups", "full", "reverse"), c, strict=True)),
    ),
)
def test_values_and_derivatives(groups, full, reverse):
    given = inputs(3, groups)
    reset = torch.tensor([[False, True, False], [False, False, True]]) if full else None
    if not full:
        given = {n: given[n] for n in ("x", "dt", "A", "B", "C")}
    names, leaves = list(given), tuple(given.values())

    def call(*tensors):
        return run(dict(zip(names, tensors, strict=True)), reset=reset, reverse=reverse)

    torch.testing.assert_close(call(*leaves), loop(**given, reset=reset, reverse=reverse))
    check_derivatives(call, leaves, second=groups == 2)


def test_pieces_and_packed_rows():
    given = {n: t.detach() for n, t in inputs(40).items()}
    whole, last = run(given)
    varying = ("x", "dt", "B", "C", "z")
    head = {n: t[:, :15] if n in varying else t for n, t in given.items()}
    tail = {n: t[:, 15:] if n in varying else t for n, t in given.items()}
    first, state = run(head)
    rest, end = run({**tail, "h0": state})
    torch.testing.assert_close((torch.cat((first, rest), 1), end), (whole, last))
    row = {n: t[:1] if n in (*varying, "h0") else t for n, t in given.items()}
    del row["h0"]
    offsets = [0, 0, 7, 33, 33, 40]
    packed, _ = run(row, cu_seqlens=torch.tensor(offsets))
    index = torch.arange(40).unsqueeze(0)
    seq_idx = (index >= 7).int() + (index >= 33).int()
    by_index = ts.compat.mamba_chunk_scan_combined(
        *(row[n] for n in ("x", "dt", "A", "B", "C")),
        16,
        **{n: row[n] for n in ("D", "z", "dt_bias")},
        seq_idx=seq_idx,
        dt_softplus=True,
    )
    for start, stop in ((0, 7), (7, 33), (33, 40)):
        part = {n: t[:, start:stop] if n in varying else t for n, t in row.items()}
        torch.testing.assert_close(packed[:, start:stop], run(part)[0])
    torch.testing.assert_close(by_index, packed)


def test_states_of_packed_sequences():
    """Each as if its sequence were alone; the initial state is that of the first."""
    given = {n: t.detach() for n, t in inputs(40, groups=2).items()}
    varying = ("x", "dt", "B", "C", "z")
    row = {n: t[:1] if n in (*varying, "h0") else t for n, t in given.items()}
    offsets, leaves = [0, 7, 33, 33, 40], [row[n].requires_grad_() for n in row]

    def packed(**options):
        named = {n: t for n, t in row.items() if n != "h0"}
        cu_seqlens = torch.tensor(offsets, dtype=torch.int32)
        return ts.compat.mamba_chunk_scan_combined(
            **named,
            chunk_size=16,
            initial_states=row["h0"],
            cu_seqlens=cu_seqlens,
            dt_softplus=True,
            return_varlen_states=True,
            **options,
        )

    out, last, states = packed(return_final_states=True)
    want_out, want_states = [], []
    for start, stop in itertools.pairwise(offsets):
        part = {n: t[:, start:stop] if n in varying else t for n, t in row.items()}
        part["h0"] = row["h0"] if start == 0 else torch.zeros_like(row["h0"])
        found = run(part)
        want_out.append(found[0])
        want_states.append(found[1])
    want_out, want_states = torch.cat(want_out, 1), torch.cat(want_states)
    torch.testing.assert_close((out, states), (want_out, want_states))
    torch.testing.assert_close(last[0], states[-1])
    upstream = torch.randn_like(states)
    grads = [
        torch.autograd.grad(s, leaves, upstream, allow_unused=True, materialize_grads=True)
        for s in (states, want_states)
    ]
    torch.testing.assert_close(*grads)
    index = torch.arange(40).unsqueeze(0)
    seq_idx = 1 + (index >= 7).int() + (index >= 33).int()  # no number 0: no initial state
    without = packed(seq_idx=seq_idx)[1]
    row["h0"] = torch.zeros_like(row["h0"])
    torch.testing.assert_close(without, packed()[1])
    plain = [row[n] for n in ("x", "dt", "A", "B", "C")]
    with pytest.raises(ValueError, match="expected cu_seqlens with return_varlen_states"):
        ts.compat.mamba_chunk_scan_combined(*plain, 16, return_varlen_states=True)


def test_states_of_packed_sequences_in_a_traced_program():
    """What is traced calls an operator; it and its derivative are those of the loop."""
    offsets = torch.tensor([0, 7, 33, 33, 40], dtype=torch.int32)
    given = {n: t.detach() for n, t in inputs(40, groups=2).items()}
    first = given.pop("h0")[:1].requires_grad_()
    row = {n: t[:1] if n in ("x", "dt", "B", "C", "z") else t for n, t in given.items()}
    leaves = [first, *(t.requires_grad_() for t in row.values())]

    def packed(first, offsets, *tensors):
        return ts.compat.mamba_chunk_scan_combined(
            **dict(zip(row, tensors, strict=True)),
            chunk_size=16,
            initial_states=first,
            cu_seqlens=offsets,
            dt_softplus=True,
            return_varlen_states=True,
        )

    torch._dynamo.reset()
    traced = torch.compile(packed, fullgraph=True, backend="aot_eager")
    results = [call(first, offsets, *row.values()) for call in (traced, packed)]
    torch.testing.assert_close(*results)
    upstream = torch.randn_like(results[0][1])
    grads = [
        torch.autograd.grad(states, leaves, upstream, allow_unused=True, materialize_grads=True)
        for _, states in results
    ]
    torch.testing.assert_close(*grads)
    other = torch.tensor([0, 40, 40, 40, 40], dtype=torch.int32)  # no number is baked in
    torch.testing.assert_close(
        traced(first, other, *row.values()), packed(first, other, *row.values())
    )
    B = row["B"].detach().requires_grad_()
    gates = -torch.rand(row["dt"].shape, dtype=B.dtype)
    mask = (torch.arange(40) == 20)[None].to(torch.int8)
    operands = (gates.requires_grad_(), row["x"].detach().requires_grad_(), B, first, mask, offsets)
    torch.library.opcheck(torch.ops.tvm_scan.sequence_states.default, operands)
    torch.library.opcheck(
        torch.ops.tvm_scan.sequence_states.default, (*operands[:3], None, None, other)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_a_skip_of_every_feature(dtype):
    given = {n: t.detach() for n, t in inputs(100, dtype=dtype).items()}
    given["D"] = torch.randn(2, 3, dtype=dtype)
    out, last = run(given)
    want, state = loop(**{n: t.double() for n, t in given.items()})
    assert (out.dtype, last.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(out.double(), want, rtol=4 * torch.finfo(dtype).eps, atol=2e-3)
    torch.testing.assert_close(last.double(), state, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [0, 1])
def test_short(length):
    given = inputs(length)
    out, last = run(given)
    (out.sum() + last.sum()).backward()
    assert out.shape == (2, length, 2, 3)
    assert all(t.grad is not None for t in given.values())


def test_limits_of_the_step():
    given = {n: t.detach() for n, t in inputs(9).items() if n in ("x", "dt", "A", "B", "C")}
    got = ts.ssd(**given, dt_softplus=True, dt_limit=(0.2, 0.9))
    clamped = F.softplus(given["dt"]).clamp(0.2, 0.9)
    inverse = clamped.expm1().log()
    torch.testing.assert_close(got, loop(**{**given, "dt": inverse})[0])


def test_signature_is_that_of_mamba_ssm():
    names = list(inspect.signature(ts.compat.mamba_chunk_scan_combined).parameters)
    assert names[:6] == ["x", "dt", "A", "B", "C", "chunk_size"]
    assert names[6:] == [
        *("D", "z", "dt_bias", "initial_states", "seq_idx", "cu_seqlens"),
        *("dt_softplus", "dt_limit", "return_final_states", "return_varlen_states"),
    ]


def test_bad_calls():
    given = {n: t.detach() for n, t in inputs().items()}
    with pytest.raises(ValueError, match=r"expected dt of shape \(2, 5, 2\), got"):
        run({**given, "dt": given["dt"][..., :1]})
    with pytest.raises(ValueError, match="groups that divide the 2 heads"):
        run({**given, "B": torch.zeros(2, 5, 3, 2), "C": torch.zeros(2, 5, 3, 2)})
    with pytest.raises(ValueError, match=r"reset of shape \(2, 5\)"):
        run(given, reset=torch.zeros(2, 4, dtype=torch.bool))
