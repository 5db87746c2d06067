"""Every function with every tensor that it takes, by the names of the sizes.

A specification is the name of a size for each axis. What ends in ``?`` is bool, in ``#`` integers,
in ``-`` negative; all else are floats between 0.2 and 0.9.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.torch.oracles import selective_loop  # noqa: E402
from tests.torch.test_delta import delta_loop  # noqa: E402
from tests.torch.test_gated import matrix_loop  # noqa: E402
from tests.torch.test_ssd import loop as ssd_loop  # noqa: E402

#: Of every name; no two that one function has are equal.
SIZES = {"b": 3, "t": 5, "c": 4, "h": 4, "k": 6, "v": 7, "p": 7, "n": 6, "g": 2, "taps": 2, "s": 8}


class Entry(NamedTuple):
    call: Callable  # of the arguments by name
    given: dict  # argument -> specification
    results: tuple  # a specification for each result
    sizes: tuple = ()  # pairs of those that are others than above
    loop: Callable | None = None  # the same, step after step
    bound: str = ""  # the size that a compiled program is bound to


def cumulative(name):
    return Entry(lambda x: getattr(ts, name)(x, 1), {"x": "b t c"}, ("b t c",))


def extremum(name):
    return Entry(lambda x: tuple(getattr(ts, name)(x, 1)), {"x": "b t c"}, ("b t c",) * 2)


def pair(p, q):
    return q[0] * p[0], q[0] * p[1] + q[1]


def step(c, ax):
    h = ax[0] * c + ax[1]
    return h, h


def product_step(state, mx):
    state = mx[0] @ state + mx[1]
    return state, state


def last(function, **options):
    return lambda **given: function(**given, return_last=True, **options)


def gla_loop(q, k, v, g, h0):
    return matrix_loop(q * max(q.shape[3], 1) ** -0.5, k, v, g, h0)


def rwkv6_loop(r, k, v, w, u, h0):
    return matrix_loop(r, k, v, w, h0, u)


def delta_of(function, **options):
    """With the states after time, as the other functions have them."""
    return lambda **given: function(**given, **options, output_final_state=True)


def delta_product(k, v, beta, **given):
    """With an axis for the steps of a token, which the function has in that of tokens."""
    steps = {"k": k, "v": v, "beta": beta}
    for name, value in steps.items():
        if isinstance(value, torch.Tensor) and not value.is_nested and not value.is_sparse:
            steps[name] = value.flatten(1, 2)
    return ts.gated_delta_product(**steps, **given, num_householder=8, output_final_state=True)


def gated_loop(initial_state, **given):
    scale = max(given["q"].shape[3], 1) ** -0.5
    return delta_loop(**given, scale=scale, state=initial_state)


LOGITS = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
LOGITS |= {"use_gate_in_kernel": True}


def logits_loop(q, k, g, beta, A_log, dt_bias, **given):
    """Norms, gates and rates by torch, before the loop."""
    unit = {
        n: x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for n, x in (("q", q), ("k", k))
    }
    gate = -A_log.exp()[:, None] * torch.nn.functional.softplus(g + dt_bias)
    return gated_loop(**unit, g=gate, beta=beta.sigmoid(), **given)


def rwkv7_loop(r, w, initial_state, **given):
    return delta_loop(q=r, g=w, **given, state=initial_state)


def mamba_loop(u, delta, A, B, C, D, z, delta_bias, h0, reset):
    options = {"softplus": True, "h0": h0, "reset": reset}
    return selective_loop(u, delta, A, B, C, D, z, delta_bias, **options)


def ssd_of(function=ts.ssd, **options):
    options = {"dt_softplus": True, **options}
    return lambda **given: function(**given, **options)


VECTORS = {"x": "b t c", "h0": "b c"}
MAMBA = {"u": "b c t", "delta": "b c t", "A": "c n -", "B": "b g n t", "C": "b g n t"}
MAMBA |= {"D": "c", "z": "b c t", "delta_bias": "c", "h0": "b c n"}
MAMBA2 = {"x": "b t h p", "dt": "b t h", "A": "h -", "B": "b t g n", "C": "b t g n"}
MAMBA2 |= {"D": "h", "z": "b t h p", "dt_bias": "h"}
MATRICES = {"k": "b t h k", "v": "b t h v", "h0": "b h k v"}
DELTA = {"q": "b t g k", "k": "b t g k", "v": "b t h v", "beta": "b t h"}
DELTA |= {"initial_state": "b h k v"}

FUNCTIONS = {
    "cumsum": cumulative("cumsum"),
    "cumprod": cumulative("cumprod"),
    "cummax": extremum("cummax"),
    "cummin": extremum("cummin"),
    "logcumsumexp": cumulative("logcumsumexp"),
    "linear_recurrence": Entry(
        last(ts.linear_recurrence, dim=1),
        {"a": "b t c", **VECTORS, "reset": "b t c ?"},
        ("b t c", "b c"),
    ),
    "lfilter": Entry(
        ts.lfilter,
        {"waveform": "b c t", "a_coeffs": "c taps", "b_coeffs": "c taps"},
        ("b c t",),
        bound="taps",
    ),
    "rglru": Entry(
        last(ts.rglru),
        {"input_gate": "b t c", "recurrence_gate": "b t c", "decay": "c", **VECTORS}
        | {"reset": "b t ?"},
        ("b t c", "b c"),
    ),
    "hgrn": Entry(
        last(ts.hgrn),
        {"forget_gate": "b t c", **VECTORS, "lower_bound": "c"},
        ("b t c", "b c"),
    ),
    "gla": Entry(
        last(ts.gla),
        {"q": "b t h k", "g": "b t h k -", **MATRICES},
        ("b t h v", "b h k v"),
        loop=gla_loop,
    ),
    "rwkv6": Entry(
        last(ts.rwkv6),
        {"r": "b t h k", "w": "b t h k -", "u": "h k", **MATRICES},
        ("b t h v", "b h k v"),
        loop=rwkv6_loop,
    ),
    "delta_rule": Entry(delta_of(ts.delta_rule), DELTA, ("b t h v", "b h k v"), loop=gated_loop),
    "gated_delta_rule": Entry(
        delta_of(ts.gated_delta_rule),
        {**DELTA, "g": "b t h -"},
        ("b t h v", "b h k v"),
        loop=gated_loop,
    ),
    "packed gated_delta_rule": Entry(
        delta_of(ts.gated_delta_rule),
        {n: s for n, s in DELTA.items() if n != "initial_state"}
        | {"g": "b t h -", "cu_seqlens": "s #"},
        ("b t h v", "s-1 h k v"),
        (("b", 1),),
    ),
    "gated_delta_product": Entry(
        delta_product,
        {"q": "b t g k", "k": "b t taps g k", "v": "b t taps h v", "beta": "b t taps h"}
        | {"g": "b t h -", "initial_state": "b h k v"},
        ("b t h v", "b h k v"),
        (("taps", 8),),
        bound="taps",
    ),
    "kda": Entry(
        delta_of(ts.kda), {**DELTA, "g": "b t h k -"}, ("b t h v", "b h k v"), loop=gated_loop
    ),
    "kda of logits": Entry(
        delta_of(ts.kda, **LOGITS),
        {**DELTA, "g": "b t h k", "A_log": "h", "dt_bias": "h k"},
        ("b t h v", "b h k v"),
        loop=logits_loop,
    ),
    "rwkv7": Entry(
        delta_of(ts.rwkv7),
        dict.fromkeys(("r", "k", "a", "b"), "b t h k")
        | {"w": "b t h k -", "v": "b t h v", "initial_state": "b h k v"},
        ("b t h v", "b h k v"),
        loop=rwkv7_loop,
    ),
    "ssd": Entry(
        ssd_of(return_last=True),
        {**MAMBA2, "h0": "b h p n", "reset": "b t ?"},
        ("b t h p", "b h p n"),
        loop=ssd_loop,
    ),
    "packed ssd": Entry(
        ssd_of(),
        {**MAMBA2, "cu_seqlens": "s #"},
        ("b t h p",),
        (("b", 1),),
    ),
    "mamba_chunk_scan_combined": Entry(
        ssd_of(ts.compat.mamba_chunk_scan_combined, chunk_size=8, return_varlen_states=True),
        {**MAMBA2, "initial_states": "b h p n", "seq_idx": "b t #", "cu_seqlens": "s #"},
        ("b t h p", "s-1 h p n"),
        (("b", 1),),
    ),
    "selective_scan": Entry(
        last(ts.selective_scan, delta_softplus=True),
        {**MAMBA, "reset": "b t ?"},
        ("b c t", "b c n"),
        loop=mamba_loop,
    ),
    "selective_scan, fixed": Entry(
        last(ts.selective_scan, delta_softplus=True),
        {**MAMBA, "B": "c n", "C": "c n"},
        ("b c t", "b c n"),
    ),
    "selective_scan_fn": Entry(
        ts.compat.selective_scan_fn, {n: s for n, s in MAMBA.items() if n != "h0"}, ("b c t",)
    ),
    "packed selective_scan": Entry(
        ts.selective_scan, {**MAMBA, "cu_seqlens": "s #"}, ("b c t",), (("b", 1),)
    ),
    "causal_conv1d": Entry(
        last(ts.causal_conv1d, activation="silu"),
        {"x": "b c t", "weight": "c s", "bias": "c", "initial_state": "b c s-1"},
        ("b c t", "b c s-1"),
        bound="s",
    ),
    "packed causal_conv1d": Entry(
        ts.causal_conv1d,
        {"x": "b c t", "weight": "c s", "bias": "c", "seq_idx": "b t #"},
        ("b c t",),
        bound="s",
    ),
    "associative_scan": Entry(
        lambda a, x: ts.associative_scan(pair, (a, x)), {"a": "t b c", "x": "t b c"}, ("t b c",) * 2
    ),
    "associative_scan of matrices": Entry(
        lambda m: ts.associative_scan(lambda p, q: q @ p, m),
        {"m": "t n n"},
        ("t n n",),
        (("n", 2),),
        bound="n",
    ),
    "scan": Entry(
        lambda init, a, x: ts.scan(step, init, (a, x)),
        {"init": "b c", "a": "t b c", "x": "t c"},
        ("b c", "t b c"),
    ),
    "scan of matrices": Entry(
        lambda init, m, x: ts.scan(product_step, init, (m, x)),
        {"init": "n", "m": "t n n", "x": "t n"},
        ("n", "t n"),
        (("n", 2),),
        bound="n",
    ),
}


def sizes_of(name, **other):
    """The sizes that a function has, by name."""
    entry = FUNCTIONS[name]
    named = {n for spec in entry.given.values() for n in spec.split() if n[0].isalpha()}
    used = {n.removesuffix("-1") for n in named}
    return {n: {**SIZES, **dict(entry.sizes), **other}[n] for n in sorted(used)}


def shape_of(spec, sizes):
    names = [n for n in spec.split() if n[0].isalpha()]
    return tuple(sizes["s"] - 1 if n == "s-1" else sizes[n] for n in names)


def arguments_of(name, dtype=torch.float64, device="cpu", grad=False, **other):
    """The arguments of a function, by name."""
    sizes, made = sizes_of(name, **other), {}
    generator = torch.Generator().manual_seed(0)
    for argument, spec in FUNCTIONS[name].given.items():
        shape = shape_of(spec, sizes)
        values = 0.2 + 0.7 * torch.rand(shape, generator=generator, dtype=torch.float64)
        if spec.endswith("?"):
            made[argument] = values > 0.7
        elif argument == "cu_seqlens":  # the end of the row last, and once more where it may be
            made[argument] = torch.linspace(0, sizes["t"], sizes["s"]).long()
        elif argument == "seq_idx":
            made[argument] = (torch.arange(sizes["t"]) > 2).long().expand(shape)
        else:
            values = (-values if spec.endswith("-") else values).to(dtype)
            made[argument] = values.requires_grad_(grad)
    return {n: t.to(device) for n, t in made.items()}


def results_of(name, given):
    found = FUNCTIONS[name].call(**given)
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


def differentiable(given):
    return [t for t in given.values() if t.requires_grad]
