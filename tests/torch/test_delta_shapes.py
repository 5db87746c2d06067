"""Delta rules at the shapes of flash-linear-attention's tests, beside a loop in float64.

Inputs are halves or float32, gates and rates float32, as there. A row of the batch and a head of
the values are compared, gradients too: others do not reach them. The longest rows are cut, since
torch has every state of the loop in memory.
"""

import itertools
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402
from tests.support.tiers import longer  # noqa: E402

HALF, WIDE, BRAIN = torch.float16, torch.float32, torch.bfloat16


class Shape(NamedTuple):
    """A case: `over` divides the logarithms of gates, of which `masked` are 0."""

    batch: int
    length: int
    heads: int
    value_heads: int
    size: int
    scale: float | None = None
    over: float = 1
    masked: float = 0
    dtype: torch.dtype = HALF
    computed: bool = False  # norms, gates and rates are, in the kernel
    ends: tuple[int, ...] | None = None
    bound: float | None = None  # of the gates; those that are not computed are cut at it
    without: tuple[str, ...] = ()  # parameters of gates that are computed
    v_first: bool = False

    def __str__(self):
        flags = ["packed"] * bool(self.ends) + ["bound"] * (self.bound is not None)
        flags += ["v_first"] * self.v_first + [f"no_{name}" for name in self.without]
        return "-".join(["x".join(map(str, self[:5])), str(self.dtype)[6:], *flags])


FEW, MORE, MANY = (0, 15), (0, 256, 500, 1000), (0, 15, 100, 300, 1200, 2000)
GATED = [
    # test_fused_recurrent
    Shape(1, 63, 1, 1, 64, 1, dtype=WIDE),
    Shape(2, 500, 4, 4, 60, 1, dtype=WIDE),
    Shape(2, 1000, 2, 8, 128, 1, 0.1, dtype=WIDE),
    Shape(3, 1024, 2, 2, 128, 0.1, dtype=WIDE),
    Shape(4, 1024, 3, 3, 128, 1, 10, dtype=WIDE),
    Shape(4, 2048, 4, 4, 64, 0.1, dtype=WIDE),
    Shape(2, 1024, 4, 4, 128, 1, 0.1),
    Shape(2, 1024, 4, 8, 128, 1, 10),
    # test_chunk
    Shape(2, 75, 4, 4, 64, 1, 0.01),
    Shape(2, 500, 3, 3, 60, 1),
    Shape(2, 1000, 3, 3, 64, 0.1, masked=0.5),
    Shape(3, 1024, 4, 4, 100, 1, 0.1),
    Shape(4, 1024, 4, 4, 128, 0.1, masked=1),
    Shape(2, 1500, 4, 4, 128, 0.1, 10),
    Shape(4, 2048, 8, 8, 64, 0.1),
    Shape(2, 256, 2, 4, 64, 1),
    Shape(2, 1024, 4, 8, 128, 0.1),
    # norms, gates and rates in the kernel
    Shape(2, 75, 4, 4, 64, 1, computed=True),
    Shape(1, 64, 1, 1, 64, 1, dtype=WIDE, computed=True, without=("dt_bias",)),
    Shape(2, 512, 2, 8, 64, 1, 0.1, computed=True),
    Shape(2, 1000, 3, 3, 64, 0.1, computed=True, without=("dt_bias",)),
    Shape(4, 1024, 4, 4, 128, 0.1, computed=True),
    Shape(4, 2048, 8, 8, 64, 0.1, computed=True),
    # test_chunk_state_v_first, test_fused_recurrent_state_v_first
    Shape(1, 63, 1, 1, 64, 1, v_first=True),
    Shape(2, 1000, 2, 8, 128, 1, 0.1, dtype=WIDE, v_first=True),
    Shape(3, 1024, 4, 4, 128, 0.1, v_first=True),
    # test_chunk_varlen, test_chunk_gate_in_kernel_varlen
    Shape(1, 15, 4, 4, 60, ends=FEW),
    Shape(1, 15, 4, 4, 60, ends=FEW, computed=True),
    Shape(1, 1000, 4, 4, 64, ends=MORE, masked=0.5),
    Shape(1, 1000, 4, 4, 64, ends=MORE, computed=True, without=("dt_bias",)),
    Shape(1, 1000, 2, 8, 64, ends=MORE),
    Shape(1, 2000, 4, 4, 100, ends=MANY),
    Shape(1, 2000, 4, 4, 128, ends=MANY, computed=True),
    Shape(1, 2048, 4, 4, 60, ends=(0, 2048)),
]
KDA = [
    # test_naive_chunk, test_fused_recurrent
    Shape(1, 64, 1, 1, 64, 1, dtype=WIDE),
    Shape(1, 64, 1, 2, 64, 1, dtype=WIDE),
    Shape(2, 512, 2, 4, 60, 1, dtype=WIDE),
    Shape(3, 1000, 4, 4, 100, 0.1, dtype=WIDE),
    Shape(4, 1024, 4, 4, 128, 1, 10, dtype=WIDE),
    # test_fused_recurrent_gate_in_kernel
    Shape(1, 64, 1, 1, 64, 1, dtype=WIDE, computed=True, without=("dt_bias",)),
    Shape(1, 64, 1, 1, 64, 1, dtype=WIDE, computed=True, bound=-5, without=("A_log", "dt_bias")),
    Shape(2, 256, 2, 4, 64, 1, dtype=WIDE, computed=True, bound=-5, without=("A_log",)),
    Shape(2, 512, 2, 4, 64, 0.1, computed=True, bound=-5),
    # test_chunk
    Shape(1, 63, 1, 1, 64, 1, bound=-5),
    Shape(2, 500, 3, 3, 60, 1, bound=-5),
    Shape(2, 1000, 3, 3, 64, 0.1, masked=0.5),
    Shape(3, 1024, 4, 4, 100, 1, 0.1),
    Shape(2, 1500, 4, 4, 128, 0.1, 10, computed=True),
    Shape(4, 2048, 8, 8, 64, 0.1, computed=True, bound=-5),
    Shape(2, 1024, 2, 8, 64, 0.1, computed=True),
    Shape(2, 1024, 2, 4, 64, 0.1, dtype=BRAIN),
    Shape(2, 160, 2, 4, 64, 0.1, dtype=BRAIN, computed=True, bound=-5),
    Shape(1, 63, 1, 1, 64, 1, v_first=True),
    Shape(3, 1024, 4, 4, 128, 0.1, v_first=True),
    # test_chunk_varlen
    Shape(1, 15, 4, 4, 60, masked=0.1, ends=FEW),
    Shape(1, 15, 4, 4, 60, ends=FEW, computed=True),
    Shape(1, 160, 4, 4, 60, ends=(0, 31, 96, 160), computed=True),
    Shape(1, 1000, 4, 4, 64, ends=MORE, masked=0.9),
    Shape(1, 1000, 4, 4, 128, masked=0.5, ends=MORE),
    Shape(1, 2000, 4, 4, 100, ends=MANY, computed=True),
    Shape(1, 1200, 4, 4, 256, ends=(0, 100, 300, 1200), bound=-5),
    # test_fused_recurrent_vllm_decode: a token of each sequence
    Shape(1, 7, 32, 32, 128, 0.5, 0.5, dtype=BRAIN, ends=tuple(range(8)), computed=True, bound=-5),
]
SEVEN = [
    Shape(2, 1, 1, 1, 64, dtype=WIDE),
    Shape(1, 64, 2, 2, 64, 1, dtype=WIDE),
    Shape(1, 100, 2, 2, 64, 1),
    Shape(2, 1024, 1, 1, 64, 1, dtype=WIDE),
    Shape(4, 1024, 4, 4, 100, 0.1),
]
#: The rest takes minutes.
SHORT = longer(100, 8192)
CASES = [
    pytest.param(name, shape, id=f"{name}-{shape}")
    for name, shapes in (("gated_delta_rule", GATED), ("kda", KDA), ("rwkv7", SEVEN))
    for shape in shapes
    if shape.length <= SHORT
]


