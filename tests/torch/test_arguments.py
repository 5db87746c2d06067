"""Every function beside every argument: devices, dtypes, sizes of zero, autocast.

What is mixed or wrong is refused by its name, not computed from memory that nobody wrote or from
numbers that are something else.
"""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.support.tiers import one_of, paired  # noqa: E402
from tests.torch.table import (  # noqa: E402
    FUNCTIONS,
    arguments_of,
    differentiable,
    results_of,
    shape_of,
    sizes_of,
)
from tvm_scan.torch import nn  # noqa: E402

EACH = [(name, argument) for name, entry in FUNCTIONS.items() for argument in entry.given]
pytest_names = pytest.mark.parametrize("name", FUNCTIONS)
pytest_each = pytest.mark.parametrize(("name", "argument"), EACH)


@pytest_each
def test_one_argument_on_another_device(name, argument):
    """In either direction; and as the gradient of a result."""
    here, there = arguments_of(name), arguments_of(name, device="meta")
    if len(here) == 1:
        return
    for given, other in ((here, there), (there, here)):
        with pytest.raises(ValueError, match="on one device"):
            results_of(name, {**given, argument: other[argument]})


@pytest_names
def test_all_without_data(name):
    given, sizes = arguments_of(name, device="meta"), sizes_of(name)
    for result, spec in zip(results_of(name, given), FUNCTIONS[name].results, strict=True):
        assert result.device.type == "meta"
        assert result.shape == shape_of(spec, sizes)


@pytest.mark.parametrize("layer", [nn.Mamba(8, d_state=4), nn.LRU(8, 6), nn.MinGRU(8, 5)])
def test_one_parameter_on_another_device(layer):
    x = torch.rand(2, 5, 8)
    state = layer.initial_state(2)
    for name, parameter in list(layer.named_parameters()):
        *path, last = name.split(".")
        owner = layer.get_submodule(".".join(path))
        setattr(owner, last, torch.nn.Parameter(parameter.detach().to("meta")))
        for call in (lambda: layer(x), lambda: layer.step(x[:, 0], state)):
            with pytest.raises(
                ValueError, match=rf"on one device, got x on cpu and {name} on meta"
            ):
                call()
        setattr(owner, last, parameter)
    states = state if isinstance(state, tuple) else (state,)
    for i, part in enumerate(states):
        parts = [*states]
        parts[i] = part.to("meta")
        given = type(state)(*parts) if isinstance(state, tuple) else parts[0]
        named = (getattr(state, "_fields", None) or ["state"])[i]
        with pytest.raises(ValueError, match=f"on one device, got x on cpu and {named} on meta"):
            layer(x, given)


OPTIONAL = {"h0", "reset", "D", "z", "delta_bias", "dt_bias", "bias", "cu_seqlens", "seq_idx"}


