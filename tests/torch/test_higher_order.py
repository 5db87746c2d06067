"""`associative_scan` of functions, against torch's, jax's, and its definition."""

import ast
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.support import forks  # noqa: E402
from tests.support.derivatives import check_derivatives  # noqa: E402
from tvm_scan import ScanError  # noqa: E402
from tvm_scan.torch.trace import stored_traces  # noqa: E402


def affine(p, q):
    return q[0] * p[0], q[0] * p[1] + q[1]


def exponential_sums(p, q):
    m = torch.maximum(p["m"], q["m"])
    return {"m": m, "s": p["s"] * torch.exp(p["m"] - m) + q["s"] * torch.exp(q["m"] - m)}


def complex_product(p, q):
    return p[0] * q[0] - p[1] * q[1], p[0] * q[1] + p[1] * q[0]


def bicyclic(p, q):
    met = torch.minimum(p[1], q[0])
    return p[0] + q[0] - met, p[1] + q[1] - met


def doubles(*shape, count=2, low=0.1):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.rand(*shape, generator=generator, dtype=torch.float64) + low for _ in range(count)
    ]


def folded(combine, xs, dim, reverse):
    """The definition, one operand after another; `xs` a tuple of leaves."""
    length = xs[0].shape[dim]
    order = range(length)[:: -1 if reverse else 1]
    states, out = None, [None] * length
    for t in order:
        x = tuple(leaf.select(dim, t) for leaf in xs)
        states = x if states is None else combine(states, x)
        out[t] = states
    return tuple(torch.stack(parts, dim) for parts in zip(*out, strict=True))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("combine", [affine, bicyclic, complex_product])
