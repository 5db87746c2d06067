"""What a user's function reads: its trace is kept where that is known exactly, and only there."""

import builtins
import math
import operator
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402
from tvm_scan.torch.trace.reads import global_state, state_of  # noqa: E402
from tvm_scan.torch.trace.stored_traces import key_of  # noqa: E402

K = 2.0


class Options:
    factor = 2.0


def affine(p, q):
    return q[0] * p[0], q[0] * p[1] + q[1]


def gated(p, q, bias=0.5):
    return torch.where(p > q, p * K, F.silu(q)) + torch.special.expit(p) + math.pi * bias


def mapped(p, q):
    return [affine(a, b) for a, b in zip(p, q, strict=True)]


def made(p, q):
    return p + torch.tensor(1.0) * torch.zeros((), dtype=torch.float64).to(torch.float32)


def within_bounds(p, q):
    return abs(p) + q


def within(factor):
    def combine(p, q):
        return (lambda z: z * factor + K)(p) + q

    return combine


KNOWN = [affine, gated, mapped, made, within(3.0), lambda p, q: torch.maximum(p, q)]


@pytest.mark.parametrize("function", KNOWN, ids=lambda f: f.__qualname__)
def test_known_reads_have_a_state_and_a_key(function):
    state = state_of(function)
    assert state is not None
    assert state == state_of(function)
    assert key_of(state) is not None


def imports(p, q):
    from math import pi

    return p * pi + q


def looks_up(p, q):
    return p * globals()["K"] + q


def asks_torch(p, q):
    return p if torch.is_grad_enabled() else q


def draws(p, q):
    return p + q + torch.rand(3)


def binds(p, q):
    global K
    K = 2.0
    return p + q


def sets(p, q):
    Options.factor = 3.0
    return p + q


def reads_a_class(p, q):
    return p * Options.factor + q


def renames(p, q):
    library = torch
    return library.sin(p) + q


def counts():
    calls = 0

    def combine(p, q):
        nonlocal calls
        calls += 1
        return p * calls + q

    return combine


def defines(p, q):
    class Local:
        factor = K

    return p * Local.factor + q


def unset():
    def combine(p, q):
        return p * later + q

    if not torch:
        later = 1.0
    return combine


class Callable:
    def __call__(self, p, q):
        return p + q


UNKNOWN = [
    *(imports, looks_up, asks_torch, draws, binds, sets, reads_a_class, renames, counts()),
    *(defines, unset(), within([3.0]), within(torch), Callable(), Callable().__call__),
    *(operator.add, torch.add),
]


@pytest.mark.parametrize("function", UNKNOWN, ids=lambda f: getattr(f, "__qualname__", "callable"))
def test_unknown_reads_have_no_state(function):
    assert state_of(function) is None


def test_a_state_is_that_of_the_values(monkeypatch):
    before, other = state_of(gated), state_of(within(3.0))
    assert state_of(within(3)) != other != state_of(within(-3.0))
    assert state_of(within(0.0)) != state_of(within(-0.0))
    monkeypatch.setitem(globals(), "K", 3.0)
    assert state_of(gated) != before
    monkeypatch.undo()
    assert state_of(gated) == before
    monkeypatch.setattr(gated, "__defaults__", (0.25,))
    assert state_of(gated) != before
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "affine", lambda p, q: q)
    assert state_of(mapped) not in (None, before)


def test_what_stands_in_the_place_of_a_known_function(monkeypatch):
    before = state_of(within_bounds)
    monkeypatch.setattr(builtins, "abs", lambda x: x)
    assert state_of(within_bounds) not in (None, before)
    monkeypatch.undo()
    before = state_of(gated)
    monkeypatch.setattr(torch, "where", lambda mask, p, q: q)
    assert state_of(gated) not in (None, before)
    monkeypatch.undo()
    assert state_of(gated) == before
    other = types.ModuleType("torch")
    other.where = lambda mask, p, q: p
    other.special = torch.special
    monkeypatch.setitem(globals(), "torch", other)
    assert state_of(gated) not in (None, before)


def test_the_state_of_torch():
    before = global_state()
    with torch.device("meta"):
        assert global_state() != before
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert global_state() != before
    assert global_state() == before


def test_a_function_that_imports_is_traced_anew(monkeypatch):
    """What it imports may have changed; this once gave the first answer for ever."""
    module = types.ModuleType("tvm_scan_test_factors")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def combine(p, q):
        import tvm_scan_test_factors

        return p + q * tvm_scan_test_factors.factor

    x = torch.ones(4)
    found = []
    for module.factor in (1.0, 0.0):
        found.append(ts.associative_scan(combine, x).tolist())
    assert found == [[1, 2, 3, 4], [1, 1, 1, 1]]


def test_objects_have_no_key():
    assert key_of((object(),)) is None
    assert key_of((affine,)) is None
    assert key_of((("float", "1.0"), affine.__code__)) is not None


def test_another_default_device_is_another_state():
    """A function may make tensors; where they are is part of what it records."""
    plain = global_state()
    with torch.device("meta"):
        assert global_state() != plain
    try:
        torch.set_default_device("meta")
        assert global_state() != plain
    finally:
        torch.set_default_device(None)
    assert global_state() == plain
