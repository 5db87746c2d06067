"""The operators of ``tvm_scan.torch`` in an exported model become scans of the module."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.target import Target

torch = pytest.importorskip("torch")
import tvm_scan.torch as ours  # noqa: E402
from tests.relax.test_torch import exported, families  # noqa: E402
from tests.support.compiled import compile_cached  # noqa: E402
from tvm_scan.delta_rule import DeltaRule  # noqa: E402
from tvm_scan.errors import ScanError  # noqa: E402
from tvm_scan.relax import from_exported, get_pipeline  # noqa: E402
from tvm_scan.schedules.analysis import analyse  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

CPU = Target.from_device("cpu")
B, L, D, N = 2, 37, 3, 4


def check(function, *args, family=None, dynamic=None, again=(), atol=1e-5):
    mod = from_exported(exported(function, *args, dynamic=dynamic))
    found = [name for names in families(mod) for name in names]
    assert family is None or family in found, found
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    machine = relax.VirtualMachine(built, tvm.cpu())
    for given in (args, *again):
        got = machine["main"](*(tvm.runtime.tensor(a.numpy()) for a in given))
        want = function(*given)
        want = want if isinstance(want, tuple) else (want,)
        for array, expected in zip(got, want, strict=True):
            np.testing.assert_allclose(array.numpy(), expected.numpy(), 1e-4, atol)
    return mod


def rand(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("dim", [1, 2])
def test_linear_recurrence(dim):
    def model(a, x):
        return ours.linear_recurrence(a, x, dim=dim)

    check(model, rand(B, L, D), rand(B, L, D), family="affine")


def test_resets():
    def model(a, x, B, C):
        start = x[..., 0] > 0.7
        h = ours.linear_recurrence(a, x, dim=1, reset=start.unsqueeze(2))
        dt = a[..., :1]
        return h, ours.ssd(x.unsqueeze(2), dt, -dt[0, 0], B, C, reset=start)

    matrices = rand(B, L, 1, N), rand(B, L, 1, N)
    check(model, rand(B, L, D), rand(B, L, D), *matrices, family="segmented")


def test_a_dynamic_length():
    length = torch.export.Dim("length", min=2, max=4096)
    check(
        lambda a, x: ours.linear_recurrence(a, x, dim=1),
        *(rand(B, L, D), rand(B, L, D)),
        family="affine",
        dynamic=(({1: length}, {1: length}),),
        again=[(rand(B, 90, D), rand(B, 90, D)), (rand(B, 2, D), rand(B, 2, D))],
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative_operators(reverse):
    def model(x):
        return (
            ours.cumsum(x, 1, reverse=reverse),
            ours.cumprod(x, 1, reverse=reverse),
            ours.logcumsumexp(x, 1, reverse=reverse),
            *ours.cummax(x, 1, reverse=reverse),
        )

    check(model, rand(B, L, D))
    check(lambda x: tuple(ours.cummin(x, 1, reverse=reverse)), rand(B, L).double())


@pytest.mark.parametrize("whole", [False, True])
def test_selective_scan(whole):
    def model(u, delta, A, B, C, D, z, bias):
        options = {"D": D, "z": z, "delta_bias": bias, "delta_softplus": True} if whole else {}
        return ours.selective_scan(u, delta, -A, B, C, **options, return_last=whole)

    small = (rand(B, D, L), rand(B, D, L), rand(D, N), rand(B, N, L), rand(B, N, L))
    check(model, *small, rand(D), rand(B, D, L), rand(D), family="affine")


def test_a_selective_scan_with_projections_that_are_fixed_in_time():
    def model(u, A, B, C):
        return ours.selective_scan(u, u, -A, B, C)

    small = (rand(B, D, L), rand(D, N), rand(D, N), rand(B, N, L))
    check(model, *small, family="affine")


@pytest.mark.parametrize("has_first", [False, True])
def test_states_of_packed_sequences(has_first):
    """Each state is a lane of one scan; the offsets, and how many there are, are data."""

    def model(x, dt, A, B, offsets, first):
        return ours.compat.mamba_chunk_scan_combined(
            *(x, dt, -A, B, B),
            chunk_size=8,
            cu_seqlens=offsets,
            initial_states=first if has_first else None,
            return_varlen_states=True,
        )

    tensors = (rand(1, L, 4, D), rand(1, L, 4), rand(4), rand(1, L, 2, N))
    offsets = [torch.tensor(o, dtype=torch.int32) for o in ([0, 5, 5, L], [0, 0, 9, 20, L])]
    first = rand(1, 4, D, N)
    count = torch.export.Dim("count", min=4)
    check(
        model,
        *(*tensors, offsets[0], first),
        family="affine",
        dynamic=((None, None, None, None, {0: count}, None),),
        again=[(*tensors, o, first) for o in offsets[1:]],
    )


def test_every_operator_has_a_converter():
    """Or is one that only a gradient calls, which is said."""
    from tvm_scan.relax.import_torch.frontend import CONVERTERS, OWN
    from tvm_scan.torch.declare.dispatch import library

    # test_operator.py declares operators, too.
    ours = [name for name in library.implementations if not name.startswith("test_")]
    named = {f"{name}.default" for name in ours}
    assert len(named) > 10
    assert named <= {*CONVERTERS, *OWN}, named - {*CONVERTERS, *OWN}

    def model(x):
        values, _ = torch.ops.tvm_scan.extremum(x, False, False)
        return values, torch.ops.tvm_scan.extremum(x.double(), True, True)[0]

    check(model, rand(B, L, D))
    refused = exported(lambda g, i: torch.ops.tvm_scan.extremum_gradient(g, i, False), *refusable())
    with pytest.raises(ScanError, match=r"expected a forward pass, found .*extremum_gradient"):
        from_exported(refused)


def refusable():
    x = rand(B, L, D)
    return x, ours.cummax(x, 1).indices


def test_a_model_of_transformers_on_our_scan():
    """Patched and exported, Mamba's scan is one operator of ours, of any length."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 31, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 1}
    model = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes)).eval()

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(input_ids=ids, use_cache=False).logits

    ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad(), ours.patch_transformers():
        program = torch.export.export(Logits(), (ids,), strict=False)
    mod = from_exported(program)
    assert families(mod) == [["affine"]]
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    (got,) = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(ids.numpy()))
    with torch.no_grad():
        np.testing.assert_allclose(got.numpy(), Logits()(ids).numpy(), 1e-4, 1e-5)


