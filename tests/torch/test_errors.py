"""The error that the page of a function states, held against its equation in float64.

A page says "within N units of the largest entry": N units in the last place of float32, relative
to the largest entry of the result, over 300 steps of float32 inputs like those here.
"""

import re

import pytest

from tests import ROOT

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.torch.oracles import linear_loop, selective_loop  # noqa: E402
from tests.torch.test_delta import delta_loop  # noqa: E402
from tests.torch.test_gated import hgrn_loop, matrix_loop, rglru_loop  # noqa: E402

PAGES = ROOT / "docs" / "torch"
LENGTH = 300


def selective(u, delta, A, B, C):
    return selective_loop(u, delta, -A, B.unsqueeze(1), C.unsqueeze(1), softplus=False)[0]


def ssd(x, dt, A, B, C):
    """One group, one batch: gated linear attention with one gate a head."""
    q, k = (t.expand(*x.shape[:3], t.shape[3]) for t in (C, B))
    gates = (-dt * A).unsqueeze(3).expand(k.shape)
    first = x.new_zeros(x.shape[0], x.shape[2], k.shape[3], x.shape[3])
    return matrix_loop(q, k, x * dt.unsqueeze(3), gates, first)[0]


def lfilter(x):
    y = [x.new_zeros(2)] * 2
    for value in x.unbind(-1):
        y.append(0.5 * value + 1.2 * y[-1] - 0.5 * y[-2])
    return torch.stack(y[2:], -1)


def filtered(x):
    return ts.lfilter(x, x.new_tensor([1, -1.2, 0.5]), x.new_tensor([0.5, 0, 0]), clamp=False)


def delta(name):
    """A function of the delta rule on unit keys, and its equation."""

    def terms(q, k, v, *others):
        k = torch.nn.functional.normalize(k, dim=-1)
        if name == "rwkv7":
            g, rate = others
            return {"q": q, "k": k, "v": v, "g": -g, "a": -k, "b": k * rate}
        *gates, beta = others
        named = {"q": q, "k": k, "v": v, "beta": beta}
        return named | {"g": -gates[0]} if gates else named

    def call(*tensors):
        named = terms(*tensors)
        if name == "rwkv7":
            named["r"], named["w"] = named.pop("q"), named.pop("g")
        return getattr(ts, name)(**named, scale=1.0)[0]

    return call, lambda *tensors: delta_loop(**terms(*tensors))[0]


L = (2, LENGTH)
M = (1, LENGTH, 2, 8)
#: Function and page -> shapes of the inputs (uniform, 0 to 1), the function, its equation.
CASES = {
    "cumsum": ([L], lambda x: ts.cumsum(x, 1), lambda x: x.cumsum(1)),
    "logcumsumexp": ([L], lambda x: ts.logcumsumexp(x, 1), lambda x: x.logcumsumexp(1)),
    "linear_recurrence": ([L, L], ts.linear_recurrence, lambda a, x: linear_loop(a, x)[0]),
    "lfilter": ([L], filtered, lfilter),
    "rglru": (
        [(1, LENGTH, 4)] * 3 + [(4,)],
        ts.rglru,
        lambda *t: rglru_loop(*t, t[0].new_zeros(1, 4))[0],
    ),
    "hgrn": (
        [(1, LENGTH, 4)] * 2,
        ts.hgrn,
        lambda x, f: hgrn_loop(x, f, x.new_zeros(1, 4), 0)[0],
    ),
    "gla": (
        [M] * 4,
        lambda q, k, v, g: ts.gla(q, k, v, -g, scale=1),
        lambda q, k, v, g: matrix_loop(q, k, v, -g, q.new_zeros(1, 2, 8, 8))[0],
    ),
    "delta_rule": ([M] * 3 + [M[:3]], *delta("delta_rule")),
    "gated_delta_rule": ([M] * 3 + [M[:3]] * 2, *delta("gated_delta_rule")),
    "kda": ([M] * 4 + [M[:3]], *delta("kda")),
    "rwkv7": ([M] * 5, *delta("rwkv7")),
    "rwkv6": (
        [M] * 4 + [(2, 8)],
        lambda r, k, v, w, u: ts.rwkv6(r, k, v, -w, u),
        lambda r, k, v, w, u: matrix_loop(r, k, v, -w, r.new_zeros(1, 2, 8, 8), u)[0],
    ),
    "ssd": (
        [M, M[:3], (2,), (1, LENGTH, 1, 8), (1, LENGTH, 1, 8)],
        lambda x, dt, A, B, C: ts.ssd(x, dt, -A, B, C),
        ssd,
    ),
    "selective_scan": (
        [(1, 16, LENGTH), (1, 16, LENGTH), (16, 8), (1, 8, LENGTH), (1, 8, LENGTH)],
        lambda u, delta, A, B, C: ts.selective_scan(u, delta, -A, B, C),
        selective,
    ),
}


def units(name):
    """The largest error, in units in the last place of the largest entry."""
    shapes, call, equation = CASES[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.rand(shape, generator=generator) for shape in shapes]
    with torch.no_grad():
        got, want = call(*inputs).double(), equation(*(t.double() for t in inputs))
    return float((got - want).abs().max() / want.abs().max()) / torch.finfo(torch.float32).eps


@pytest.mark.parametrize("name", CASES)
def test_the_error_that_the_page_states(name):
    text = " ".join((PAGES / f"{name}.md").read_text(encoding="utf-8").split())
    stated = re.search(r"within (\d+) units of the largest entry", text)
    assert stated, "a page states its error"
    assert units(name) <= int(stated[1])


def test_every_function_has_a_page():
    table = (PAGES / "functions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[([\w., ]+)\]\((\w+\.md)\)", table, re.M)
    pages = {name: page for names, page in rows for name in names.split(", ")}
    # These have other pages, and doors have functions of their own.
    others = {"CompiledScan", "Extremum", "Patch", "compile_primfunc", "loops_of", "use_records"}
    others |= {"compat", "distributed", "nn", "store"}
    behind = {f"compat.{name}" for name in ts.compat.__all__} | {*ts.distributed.__all__}
    assert set(pages) == {*ts.__all__, *behind} - others
    for name, page in pages.items():
        text = (PAGES / page).read_text(encoding="utf-8")
        assert name in text, page
        assert "```python" in text, page
        assert re.search(r"\*\*(Gradients\*\* and \*\*)?error|\*\*Error", text), page