def arguments(name, shape):
    """Arguments by name, and options."""
    generator = torch.Generator().manual_seed(shape.length)

    def draw(*last, heads=shape.heads):
        token = (shape.batch, shape.length, heads)
        return torch.randn((*token, *last), generator=generator)

    values, size = shape.value_heads, shape.size
    q, k = draw(size), draw(size)
    k = k if shape.computed else F.normalize(k, dim=-1)
    given = {"q": q, "k": k, "v": draw(size, heads=values)}
    given = {n: t.to(shape.dtype) for n, t in given.items()}
    last = (size,) if name != "gated_delta_rule" else ()
    gates = draw(*last, heads=values)
    keep = torch.rand(gates.shape, generator=generator) >= shape.masked
    gates = gates if shape.computed else F.logsigmoid(gates) / shape.over * keep
    gates = gates.clamp(shape.bound, 0) if shape.bound and not shape.computed else gates
    count = len(shape.ends) - 1 if shape.ends else shape.batch
    state = torch.randn((count, values, size, size), generator=generator)
    options = {"scale": shape.scale if shape.scale is not None else size**-0.5}
    if name == "rwkv7":
        erased = F.normalize(draw(size), dim=-1)
        rate = torch.rand(erased.shape, generator=generator)
        given = {"r": given["q"], "w": gates, "k": given["k"], "v": given["v"]}
        return given | {"a": -erased, "b": erased * rate, "initial_state": state}, options
    given |= {"g": gates, "beta": draw(heads=values)}
    if shape.computed:
        given |= {
            "A_log": torch.rand(values, generator=generator),
            "dt_bias": draw(*last, heads=values)[0, 0],
        }
        if name == "gated_delta_rule":
            given["dt_bias"] = torch.rand(values, generator=generator)
        given = {n: t for n, t in given.items() if n not in shape.without}
        if shape.bound is not None:
            options["lower_bound"] = shape.bound
        options |= dict.fromkeys(("use_gate_in_kernel", "use_qk_l2norm_in_kernel"), True)
        options |= {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
    else:
        given["beta"] = given["beta"].sigmoid()
    if shape.v_first:
        state, options["state_v_first"] = state.mT.contiguous(), True
    return {**given, "initial_state": state}, options


def loop(name, given, options):
    """One sequence and head of keys, in the dtype of the arguments."""
    given = dict(given)
    if name == "rwkv7":
        given["q"], given["g"] = given.pop("r"), given.pop("w")
    q, k, v, g, state = (given[n][0] for n in ("q", "k", "v", "g", "initial_state"))
    state = state.mT if "state_v_first" in options else state
    beta = given["beta"][0] if "beta" in given else None
    if "use_gate_in_kernel" in options:
        q, k = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
        rate = given["A_log"].exp() if "A_log" in given else g.new_ones(g.shape[1])
        rate = rate if g.dim() == 2 else rate[:, None]
        g = g + given["dt_bias"] if "dt_bias" in given else g
        low = options.get("lower_bound")
        g = -rate * F.softplus(g) if low is None else low * (rate * g).sigmoid()
        beta = 2 * beta.sigmoid()
    g = g.exp() if g.dim() == 3 else g.exp()[..., None].expand(*g.shape, k.shape[-1])
    # Taken apart once: the gradient of an index is as large as all.
    named = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    named |= {n: given[n][0] for n in "ab" if n in given}
    steps = {n: t.unbind(0) for n, t in named.items() if t is not None}
    outputs = []
    for t in range(v.shape[0]):
        at = {n: parts[t] for n, parts in steps.items()}
        passed, key = at["g"][:, :, None] * state, at["k"]
        if beta is None:
            read = torch.einsum("hk,hkv->hv", at["a"], state)
            state = passed + key[:, :, None] * at["v"][:, None]
            state = state + at["b"][:, :, None] * read[:, None]
        else:
            known = torch.einsum("k,hkv->hv", key[0], passed)
            update = at["beta"][:, None] * (at["v"] - known)
            state = passed + key[0, :, None] * update[:, None]
        outputs.append(options["scale"] * torch.einsum("k,hkv->hv", at["q"][0], state))
    return torch.stack(outputs), state.mT if "state_v_first" in options else state


def near(got, want, dtype, gradient=False):
    """Within what a half rounds, or float32 adds up, of the largest entry."""
    unit = {HALF: 2.0**-11, BRAIN: 2.0**-8}.get(dtype, 2.0**-18)
    unit *= 1 + (gradient and dtype != WIDE)
    torch.testing.assert_close(
        got.double(), want, rtol=unit, atol=unit * float(want.abs().max().clamp(min=1e-3))
    )


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_a_head_is_the_loop(name, shape):
    given, options = arguments(name, shape)
    leaves = {n: t.requires_grad_() for n, t in given.items()}
    ends = shape.ends or (0, shape.length)
    packed = {"cu_seqlens": torch.tensor(ends)} if shape.ends else {}
    y, last = getattr(ts, name)(**leaves, **options, **packed, output_final_state=True)
    assert y.dtype == shape.dtype and last.dtype == torch.float32
    weights = torch.linspace(-1, 1, y[0, :, :1].numel()).view(y[0, :, :1].shape).double()
    first = last if shape.ends else last[:1]
    total = (y[0, :, :1].double() * weights).sum() + first[:, :1].double().sum()
    names = list(leaves)
    grads = dict(zip(names, torch.autograd.grad(total, list(leaves.values())), strict=True))

    few = {n: t.detach().double().requires_grad_() for n, t in leaves.items()}
    exact = [torch.zeros_like(t) for t in few.values()]
    for number, (start, stop) in enumerate(itertools.pairwise(ends)):
        part = {n: of_head(n, t, slice(start, stop), number) for n, t in few.items()}
        want, state = loop(name, part, options)
        near(y[0, start:stop, :1], want.detach(), shape.dtype)
        near(last[number, :1], state.detach(), shape.dtype)
        wanted = (want * weights[start:stop]).sum() + state.sum()
        parts = torch.autograd.grad(wanted, list(few.values()))
        exact = [have + more for have, more in zip(exact, parts, strict=True)]
    for n, want in zip(names, exact, strict=True):
        near(grads[n], want, shape.dtype, gradient=True)


def of_head(name, tensor, tokens, sequence):
    """The part of an argument that the first head of values has."""
    if name in ("A_log", "dt_bias"):
        return tensor[:1]
    if name == "initial_state":
        return tensor[sequence : sequence + 1, :1]
    return tensor[:1, tokens, :1]
