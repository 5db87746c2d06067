"""Steps of training that go straight to the kernels: what they may rely on, and what not."""

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.torch.test_repeated import step  # noqa: E402
from tests.torch.test_repeated import ways as _ways  # noqa: E402

TRAINED = {"inplace_final_state": False, "output_final_state": True}
ways = _ways  # the fixture, of its name here
UNREMEMBERED = ts.gated_delta_rule.__wrapped__
LEAVES = ("q", "k", "v", "g", "beta", "initial_state")


def trained(seed=0, leaves=LEAVES, **changes):
    """Arguments of some steps, and those of them that have a gradient."""
    given = {**step(seed), **TRAINED, **changes}
    for name in ("q", "k", "v", "g", "beta"):
        given[name] = torch.cat([given[name], 0.5 * given[name]], 1)
    return given, [given[n].requires_grad_() for n in leaves]


def pulled(call, given, leaves, **options):
    """What a call returns, and the gradients of its sum of cubes."""
    results = [r for r in call(**given) if r is not None]
    total = sum((r.double() ** 3).sum() for r in results)
    return results, torch.autograd.grad(total, leaves, **options)


@pytest.mark.parametrize("leaves", [LEAVES, ("v", "beta"), ("initial_state",)])
def test_steps_of_training_are_two_kernels_at_once(ways, leaves):
    """There and back, with the gradients that the way through all checks has."""
    for seed in range(4):
        given, wanting = trained(seed, leaves)
        count = len(ways)
        found = pulled(ts.gated_delta_rule, given, wanting)
        taken = len(ways) - count
        want = pulled(ts.gated_delta_rule.__wrapped__, given, wanting)
        for some, others in zip(found, want, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(some, others, strict=True))
    assert taken == 2


def test_training_on_halves_without_a_state_that_is_returned(ways):
    for seed in range(4):
        given, _ = trained(seed, (), output_final_state=False)
        given |= {n: given[n].bfloat16() for n in ("q", "k", "v", "beta")}
        wanting = [given[n].requires_grad_() for n in LEAVES]
        count = len(ways)
        (y,), found = pulled(ts.gated_delta_rule, given, wanting)
        taken = len(ways) - count
        assert ts.gated_delta_rule(**given)[1] is None and y.dtype == torch.bfloat16
        _, want = pulled(ts.gated_delta_rule.__wrapped__, given, wanting)
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    assert taken == 2


def test_a_call_is_recorded_only_where_gradients_are_enabled(ways):
    """Of the same tensors in turns; the state of one that is not recorded may be written to."""
    for seed in range(4):
        given, wanting = trained(seed)
        with torch.no_grad():
            y, state = ts.gated_delta_rule(**given)
            assert not y.requires_grad and y.grad_fn is None and not state.requires_grad
            in_place = given | {"inplace_final_state": True}
            in_place["initial_state"] = given["initial_state"].clone()
            assert torch.equal(ts.gated_delta_rule(**in_place)[1], state)
        results, _ = pulled(ts.gated_delta_rule, given, wanting)
        assert all(r.requires_grad for r in results) and torch.equal(results[0], y)
        with pytest.raises(ValueError, match="no derivative of inplace_final_state"):
            ts.gated_delta_rule(**given | {"inplace_final_state": True})
    assert len(ways) >= 4 * 3


def test_a_remembered_derivative_has_one(ways):
    """And hooks of what is saved are called, and what was written since is refused."""
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    for seed in range(3):
        given, wanting = trained(seed)
        count = len(kept)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            _, grads = pulled(ts.gated_delta_rule, given, wanting, create_graph=True)
        assert len(kept) >= count + len(LEAVES)
        second = torch.autograd.grad(sum((g**2).sum() for g in grads), wanting)
        call = ts.gated_delta_rule.__wrapped__
        _, want = pulled(call, given, wanting, create_graph=True)
        want = torch.autograd.grad(sum((g**2).sum() for g in want), wanting)
        assert all(torch.equal(a, b) for a, b in zip(second, want, strict=True))
        results = ts.gated_delta_rule(**given)
        with torch.no_grad():
            given["k"].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            results[0].sum().backward()
    assert ways


#: Calls of other forms: options, and the tensors that they have besides.
FORMS = {
    "no state": {"initial_state": None},
    "neither": {"initial_state": None, "output_final_state": False},
    "values first": {"state_v_first": True},
    "values first of none": {"state_v_first": True, "initial_state": None},
    "packed": {"cu_seqlens": (0, 3, 4)},
    "packed without a state": {"cu_seqlens": (0, 1, 4), "initial_state": None},
}


def formed(form, seed, leaves):
    """Arguments of a call of a form, and those of them that have a gradient."""
    given, _ = trained(seed, ())
    offsets = form.get("cu_seqlens")
    if offsets is not None:
        names = ("q", "k", "v", "g", "beta")
        given |= {n: torch.cat([*given[n]])[None].contiguous() for n in names}
        # Of other sequences each time, in another type of integers at times.
        start = 1 + seed % 2
        form = form | {"cu_seqlens": torch.tensor([0, start, 4], dtype=torch.int32)}
    given |= form
    return given, [given[n].requires_grad_() for n in leaves if given.get(n) is not None]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("leaves", [LEAVES, ()], ids=["trained", "inferred"])
def test_every_form_is_its_kernels_at_once(ways, form, leaves):
    for seed in range(5):
        given, wanting = formed(form, seed, leaves)
        kept = {n: t.detach().clone() for n, t in given.items() if isinstance(t, torch.Tensor)}
        count, both = len(ways), []
        for call in (ts.gated_delta_rule, UNREMEMBERED):
            results = [r for r in call(**given) if r is not None]
            both.append((len(ways), results))
            if wanting:
                total = sum((r.double() ** 3).sum() for r in results)
                results += torch.autograd.grad(total, wanting)
        (taken, found), (_, want) = both
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
        assert all(torch.equal(given[n], tensor) for n, tensor in kept.items())
    assert taken == count + 1