@pytest_each
def test_what_is_no_tensor(name, argument):
    """Nor one of the kind that kernels read, which TVM would see as another or not at all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, that its nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.rand(3), torch.rand(4)])
    values = ["word", np.ones(3), nested, torch.rand(3).to_sparse()]
    optional = OPTIONAL | {"initial_states", "initial_state"}
    told_why = {("gated_delta_product", "g"), ("kda of logits", "A_log")}
    if argument not in optional and (name, argument) not in told_why:
        values.append(None)
    for value in values:
        found = rf"{argument}|xs\[\d\]|init\[0\]"
        if name == "mamba_chunk_scan_combined" and argument == "initial_states":
            found = "h0"
        with pytest.raises(ValueError, match=rf"expected ({found}) (to be a|as a|with)"):
            results_of(name, {**arguments_of(name), argument: value})


def test_a_tensor_that_a_function_reads():
    x, scale = torch.rand(5, 4), torch.rand(4, device="meta")
    with pytest.raises((ValueError, RuntimeError), match="device"):
        ts.associative_scan(lambda p, q: p * scale + q, x)
    with pytest.raises((ValueError, RuntimeError), match="device"):
        ts.scan(lambda c, u: (c + u * scale,) * 2, torch.zeros(4), x)


def test_operators_themselves():
    a, x = torch.rand(2, 1, 5, 3).unbind(0)
    for given in ((a, x.to("meta")), (a.to("meta"), x)):
        with pytest.raises(ValueError, match="tvm_scan::affine_scan: expected all tensors on one"):
            torch.ops.tvm_scan.affine_scan(*given, None, None, "inclusive", False)


#: What a kind of argument may be; and further dtypes of an argument.
MAY_BE = {
    "?": {torch.bool},
    "#": {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64},
    "": {torch.float16, torch.bfloat16, torch.float32, torch.float64},
}
INTEGERS = {torch.int32, torch.int64}
COMPLEX = {torch.complex64, torch.complex128}
ALSO = {
    "cumsum": MAY_BE["?"] | MAY_BE["#"] | COMPLEX,
    "cumprod": MAY_BE["?"] | MAY_BE["#"] | COMPLEX,
    "cummax": MAY_BE["?"] | MAY_BE["#"],
    "cummin": MAY_BE["?"] | MAY_BE["#"],
    "linear_recurrence": MAY_BE["?"] | MAY_BE["#"] | COMPLEX,
}
DTYPES = {torch.complex32, torch.float8_e5m2, *COMPLEX, *(d for s in MAY_BE.values() for d in s)}


@pytest_each
def test_dtypes_that_an_argument_must_not_have(name, argument):
    """A scan of a user's function takes what the function takes: see the test of shapes there."""
    if "associative" in name or name.startswith("scan"):
        return
    spec = FUNCTIONS[name].given[argument]
    kind = spec[-1] if spec[-1] in "?#" else ""
    allowed = MAY_BE[kind] | (set() if kind else ALSO.get(name, set()))
    if name.startswith(("selective_scan", "packed selective")) and argument == "A":
        allowed = allowed | COMPLEX
    for dtype in sorted(DTYPES - allowed, key=str):
        given = arguments_of(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, of complex numbers in halves
            given[argument] = given[argument].to(dtype)
        with pytest.raises(ValueError, match=str(dtype)):
            results_of(name, given)


@pytest.mark.parametrize(
    "name", [n for n, e in FUNCTIONS.items() if "seq_idx" in e.given or "cu_seqlens" in e.given]
)
def test_numbers_of_every_width(name):
    wanted = results_of(name, arguments_of(name))
    for dtype in MAY_BE["#"]:
        given = arguments_of(name)
        given |= {n: given[n].to(dtype) for n in ("seq_idx", "cu_seqlens") if n in given}
        torch.testing.assert_close(results_of(name, given), wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "size"), [(n, s) for n in FUNCTIONS for s in sizes_of(n) if s not in "s taps"]
)
def test_a_size_of_zero(name, size):
    """Results and gradients have their shapes; what is left of them is that of the loop."""
    entry, sizes = FUNCTIONS[name], sizes_of(name, **{size: 0})
    given = arguments_of(name, grad=not name.endswith("matrices"), **{size: 0})
    if size == "g" or (size == "b" and "cu_seqlens" in given):
        with pytest.raises(ValueError, match=r"groups|one row"):
            results_of(name, given)
        return
    results = results_of(name, given)
    assert [r.shape for r in results] == [shape_of(spec, sizes) for spec in entry.results]
    rest = [t for t in (*results, *given.values()) if t.numel()]
    live, leaves = [r for r in results if r.requires_grad], differentiable(given)
    options = {"allow_unused": True, "materialize_grads": True}
    grads = torch.autograd.grad([r.sum() for r in live], leaves, **options) if live else ()
    assert all(g.shape == leaf.shape for g, leaf in zip(grads, leaves, strict=bool(live)))
    if entry.loop is not None and size != "t" and rest:
        wanted = entry.loop(**given)
        torch.testing.assert_close(results, tuple(wanted))
        wanted = torch.autograd.grad([r.sum() for r in wanted], leaves, **options)
        torch.testing.assert_close(grads, wanted)
    elif size == "t" and len(results) > 1 and "h0" in given:
        torch.testing.assert_close(results[1], given["h0"])