def test_operators(combine, dim, reverse):
    xs = tuple(doubles(4, 17, 3))
    got = ts.associative_scan(combine, xs, dim, reverse)
    for g, w in zip(got, folded(combine, xs, dim, reverse), strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.parametrize("reverse", [False, True])
def test_as_torch(reverse):
    from torch._higher_order_ops.associative_scan import associative_scan

    m, s = doubles(33, 4)
    xs = {"m": m, "s": s}
    got = ts.associative_scan(exponential_sums, xs, 0, reverse)
    want = associative_scan(exponential_sums, xs, dim=0, reverse=reverse, combine_mode="generic")
    assert list(got) == ["m", "s"]
    for name in got:
        torch.testing.assert_close(got[name], want[name])


JAX = """
import sys, jax, numpy
a, x = numpy.load(sys.argv[1])
affine = lambda p, q: (q[0] * p[0], q[0] * p[1] + q[1])
numpy.save(sys.argv[1], jax.lax.associative_scan(affine, (a, x), reverse=True))
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_as_jax(tmp_path):
    """In a process of its own: jax warns at every later fork."""
    a, x = (t.float() for t in doubles(33, 4))
    path = tmp_path / "pair.npy"
    np.save(path, torch.stack((a, x)).numpy())
    subprocess.run([sys.executable, "-c", JAX, str(path)], check=True, timeout=300)
    got = ts.associative_scan(affine, (a, x), reverse=True)
    for g, w in zip(got, np.load(path), strict=True):
        torch.testing.assert_close(g, torch.from_numpy(w))


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short(length):
    xs = tuple(doubles(3, length))
    got = ts.associative_scan(affine, xs, 1)
    want = folded(affine, xs, 1, False) if length else xs
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)


def test_dtypes():
    x = torch.arange(1, 20)
    assert torch.equal(ts.associative_scan(torch.maximum, x.flip(0)), x.flip(0).cummax(0)[0])
    small = torch.rand(4, 30).to(torch.bfloat16)
    got = ts.associative_scan(lambda p, q: p + q, small, 1)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, small.float().cumsum(1).to(torch.bfloat16))
    flags = torch.tensor([False, False, True, False])
    got = ts.associative_scan(torch.logical_or, flags)
    assert got.tolist() == [False, False, True, True]


def test_matrices():
    (x,) = doubles(20, 3, 2, 2, count=1, low=-0.3)
    got = ts.associative_scan(lambda p, q: q @ p, x)
    (want,) = folded(lambda p, q: (q[0] @ p[0],), (x,), 0, False)
    torch.testing.assert_close(got, want)
    with pytest.raises(ScanError, match="mixes the elements of a step"):
        ts.associative_scan(lambda p, q: q @ p, x.requires_grad_())


def test_steps_of_truth_values():
    """As torch has them; what it has of them for shapes alone is refused by its name."""
    torch.manual_seed(0)
    x = torch.rand(9, 3) > 0.5

    def of_tuples(combine):
        return lambda p, q: (combine(p[0], q[0]),)

    for combine in (lambda p, q: q.clamp(min=p), lambda p, q: p * q, lambda p, q: p ^ q):
        got = ts.associative_scan(combine, x)
        assert torch.equal(got, folded(of_tuples(combine), (x,), 0, False)[0])
    matrices = torch.rand(9, 2, 2) > 0.5
    got = ts.associative_scan(lambda p, q: q @ p, matrices)
    (want,) = folded(
        lambda p, q: ((q[0].float() @ p[0].float()) > 0,), (matrices,), 0, False
    )  # of which torch has no product
    assert torch.equal(got, want)
    with pytest.raises(ScanError, match="floor_mod"):
        ts.associative_scan(torch.remainder, x)


def test_a_step_with_a_recurrence_of_its_own():
    """Its scratch memory is not that of the carry, though both are used in the loop alone."""
    (x,) = doubles(7, 3, count=1)
    got = ts.associative_scan(lambda p, q: p + q.cumsum(0) * 0 + q, x)
    torch.testing.assert_close(got, x.cumsum(0))


def test_a_step_of_nothing():
    """A carry without elements, and what is emitted beside it."""
    x, none = torch.rand(5, 3), torch.zeros(0)
    carry, sums = ts.scan(lambda c, u: (c, u.sum() + c.sum()), none, x)
    assert carry.shape == (0,)
    torch.testing.assert_close(sums, x.sum(1))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "combine",
    [affine, complex_product, lambda p, q: tuple(exponential_sums(*map(pair, (p, q))).values())],
    ids=["affine", "complex", "exponential sums"],
)
def test_gradients(combine, reverse):
    xs = [t.requires_grad_() for t in doubles(2, 4, 3)]

    def call(*leaves):
        return ts.associative_scan(combine, leaves, 1, reverse)

    check_derivatives(call, xs)
    for length in (0, 1):
        got = call(*(x[:, :length] for x in xs))
        sum(g.sum() for g in got).backward()


def pair(operand):
    return dict(zip("ms", operand, strict=True))


def test_a_triple_that_fails_is_shown():
    (x,) = doubles(9, count=1)
    with pytest.raises(ScanError, match=r"found a=\(.*combine\(combine\(a, b\), c\) = "):
        ts.associative_scan(lambda p, q: 0.5 * p + q, x, check=True)
    ts.associative_scan(affine, (x, x), check=True)


def test_a_changed_closure_is_seen():
    (x,) = doubles(9, count=1)
    scale = 1.0

    def combine(p, q):
        return scale * (p + q)

    ts.associative_scan(combine, x)
    scale = 0.0
    assert float(ts.associative_scan(combine, x)[-1]) == 0


class Settings:
    scale = 1.0


def test_a_changed_attribute_is_seen(monkeypatch):
    (x,) = doubles(9, count=1)

    def combine(p, q):
        return Settings.scale * (p + q)

    assert float(ts.associative_scan(combine, x)[-1]) > 0
    monkeypatch.setattr(Settings, "scale", 0.0)
    assert float(ts.associative_scan(combine, x)[-1]) == 0


def test_a_trace_is_kept(monkeypatch):
    from tvm_scan.torch.trace import traced

    (x,) = doubles(9, count=1)
    want = ts.associative_scan(affine, (x, x))
    monkeypatch.setattr(traced, "trace", None)  # must not be called again
    for got, expected in zip(ts.associative_scan(affine, (x, x)), want, strict=True):
        assert torch.equal(got, expected)


def test_bad_calls():
    x = torch.rand(4, 3)
    with pytest.raises(ValueError, match="expected leaves of one length, got"):
        ts.associative_scan(affine, (x, x[:2]))
    with pytest.raises(ValueError, match="expected an operand"):
        ts.associative_scan(lambda p, q: (p, q), x)
    with pytest.raises(ValueError, match="branches on a value"):
        ts.associative_scan(lambda p, q: p if p.sum() > 0 else q, x)
    with pytest.raises(ValueError, match="expected an elementwise operator"):
        ts.associative_scan(lambda p, q: p + q.flip(0), x, combine_mode="pointwise")
    with pytest.raises(ScanError, match="expected a step of operators that TVM imports"):
        ts.associative_scan(lambda p, q: torch.special.i0(p) + q, x)


def test_a_circle_of_five_carries():
    """Its adjoint is in no family, and runs one step after another."""
    xs = [t.requires_grad_() for t in doubles(3, 1, count=5)]

    def convolve(p, q):  # cyclic convolution
        return tuple(sum(p[j] * q[(i - j) % 5] for j in range(5)) for i in range(5))

    weights = doubles(3, 1, count=5)
    got = ts.associative_scan(convolve, tuple(xs))
    want = folded(convolve, tuple(xs), 0, False)
    for g, w in zip(
        torch.autograd.grad(sum((t * w).sum() for t, w in zip(got, weights, strict=True)), xs),
        torch.autograd.grad(sum((t * w).sum() for t, w in zip(want, weights, strict=True)), xs),
        strict=True,
    ):
        torch.testing.assert_close(g, w)


_CHILD = """
import sys, torch, tvm_scan.torch as ts
x = torch.arange(1.0, 7.0).requires_grad_()
def compiled():
    return any(name in sys.modules for name in ("torch._dynamo", "sympy"))
def add(p, q):
    return p + q
def run(combine):
    answer = ts.associative_scan(combine, x)
    answers.append(answer.tolist())
    return answer
answers = []
y = run(add)
z = ts.scan(lambda c, t: (c * t, c + t), torch.zeros(1), x[:, None])[1]
torch.autograd.grad(y.sum() + z.sum(), x)
first = compiled()
run(lambda p, q: p * q)
K = 1.0
def scaled(p, q):
    return p + q * K
run(scaled)
K = 0.0  # what a function reads is in the key
run(scaled)
run(lambda p, q: torch.max(p, q))
print(answers, first, compiled())
"""


def test_a_trace_serves_the_next_process(tmp_path):
    """Which then does without torch's compiler, backward too; another function, another trace."""

    def answers():
        done = forks.run(
            [sys.executable, "-c", _CHILD],
            torch=True,
            env={**os.environ, "TVM_SCAN_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        values, first, last = done.stdout.strip().rsplit(" ", 2)
        return ast.literal_eval(values), ast.literal_eval(first), ast.literal_eval(last)

    sums = [1, 3, 6, 10, 15, 21]
    want = [sums, [1, 2, 6, 24, 120, 720], sums, [1] * 6, [1, 2, 3, 4, 5, 6]]
    assert answers() == (want, True, True)
    assert answers() == (want, False, False)


def test_a_trace_depends_on_what_torch_is_set_to():
    def combine(p, q):
        return p + q + torch.tensor(0.1) * 0

    def made(dtype):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return stored_traces.key_of((combine.__code__,), "owner")
        finally:
            torch.set_default_dtype(before)

    plain = made(torch.float32)
    assert plain == made(torch.float32) != made(torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert made(torch.float32) != plain