#: Of two model types, a layer with nothing beside it.
LAYERS = {"layer_types": ["linear_attention"], "num_hidden_layers": 1}
DELTA = {
    "qwen3_next": LAYERS | {"mlp_only_layers": [0]},
    "kimi_linear": LAYERS | {"mlp_layer_types": ["dense"]},
}


@pytest.mark.parametrize("kind", DELTA)
def test_a_model_with_a_delta_rule(kind, monkeypatch):
    """Patched and exported, the rule is one operator of ours: no chunks, no substitution."""
    pytest.importorskip("transformers")
    from tests.torch.test_transformers import KINDS, model_of

    name, options, scans = KINDS[kind]
    monkeypatch.setitem(KINDS, kind, (name, options | DELTA[kind], scans))
    model = model_of(kind).eval()

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(input_ids=ids, use_cache=False).logits

    length = {"ids": {1: torch.export.Dim("length", min=2, max=4096)}}
    ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad(), ours.patch_transformers():
        program = torch.export.export(Logits(), (ids,), dynamic_shapes=length, strict=False)
    mod = from_exported(program)
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    run = relax.VirtualMachine(built, tvm.cpu())["main"]
    for tokens in (ids, torch.arange(33).unsqueeze(0)):
        with torch.no_grad():
            want = Logits()(tokens).numpy()
        (got,) = run(tvm.runtime.tensor(tokens.numpy()))
        np.testing.assert_allclose(got.numpy(), want, 1e-4, 1e-4)


def test_matrix_states():
    def model(q, k, v, g):
        return ours.gla(q, k, v, -g)

    shape = (1, L, 2, N)
    check(model, rand(*shape), rand(*shape), rand(*shape), rand(*shape), family="affine")


@pytest.mark.parametrize("name", ["gated_delta_rule", "kda", "delta_rule", "rwkv7"])
def test_delta_rules(name):
    """A rule of one vector comes as a delta rule of the core."""
    heads, keys, values = (1, L, 2), (1, L, 2, 6), (1, L, 4, 5)

    def model(q, k, v, g, beta):
        if name == "rwkv7":
            return ours.rwkv7(q, -g, k, v, -k, beta * k, output_final_state=True)
        gates = () if name == "delta_rule" else (-g,)
        options = {"use_qk_l2norm_in_kernel": True, "output_final_state": True}
        return getattr(ours, name)(q, k, v, *gates, beta, **options)

    shapes = {"kda": ((1, L, 4, 6), values[:3]), "rwkv7": (keys, (*heads, 1))}
    gates, rates = shapes.get(name, (values[:3], values[:3]))
    args = [rand(*s) for s in (keys, keys, keys if name == "rwkv7" else values, gates, rates)]
    mod = check(model, *args)
    rules = [r for f in mod.functions.values() if isinstance(f, tirx.PrimFunc) for r in rules_of(f)]
    assert len(rules) == 1