@pytest_names
def test_autocast_changes_nothing(name):
    """Nor does it a gradient: what is scanned is what was given, and no product is rounded."""
    if name == "associative_scan of matrices" or name == "scan of matrices":
        return  # there torch itself rounds the products that the user's function has
    first = next(iter(FUNCTIONS[name].given))
    for halved in one_of((None, first), list(FUNCTIONS).index(name)):
        runs = []
        for enabled in (False, True):
            given = arguments_of(name, torch.float32, grad=True)
            if halved is not None and not name.startswith("scan"):
                given[halved] = given[halved].detach().bfloat16().requires_grad_()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                results = results_of(name, given)
            # What torch differentiates itself, it rounds there: the states after sequences.
            inside = enabled and name != "mamba_chunk_scan_combined"
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
                live = [r.float().sum() for r in results if r.requires_grad]
                grads = torch.autograd.grad(live, differentiable(given), allow_unused=True)
            runs.append([t for t in (*results, *grads) if t is not None])
        for plain, cast in zip(*runs, strict=True):
            assert plain.dtype == cast.dtype
            assert torch.equal(plain, cast)


LAYERS = {
    "Mamba": lambda: nn.Mamba(8, d_state=4, d_conv=3),
    "LRU": lambda: nn.LRU(8, 6),
    "MinGRU": lambda: nn.MinGRU(8, 5),
}


@pytest.mark.parametrize(("name", "half"), paired(list(LAYERS), [torch.bfloat16, torch.float16]))
def test_layers_in_halves(name, half):
    """Parameters and inputs in halves; then halves by autocast. Each as sequence and as steps."""
    torch.manual_seed(0)
    layer = LAYERS[name]().to(half)
    x = torch.randn(2, 6, 8).to(half)
    exact = LAYERS[name]().double()
    exact.load_state_dict(layer.state_dict())
    wanted = exact(x.double())[0]
    bound = {"rtol": 8 * torch.finfo(half).eps, "atol": 8 * torch.finfo(half).eps}

    def steps(layer, x, state):
        found = []
        for one in x.unbind(1):
            y, state = layer.step(one, state)
            found.append(y)
        return torch.stack(found, 1)

    for dtype, cast in ((half, False), (torch.float32, True)):
        layer, given = layer.to(dtype), x.to(dtype)
        with torch.autocast("cpu", dtype=half, enabled=cast):
            whole, state = layer(given)
            first, state = layer(given[:, :4])
            rest, _ = layer(given[:, 4:], state)
            after = steps(layer, given[:, 4:], state)
            stepped = steps(layer, given, layer.initial_state(2))
        pieces = (torch.cat((first, last), 1) for last in (rest, after))
        for found in (whole, *pieces, stepped):
            assert cast or found.dtype == half
            torch.testing.assert_close(found.double(), wanted, **bound)
        grads = torch.autograd.grad(whole.float().square().sum(), list(layer.parameters()))
        want = torch.autograd.grad(exact(x.double())[0].square().sum(), list(exact.parameters()))
        for found, expected in zip(grads, want, strict=True):
            scale = float(expected.abs().max())
            torch.testing.assert_close(
                found.double(), expected, rtol=0, atol=32 * torch.finfo(half).eps * scale
            )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_a_complex_number_with_reals(dtype):
    x = torch.arange(1, 5).to(dtype)
    got = ts.linear_recurrence(0.5j, x)
    assert got.dtype == torch.complex64
    torch.testing.assert_close(got, ts.linear_recurrence(0.5j, x.to(torch.complex64)))


def test_an_axis_is_a_whole_number():
    for dim in (1.0, "1", None, torch.tensor(1)):
        with pytest.raises(ValueError, match="expected dim between -2 and 1"):
            ts.cumsum(torch.rand(2, 3), dim)


def test_a_dtype_without_recurrences():
    with pytest.raises(ValueError, match=r"cumsum: expected x of .*, got torch\.float8_e5m2"):
        ts.cumsum(torch.rand(3), 0, dtype=torch.float8_e5m2)
    eighths = torch.rand(3).to(torch.float8_e5m2)  # of which no tensor has another dtype
    for call in (lambda: ts.cumsum(eighths, 0), lambda: ts.linear_recurrence(eighths, eighths)):
        with pytest.raises(ValueError, match=r"expected [ax] of .*, got torch\.float8_e5m2"):
            call()
