"""Steps of decoding that go straight to the kernel: what they may rely on, and what not."""

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.torch.test_delta import inputs_of, reference  # noqa: E402
from tvm_scan.torch.declare import repeated  # noqa: E402
from tvm_scan.torch.declare import ways as remembered  # noqa: E402

OPTIONS = {"use_qk_l2norm_in_kernel": False, "inplace_final_state": True}


def step(seed=0, **changes):
    """Arguments of a step of two states, in float32."""
    torch.manual_seed(seed)
    given, state = inputs_of("gated_delta_rule", 1, keys=16, values=16)
    given = {n: (t * torch.rand(())).float() for n, t in given.items()}
    return {**given, "initial_state": state.float(), **OPTIONS, **changes}


@pytest.fixture
def ways(monkeypatch):
    """What is asked of the remembered signatures: the ways that were taken."""
    taken = []
    run = remembered.launch

    def watched(*call):
        taken.append(call)
        run(*call)

    monkeypatch.setattr(remembered, "launch", watched)
    return taken


def check(given, scale=None):
    state = given["initial_state"].clone()
    named = {n: t.double() for n, t in given.items() if n in ("q", "k", "v", "g", "beta")}
    want, last = reference("gated_delta_rule", named, state.double(), scale)
    y, same = ts.gated_delta_rule(**given)
    assert same is given["initial_state"]
    torch.testing.assert_close(y.double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(same.double(), last, rtol=1e-5, atol=1e-5)
    return y


def test_the_second_step_is_the_kernel_at_once(ways):
    """On other tensors, whose states are changed in their place; no two share their output."""
    outputs = [check(step(seed)) for seed in range(4)]
    assert len(ways) >= 3
    assert len({y.data_ptr() for y in outputs}) == 4


def test_a_step_of_another_signature_is_another(ways):
    check(step())
    check(step())
    count = len(ways)
    assert count
    check(step(scale=0.5), 0.5)
    check(step(scale=0.25), 0.25)
    strided = step()
    strided["k"] = torch.cat((strided["k"], strided["k"]), 3)[..., :16]
    check(strided)
    shifted = step()
    room = torch.empty(shifted["v"].numel() + 1)
    shifted["v"] = room[1:].view(shifted["v"].shape).copy_(shifted["v"])
    check(shifted)
    assert len(ways) == count


def test_arguments_that_lie_otherwise_in_memory_are_copied(ways):
    """Keys that are a part of a wider tensor, and a state that is: another output each time."""
    for seed in range(3):
        strided = step(seed)
        strided["k"] = torch.cat((strided["k"], strided["k"]), 3)[..., :16]
        check(strided)
    count = len(ways)
    assert count
    for seed in range(3):
        strided = step(seed)
        state = strided["initial_state"]
        strided["initial_state"] = torch.cat((state, state), 3)[..., :16]
        check(strided)
    assert len(ways) == count


@pytest.mark.parametrize("in_place", [True, False])
def test_halves_go_to_the_kernel_through_their_conversion(ways, in_place):
    """Vectors and rates in bfloat16 as models have them, gates and states in float32."""
    for seed in range(4):
        given = step(seed, inplace_final_state=in_place, output_final_state=not in_place)
        halves = {n: given[n].bfloat16() for n in ("q", "k", "v", "beta")}
        wide = {n: t.float() for n, t in halves.items()}
        want, last = ts.gated_delta_rule(
            **{**given, **wide, "initial_state": given["initial_state"].clone()}
        )
        count = len(ways)
        y, state = ts.gated_delta_rule(**{**given, **halves})
        assert y.dtype == torch.bfloat16 and torch.equal(y, want.bfloat16())
        assert torch.equal(state, last)
        assert (state is given["initial_state"]) == in_place
    assert len(ways) == count + 1


def test_what_is_wrong_is_refused_every_time(ways):
    """Offsets are read, and a derivative is none of the signature of a tensor."""
    packed = step()
    row = {n: t[:1] if isinstance(t, torch.Tensor) and n != "initial_state" else t
           for n, t in packed.items()}  # fmt: skip
    for _ in range(2):
        with pytest.raises(ValueError, match="expected cu_seqlens rising"):
            ts.gated_delta_rule(**row, cu_seqlens=torch.tensor([0, 5, 1]))
    for _ in range(2):
        recorded = step()
        recorded["q"].requires_grad_()
        with pytest.raises(ValueError, match="no derivative of inplace_final_state"):
            ts.gated_delta_rule(**recorded)
    assert not ways


def test_tensors_that_were_one_are_two_the_next_time(ways):
    """The kernel of a call whose keys are its queries reads both where they differ."""
    for _ in range(2):
        same = step()
        same["k"] = same["q"]
        check(same)
    count = len(ways)
    check(step(1))
    check(step(2))
    assert count and len(ways) > count


def test_autograd_knows_that_a_state_was_changed(ways):
    """A product that needs the state of before a step has no gradient after it, at any call."""
    for _ in range(3):
        given = step()
        weight = torch.ones((), requires_grad=True)
        product = weight * given["initial_state"]
        ts.gated_delta_rule(**given)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()
    assert ways


def test_a_step_like_the_last_ones_makes_no_key(ways, monkeypatch):
    """Of two signatures in turns, as layers of two kinds call; another one makes its key."""
    kinds = [{}, {"scale": 0.5}]
    for seed in range(3):
        for changes in kinds:
            check(step(seed, **changes), changes.get("scale"))
    keys = []
    made = repeated._signature
    monkeypatch.setattr(repeated, "_signature", lambda *given: keys.append(given) or made(*given))
    count = len(ways)
    for changes in kinds:
        check(step(5, **changes), changes.get("scale"))
    assert (len(ways), keys) == (count + 2, [])
    check(step(scale=0.25), 0.25)
    wide = {n: t.double() if isinstance(t, torch.Tensor) else t for n, t in step().items()}
    check(wide)
    with torch.no_grad():
        recorded = step()
        recorded["q"].requires_grad_()
        check({n: t.detach() if n == "q" else t for n, t in recorded.items()})
        y, _ = ts.gated_delta_rule(**recorded)
    assert not y.requires_grad
    assert len(keys) >= 3