@pytest.mark.parametrize(
    ("name", "bound"), [("gated_delta_rule", None), ("kda", None), ("kda", -5.0)]
)
def test_what_a_delta_rule_reads(name, bound):
    """Norms, rates, and gates of logits are operators before the loop."""
    keys, values, heads = (1, L, 2, 6), (1, L, 4, 5), (1, L, 4)

    def model(q, k, v, g, beta, A_log, bias):
        options = {"use_gate_in_kernel": True, "use_qk_l2norm_in_kernel": True, "scale": 0.25}
        options |= {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
        if bound is not None:
            options["lower_bound"] = bound
        learned = {"A_log": A_log, "dt_bias": bias}
        return getattr(ours, name)(q, k, v, g, beta, **learned, **options)[0]

    gates, biases = ((*heads, 6), (4, 6)) if name == "kda" else (heads, (4,))
    check(model, *(rand(*s) for s in (keys, keys, values, gates, heads, (4,), biases)))


def rules_of(func):
    return [f for f in analyse(func).findings if isinstance(f, DeltaRule)]


def test_packed_delta_rules_are_named():
    def model(q, v, beta, ends):
        return ours.delta_rule(q, q, v, beta, cu_seqlens=ends)[0]

    shape = (1, L, 2, 4)
    args = rand(*shape), rand(*shape), rand(*shape[:3]), torch.tensor([0, 7, L])
    with pytest.raises(ScanError, match="rows of one sequence each, found a delta rule with cu"):
        from_exported(exported(model, *args))


def test_scan_of_a_step_and_of_slices():
    def pointwise(h0, a, x):
        return ours.scan(lambda h, t: (t[0] * h + t[1], h), h0, (a, x), dim=1)

    def turned(h0, x):
        def step(h, t):
            h = torch.flip(h, (-1,)) * t + 1
            return h, h

        return ours.scan(step, h0, x, dim=1)

    check(pointwise, rand(B, D), rand(B, L, D), rand(B, L, D), family="affine")
    check(turned, rand(B, 2), rand(B, L, 2))


def test_associative_scan_of_an_operator():
    def model(a, x):
        def combine(p, q):
            return p[0] * q[0], p[1] * q[0] + q[1]

        return tuple(ours.associative_scan(combine, (a, x), dim=1))

    check(model, rand(B, L, D), rand(B, L, D))


def test_filters():
    def model(x):
        taps = torch.tensor([1.0, -0.4, 0.1]), torch.tensor([0.5, 0.2, 0.0])
        return ours.lfilter(x, *taps, clamp=False)

    check(model, rand(B, L))


def test_a_number_of_states_or_taps_that_is_not_constant_is_named():
    def selective(u, dt, A, b, c):
        return ours.selective_scan(u, dt, -A, b, c)

    def filtered(x, a, b):
        return ours.lfilter(x, a, b, clamp=False)

    def matrices(q, k, v, g):
        return ours.gla(q, k, v, -g, scale=1.0)  # the default is a power of the states

    dims = {what: torch.export.Dim(what, min=2, max=5) for what in ("states", "taps")}
    rows = rand(B, D, L), rand(B, D, L), rand(D, N), rand(B, N, L), rand(B, N, L)
    last = {3: dims["states"]}
    for function, args, dynamic, found in (
        (selective, rows, (None, None, *({1: dims["states"]},) * 3), "selective_scan: .* states"),
        (
            filtered,
            (rand(B, L), rand(3), rand(3)),
            (None, *({0: dims["taps"]},) * 2),
            "lfilter: .* taps",
        ),
        (matrices, [rand(1, L, 2, N)] * 4, (last, last, None, last), "outer_scan: .* states"),
    ):
        program = exported(function, *args, dynamic=(dynamic,))
        with pytest.raises(ScanError, match=f"{found}, got .*without a dynamic dimension"):
            from_exported(program)


def test_complex_numbers_are_named():
    def model(a, x):
        return ours.linear_recurrence(torch.complex(a, x), torch.complex(x, a), dim=1).real

    with pytest.raises((ScanError, AssertionError), match=r"complex|real tensors"):
        from_exported(exported(model, rand(B, L, D), rand(B, L, D)))
