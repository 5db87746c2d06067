"""The selective scan in torch: every option, derivatives, mamba-ssm's signature, memory."""

import inspect
import itertools

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.support.derivatives import check_derivatives  # noqa: E402
from tests.support.tiers import covering, one_of, paired  # noqa: E402
from tests.torch.oracles import selective_loop  # noqa: E402
from tvm_scan.torch.ops.chunked import CHUNK  # noqa: E402


def inputs(batch, groups, channels, length, states, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def leaf(*shape):
        return torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()

    sequence = (batch, channels, length)
    return {
        "u": leaf(*sequence),
        "delta": leaf(*sequence),
        "A": (-torch.rand(channels, states, dtype=dtype, generator=generator)).requires_grad_(),
        "B": leaf(batch, groups, states, length),
        "C": leaf(batch, groups, states, length),
        "D": leaf(channels),
        "z": leaf(*sequence),
        "delta_bias": leaf(channels),
        "h0": leaf(batch, channels, states),
    }


def oracle(given, softplus, reset=None, reverse=False):
    named = dict(given)
    bias, h0 = named.pop("delta_bias", None), named.pop("h0", None)
    return selective_loop(
        **named, bias=bias, h0=h0, softplus=softplus, reset=reset, reverse=reverse
    )


@pytest.mark.parametrize(
    ("sizes", "full", "reverse"),
    covering(
        itertools.product(
            [(2, 1, 4, 5, 3), (1, 2, 40, CHUNK * 2 + 3, 3)], (True, False), (False, True)
        ),
        lambda c: dict(zip(("sizes", "full", "reverse"), c, strict=True)),
    ),
    ids=str,
)
def test_values_and_gradients(sizes, full, reverse):
    given = inputs(*sizes)
    reset = None
    if full:
        reset = torch.rand(sizes[0], sizes[3], generator=torch.Generator().manual_seed(1)) < 0.2
    else:
        given = {n: given[n] for n in ["u", "delta", "A", "B", "C"]}
    names = list(given)

    def run(*tensors):
        return ts.selective_scan(
            **dict(zip(names, tensors, strict=True)),
            delta_softplus=full,
            reset=reset,
            reverse=reverse,
            return_last=True,
        )

    got, wanted = run(*given.values()), oracle(given, full, reset, reverse)
    torch.testing.assert_close(got, wanted)
    upstream = [torch.randn_like(t) for t in wanted]
    leaves = list(given.values())
    torch.testing.assert_close(
        torch.autograd.grad(got, leaves, upstream), torch.autograd.grad(wanted, leaves, upstream)
    )
    if sizes[3] < 10:
        check_derivatives(run, leaves)


def test_signature_is_that_of_mamba_ssm():
    parameters = inspect.signature(ts.compat.selective_scan_fn).parameters
    assert [(p.name, p.default) for p in parameters.values()] == [
        *((name, inspect.Parameter.empty) for name in ["u", "delta", "A", "B", "C"]),
        *((name, None) for name in ("D", "z", "delta_bias")),
        ("delta_softplus", False),
        ("return_last_state", False),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    given = inputs(1, 1, 32, 100, 16, torch.float32)
    halves = ("u", "delta", "B", "C", "z")
    cast = {n: t.detach().to(dtype) if n in halves else t.detach() for n, t in given.items()}
    wanted, last = oracle({n: t.double() for n, t in cast.items()}, True)
    h0 = cast.pop("h0")
    out, got = ts.selective_scan(**cast, h0=h0, delta_softplus=True, return_last=True)
    assert (out.dtype, got.dtype) == (dtype, torch.float32)
    # The inputs are exact in the oracle: only float32 steps and the last rounding differ.
    torch.testing.assert_close(out.double(), wanted, rtol=4 * torch.finfo(dtype).eps, atol=2e-3)
    torch.testing.assert_close(got.double(), last, rtol=1e-4, atol=1e-4)


def test_constant_and_shared_projections():
    given = inputs(2, 1, 4, 6, 3)
    given = {n: given[n].detach() for n in ["u", "delta", "A", "B", "C"]}
    shared = {**given, "B": given["B"][:, 0], "C": given["C"][:, 0]}
    torch.testing.assert_close(ts.compat.selective_scan_fn(**shared), oracle(given, False)[0])
    constant = torch.randn(4, 3, dtype=torch.float64)
    repeated = constant[None, :, :, None].expand(2, 4, 3, 6)
    mixed = {**given, "B": constant}
    torch.testing.assert_close(
        ts.compat.selective_scan_fn(**mixed), oracle({**given, "B": repeated}, False)[0]
    )


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize(
    ("kind_B", "kind_C"), [("groups", "constant"), ("constant", "groups"), (3, 2)]
)
def test_projections_of_different_kinds(kind_B, kind_C, is_complex):
    """One constant in time and another with groups, or with another number of groups."""
    given = {n: inputs(2, 1, 6, 5, 3)[n].detach() for n in ["u", "delta", "A"]}
    dtype = torch.complex128 if is_complex else torch.float64
    if is_complex:
        given["A"] = torch.complex(given["A"], torch.randn_like(given["A"]))

    def both(kind):
        """As mamba-ssm takes it, and for every channel and step."""
        if kind == "constant":
            tensor = torch.randn(6, 3, dtype=dtype)
            return tensor, tensor[None, :, :, None].expand(2, 6, 3, 5)
        groups = 2 if kind == "groups" else kind
        tensor = torch.randn(2, groups, 3, 5, dtype=dtype)
        pairs = torch.view_as_real(tensor).flatten(3) if is_complex else tensor
        return pairs, tensor

    (B, every_B), (C, every_C) = both(kind_B), both(kind_C)
    got = ts.compat.selective_scan_fn(**given, B=B, C=C)
    torch.testing.assert_close(got, oracle({**given, "B": every_B, "C": every_C}, False)[0])


@pytest.mark.parametrize(
    ("kind", "reverse"),
    paired(["real", "complex", *one_of(["fixed B", "fixed C"], 0), "fixed complex"], [False, True]),
)
def test_derivatives_over_chunks(kind, reverse):
    """Values, first and second derivatives where a chunk is not made of the usual kernels."""
    length, generator = CHUNK + 3, torch.Generator().manual_seed(2)
    given = inputs(2, 1, 4, length, 3)
    if "complex" in kind:
        dtype = torch.complex128
        for name in ("B", "C", "h0"):
            turned = torch.randn(given[name].shape, dtype=dtype, generator=generator)
            given[name] = turned.requires_grad_()
        given["A"] = torch.complex(given["A"].detach(), torch.randn(4, 3).double())
        given["A"].requires_grad_()
    for name in "BC":
        if kind in (f"fixed {name}", "fixed complex"):
            dtype = given[name].dtype
            fixed = torch.randn(4, 3, dtype=dtype, generator=generator)
            given[name] = fixed.requires_grad_()
    names, leaves = list(given), list(given.values())
    reset = torch.rand(2, length, generator=generator) < 0.1

    def whole(tensor):
        """For every channel and step, as the oracle takes it."""
        fixed = tensor.dim() == 2
        return tensor[None, :, :, None].expand(2, 4, 3, length) if fixed else tensor

    def ours(*tensors):
        named = dict(zip(names, tensors, strict=True))
        for name in "BC":
            if named[name].is_complex() and named[name].dim() == 4:
                named[name] = torch.view_as_real(named[name]).flatten(3)
        options = {"delta_softplus": True, "reset": reset, "reverse": reverse}
        return ts.selective_scan(**named, **options, return_last=True)

    def wanted(*tensors):
        named = dict(zip(names, tensors, strict=True))
        named |= {name: whole(named[name]) for name in "BC"}
        return oracle(named, True, reset, reverse)

    expected = wanted(*leaves)
    torch.testing.assert_close(ours(*leaves), expected)
    upstream = [torch.randn_like(t).requires_grad_() for t in expected]
    weights = [torch.randn_like(t) for t in leaves]
    found = []
    for call in (ours, wanted):
        grads = torch.autograd.grad(call(*leaves), leaves, upstream, create_graph=True)
        found.append((grads, torch.autograd.grad(grads, [*leaves, *upstream], weights)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("is_complex", [False, True])
def test_a_third_derivative_is_an_error(is_complex):
    """As constants second derivatives would silently have none."""
    u = torch.rand(1, 2, 4, requires_grad=True)
    A = torch.rand(2, 3, dtype=torch.complex64 if is_complex else torch.float32)
    y = ts.selective_scan(u, u, -A, A, A).sum()
    for _ in range(2):
        (y,) = (g.sum() for g in torch.autograd.grad(y, u, create_graph=True))
    with pytest.raises(RuntimeError, match="expected a first or second derivative, got a third"):
        torch.autograd.grad(y, u)


def test_no_states_leave_the_skip_connection():
    given = inputs(2, 1, 4, 6, 0)
    got = ts.selective_scan(**given, delta_softplus=True)
    torch.testing.assert_close(got, oracle(given, True)[0])
    leaves = [given["D"], given["z"], given["u"]]
    assert all(g.abs().sum() > 0 for g in torch.autograd.grad(got.sum(), leaves))


def test_packed_sequences_are_those_sequences():
    given = {n: t.detach() for n, t in inputs(1, 1, 4, 40, 3).items()}
    offsets = [0, 7, 7, 33, 40]
    cu_seqlens = torch.tensor(offsets, dtype=torch.int32)
    for reverse in (False, True):
        packed = ts.selective_scan(**given, cu_seqlens=cu_seqlens, reverse=reverse)
        for start, stop in itertools.pairwise(offsets):
            if start < stop:
                part = {
                    n: t if n in ("A", "D", "delta_bias", "h0") else t[..., start:stop]
                    for n, t in given.items()
                }
                first = stop == 40 if reverse else start == 0
                part["h0"] = part["h0"] if first else None
                alone = ts.selective_scan(**part, reverse=reverse)
                torch.testing.assert_close(packed[..., start:stop], alone)


@pytest.mark.parametrize("length", [0, 1])
def test_short(length):
    given = inputs(2, 1, 3, length, 2)
    out, last = ts.selective_scan(**given, return_last=True)
    (out.sum() + last.sum()).backward()
    assert out.shape == (2, 3, length)
    assert all(t.grad is not None and t.grad.shape == t.shape for t in given.values())
    if not length:
        assert torch.equal(last, given["h0"])


def test_backward_stores_no_history_of_states():
    """What is saved between forward and backward: inputs, and a head for every chunk."""
    given = inputs(1, 1, 64, 512, 16, torch.float32)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        ts.selective_scan(**given, delta_softplus=True)
    size = sum({t.untyped_storage().data_ptr(): t.numel() for t in saved}.values())
    sequence, states = 64 * 512, 64 * 16
    assert size < 4 * sequence + states * (512 // CHUNK) + 16 * 512 * 2 + 4 * states
    assert size < states * 512 / 3


def test_bad_arguments_say_what_to_do():
    given = {n: t.detach() for n, t in inputs(1, 1, 4, 6, 3).items()}

    def run(**changes):
        return ts.selective_scan(**{**given, **changes})

    with pytest.raises(ValueError, match=r"expected delta of shape \(1, 4, 6\), got \(1, 4, 5\)"):
        run(delta=given["delta"][..., :5])
    with pytest.raises(ValueError, match="groups dividing the 4 channels"):
        run(B=torch.zeros(1, 3, 3, 6))
    with pytest.raises(ValueError, match="cu_seqlens rising from 0 to 6"):
        run(cu_seqlens=torch.tensor([0, 5]))
    with pytest.raises(ValueError, match=r"expected a real B with a real A, got torch\.complex64"):
        run(B=torch.zeros(4, 3, dtype=torch.complex64))
    with pytest.raises(ValueError, match="expected floats in u"):
        run(u=torch.zeros(1, 4, 6, dtype=torch.int64))
