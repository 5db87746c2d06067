"""Steps of decoding that go straight to the kernel: what they may rely on, and what not."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402
from tests.torch.test_delta import inputs_of, reference  # noqa: E402
from tvm_scan.torch.declare import repeated  # noqa: E402
from tvm_scan.torch.declare import ways as remembered  # noqa: E402
from tvm_scan.torch.kernels import cache  # noqa: E402
from tvm_scan.torch.ops import delta  # noqa: E402

OPTIONS = {"use_qk_l2norm_in_kernel": False, "inplace_final_state": True}


def step(seed=0, **changes):
    """Arguments of a step of two states, in float32."""
    torch.manual_seed(seed)
    given, state = inputs_of("gated_delta_rule", 1, keys=16, values=16)
    given = {n: (t * torch.rand(())).float() for n, t in given.items()}
    return {**given, "initial_state": state.float(), **OPTIONS, **changes}


@pytest.fixture
def ways(monkeypatch):
    """The ways that were taken, of functions that remember none yet: each asks for its kernel."""
    taken = []
    held = remembered.held_kernel

    def watched(key):
        kernel = held(key)
        return lambda: taken.append(key) or kernel()

    monkeypatch.setattr(remembered, "held_kernel", watched)
    for module, name in ((ts, "gated_delta_rule"), (ts, "kda"), (delta, "_repeated_backward")):
        forgetful = repeated.repeated(getattr(module, name).__wrapped__)
        monkeypatch.setattr(module, name, forgetful)
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


class Functions(TorchFunctionMode):
    """Sees every function of torch, and calls it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Sees every operator, and calls it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Functions, Operators, forward_ad.dual_level])
def test_a_step_that_is_watched_is_no_remembered_one(ways, mode):
    for seed in range(3):
        check(step(seed))
    count, given = len(ways), step()
    assert count
    with mode():
        ts.gated_delta_rule(**given)
    assert len(ways) == count
    check(step())
    assert len(ways) == count + 1


def test_mapped_and_fake_tensors_are_none_of_a_signature(ways):
    """Of the same shapes, types and dtypes as those of a step that was taken."""
    options = {**OPTIONS, "inplace_final_state": False, "output_final_state": True}
    given = {**step(), **options}
    names = [n for n, value in given.items() if isinstance(value, torch.Tensor)]

    def run(*tensors):
        return ts.gated_delta_rule(**{**given, **dict(zip(names, tensors, strict=True))})

    want = [run(*(given[n] for n in names)) for _ in range(3)][-1]
    count = len(ways)
    assert count
    rows = torch.vmap(run)(*(torch.stack((given[n], given[n])) for n in names))
    assert all(torch.equal(row[1], one) for row, one in zip(rows, want, strict=True))
    with FakeTensorMode() as fake:
        y, _ = run(*(fake.from_tensor(given[n]) for n in names))
    assert type(y) is not torch.Tensor and y.shape == want[0].shape
    assert len(ways) == count


def test_the_kernel_of_a_way_is_another_one_when_plans_are_forgotten(monkeypatch):
    for seed in range(3):
        check(step(seed))
    asked, obtain = [], cache._obtain
    monkeypatch.setattr(cache, "_obtain", lambda *key: asked.append(key) or obtain(*key))
    check(step())
    assert not asked
    cache.forget_plans()
    check(step())
    check(step())
    assert len(asked) == 1


def test_offsets_are_read_at_every_call(ways):
    """Those of one signature may be wrong; the next ones are not."""
    wrong = {3: [0, 5, 2], 5: [1, 1, 2], 6: [0, 1, 3]}
    for seed in range(8):
        given = step(inplace_final_state=False, output_final_state=True)
        names = ("q", "k", "v", "g", "beta")
        given |= {n: given[n].transpose(0, 1).contiguous() for n in names}
        offsets = torch.tensor(wrong.get(seed, [0, seed % 2, 2]))
        if seed in wrong:
            with pytest.raises(ValueError, match="gated_delta_rule: expected cu_seqlens rising"):
                ts.gated_delta_rule(**given, cu_seqlens=offsets)
            continue
        found = ts.gated_delta_rule(**given, cu_seqlens=offsets)
        want = ts.gated_delta_rule.__wrapped__(**given, cu_seqlens=offsets)
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    assert len(ways) == 4


def test_a_state_with_values_first_that_is_written_to_is_no_remembered_one(ways):
    for seed in range(3):
        given = step(seed, state_v_first=True)
        wanted = given | {"inplace_final_state": False, "output_final_state": True}
        y, last = ts.gated_delta_rule.__wrapped__(**wanted)
        found, state = ts.gated_delta_rule(**given)
        assert state is given["initial_state"]
        assert torch.equal(found, y) and torch.equal(state, last)
    assert not ways


def test_a_flat_bias_is_reshaped_at_every_call(ways):
    for seed in range(4):
        given = step(seed, inplace_final_state=False, output_final_state=True)
        *_, heads = given["g"].shape
        given["g"] = torch.rand(*given["g"].shape, 16)
        bias = torch.rand(heads * 16)
        options = {"use_gate_in_kernel": True, "A_log": torch.rand(heads), "dt_bias": bias}
        found, want = (c(**given, **options) for c in (ts.kda, ts.kda.__wrapped__))
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    assert len(ways) == 3


def test_constants_that_are_equal_and_tensors_in_their_place(ways):
    """What is 1 is True to Python; a tensor is compared with nothing."""
    for value in (True, True, 1, 1, 1.0, True):
        given = step(use_qk_l2norm_in_kernel=value)
        want = step(inplace_final_state=False, output_final_state=True)
        want["use_qk_l2norm_in_kernel"] = True
        for a, b in zip(
            ts.gated_delta_rule(**given), ts.gated_delta_rule.__wrapped__(**want), strict=True
        ):
            assert torch.equal(a, b)
    for scale in (0.5, 0.5, torch.rand(3), torch.tensor(0.5)):
        if isinstance(scale, torch.Tensor):
            with pytest.raises(ValueError, match="expected a scale that is a number"):
                ts.gated_delta_rule(**step(scale=scale))
        else:
            check(step(scale=scale), scale)


def test_results_of_inference_are_those_of_no_other_mode(ways):
    """Modes in turns: a result of inference mode is refused by autograd, another one is not."""
    for seed in range(4):
        given = step(seed, inplace_final_state=False, output_final_state=True)
        with torch.inference_mode():
            assert all(r.is_inference() for r in ts.gated_delta_rule(**given))
            inside = {n: t.clone() if isinstance(t, torch.Tensor) else t for n, t in given.items()}
            assert all(r.is_inference() for r in ts.gated_delta_rule(**inside))
        assert not any(r.is_inference() for r in ts.gated_delta_rule(**given))
        ts.gated_delta_rule(**inside)
    assert ways


def test_threads_that_make_the_same_steps(ways):
    """Each on its own tensors, of two signatures in turns."""

    def run(seed):
        for number in range(20):
            scale = (None, 0.5)[number % 2]
            check(step_of(seed + number, scale), scale)
        return True

    steps = {(n, s): step(n, scale=s) for n in range(100) for s in (None, 0.5)}

    def step_of(seed, scale):
        given = steps[seed, scale]
        return given | {"initial_state": given["initial_state"].clone()}

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(0, 80, 20)))
    assert len(ways) > 40


def test_a_forked_child_goes_on_with_the_ways_of_its_parent(ways):
    for seed in range(3):
        check(step(seed))
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: check(step(5)))
    child.start()
    child.join(60)
    assert child.exitcode == 0
