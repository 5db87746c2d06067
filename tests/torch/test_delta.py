"""The delta rule in its forms against their equations, step after step."""

import math

import pytest

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tvm_scan.torch as ts  # noqa: E402
from tests.support.derivatives import check_derivatives  # noqa: E402
from tvm_scan.torch.kernels import cache  # noqa: E402
from tvm_scan.torch.ops.delta import delta_scan  # noqa: E402
from tvm_scan.torch.ops.delta_tensors import DeltaTensors  # noqa: E402

NAMES = ("delta_rule", "gated_delta_rule", "kda", "rwkv7")


def delta_loop(q, k, v, g=None, beta=None, a=None, b=None, scale=1.0, state=None):
    """The equations, of matrices of one batch and head at a time."""
    batch, length, heads, values = v.shape
    if not batch:
        return v, state
    group = heads // q.shape[2]
    rows = []
    last = []
    for n in range(batch):
        of_heads, of_states = [], []
        for h in range(heads):
            S = v.new_zeros(k.shape[3], values) if state is None else state[n, h]
            out = []
            for t in range(length):
                key, value = k[n, t, h // group], v[n, t, h]
                gate = torch.ones_like(key) if g is None else g[n, t, h].exp().expand(key.shape)
                if beta is None:
                    S_new = gate.diag() @ S + key.outer(value)
                    S = S_new + b[n, t, h].outer(S.mT @ a[n, t, h])
                else:
                    S = gate.diag() @ S
                    S = S + key.outer(beta[n, t, h] * (value - S.mT @ key))
                out.append(S.mT @ q[n, t, h // group] * scale)
            of_heads.append(torch.stack(out) if out else v[n, :, h])
            of_states.append(S)
        rows.append(torch.stack(of_heads, 1) if heads else v[n])
        last.append(torch.stack(of_states) if heads else state[n])
    return torch.stack(rows), torch.stack(last)


def draw(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


def inputs_of(name, length, batch=2, heads=2, group=1, keys=3, values=4, sequences=None):
    """What a function takes by name, and the states before time."""
    small, token = (batch, length, heads), (batch, length, heads * group)
    q, k, a, b, v = draw(*[(*small, keys)] * 4, (*token, values))
    rate, gate, gates = draw(token, token, (*token, keys), seed=1)
    (state,) = draw((sequences or batch, heads * group, keys, values), seed=2)
    k, a, b = (F.normalize(t, dim=-1) for t in (k, a, b))
    given = {"q": q, "k": k, "v": v}
    if name == "rwkv7":
        return {
            "r": q,
            "w": -gates.abs(),
            "k": k,
            "v": v,
            "a": -a,
            "b": b * rate.sigmoid()[..., None],
        }, state
    if name != "delta_rule":
        given["g"] = -(gates if name == "kda" else gate).abs()
    return {**given, "beta": 2 * rate.sigmoid()}, state


def reference(name, given, state, scale=None):
    given = dict(given)
    if name == "rwkv7":
        given["q"], given["g"] = given.pop("r"), given.pop("w")
        scale = 1.0 if scale is None else scale
    scale = given["q"].shape[3] ** -0.5 if scale is None else scale
    return delta_loop(**given, scale=scale, state=state)


def call(name, given, state=None, **options):
    return getattr(ts, name)(**given, initial_state=state, output_final_state=True, **options)


GROUPED = [(name, group) for name in NAMES for group in (1, 2) if name != "rwkv7" or group == 1]


@pytest.mark.parametrize(("name", "group"), GROUPED)
@pytest.mark.parametrize("length", [0, 1, 64, 70])
def test_outputs_states_and_gradients(name, group, length):
    """Chunks of the adjoint have 64 steps."""
    given, state = inputs_of(name, length, group=group)
    leaves = [*given.values(), state]
    for leaf in leaves:
        leaf.requires_grad_()
    got, want = call(name, given, state), reference(name, given, state)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    upstream = draw(want[0].shape, want[1].shape, seed=3)
    torch.testing.assert_close(
        torch.autograd.grad(got, leaves, upstream),
        torch.autograd.grad(want, leaves, upstream, allow_unused=True, materialize_grads=True),
        rtol=1e-10,
        atol=1e-10,
    )


@pytest.mark.parametrize(("keys", "values"), [(5, 100), (16, 192), (6, 8), (1, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_columns(name, keys, values):
    """Of 20, of 64, of 8 and of one column; of two blocks the gradients are sums."""
    given, state = inputs_of(name, 19, batch=1, heads=1, keys=keys, values=values)
    leaves = [t.requires_grad_() for t in (*given.values(), state)]
    got, want = call(name, given, state), reference(name, given, state)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    ones = [torch.ones_like(t) for t in want]
    torch.testing.assert_close(
        torch.autograd.grad(got, leaves, ones),
        torch.autograd.grad(want, leaves, ones),
        rtol=1e-10,
        atol=1e-10,
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("decided", ["columns=16 strip=8 vector=8", "columns=8 strip=4 vector=2"])
def test_decisions_change_no_result(name, decided, monkeypatch):
    """Columns of a task, of a strip, and cells of a vector, in some order of the sums."""
    given, state = inputs_of(name, 7, batch=1, heads=1, keys=8, values=48)
    monkeypatch.setattr(cache, "serial_plan", lambda *_: f"serial {decided} threads=False")
    monkeypatch.setattr(cache, "_plan_key", lambda *key: f"{decided} {key}".encode().hex()[:40])
    monkeypatch.setattr(cache, "_calls", {})
    got = call(name, given, state)
    torch.testing.assert_close(got, reference(name, given, state), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("packed", [False, True])
def test_derivatives(name, packed):
    given, state = inputs_of(name, 5, batch=1, sequences=2 if packed else None)
    options = {"cu_seqlens": torch.tensor([0, 2, 5])} if packed else {}
    leaves = [t.requires_grad_() for t in (*given.values(), state)]

    def run(*tensors):
        *timed, first = tensors
        return call(name, dict(zip(given, timed, strict=True)), first, **options)

    check_derivatives(run, leaves)


def test_the_gradient_of_the_last_states_is_read_only():
    """A kernel leaves another gradient in its place, but not in the caller's array."""
    given, state = inputs_of("gated_delta_rule", 5)
    state.requires_grad_()
    _, last = ts.gated_delta_rule(**given, initial_state=state, output_final_state=True)
    (weights,) = draw(last.shape, seed=7)
    before = weights.clone()
    (grad,) = torch.autograd.grad(last, state, weights)
    assert torch.equal(weights, before) and not torch.equal(grad, weights)


def test_second_derivatives_over_chunks():
    """Of 70 steps, which are three chunks."""
    given, state = inputs_of("gated_delta_rule", 70, batch=1, heads=1)
    leaves = [t.requires_grad_() for t in (*given.values(), state)]
    results = []
    for run in (call, reference):
        y, last = run("gated_delta_rule", given, state)
        grads = torch.autograd.grad(y.square().sum() + last.sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in grads), leaves))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


BORDERS = (0, 7, 7, 80, 150)


@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences(name):
    """Each is what it is alone, bit for bit, whatever is in the others; one is empty."""
    sequences = len(BORDERS) - 1
    given, state = inputs_of(name, BORDERS[-1], batch=1, sequences=sequences)
    for bad in (None, math.nan, math.inf):
        timed = {n: t.clone() for n, t in given.items()}
        if bad is not None:
            for tensor in timed.values():
                tensor[:, 12] = bad
        leaves = [t.requires_grad_() for t in (*timed.values(), state.clone())]
        y, last = call(name, timed, leaves[-1], cu_seqlens=torch.tensor(BORDERS))
        grads = torch.autograd.grad((y, last), leaves, (torch.ones_like(y), torch.ones_like(last)))
        for n in range(sequences):
            if bad is not None and n == 2:
                continue
            here = slice(BORDERS[n], BORDERS[n + 1])
            part = {m: t[:, here].detach().requires_grad_() for m, t in timed.items()}
            first = state[n : n + 1].clone().requires_grad_()
            alone = call(name, part, first)
            assert torch.equal(alone[0], y[:, here])
            assert torch.equal(alone[1], last[n : n + 1])
            wanted = torch.autograd.grad(
                alone, [*part.values(), first], [torch.ones_like(t) for t in alone]
            )
            for grad, want in zip(grads[:-1], wanted[:-1], strict=True):
                assert torch.equal(grad[:, here], want)
            assert torch.equal(grads[-1][n : n + 1], wanted[-1])


def test_second_derivatives_of_packed_sequences_are_apart():
    given, state = inputs_of("kda", 12, batch=1, sequences=3)
    results = []
    for bad in (None, math.nan):
        timed = {n: t.clone() for n, t in given.items()}
        if bad is not None:
            for tensor in timed.values():
                tensor[:, 5] = bad
        leaves = [t.requires_grad_() for t in (*timed.values(), state.clone())]
        y, _ = call("kda", timed, leaves[-1], cu_seqlens=torch.tensor([0, 4, 8, 12]))
        grads = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.sum() for g in grads), leaves)
        results.append([torch.cat((t[:, :4], t[:, 8:]), 1) for t in second[:-1]])
    assert all(torch.equal(want, got) for want, got in zip(*results, strict=True))


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("log_gate", [0.0, -math.inf, 0.5])
def test_numbers_at_the_ends(beta, log_gate):
    """A key of norm 0, gates of 0 and 1 and above, and every rate."""
    for name in ("gated_delta_rule", "kda"):
        given, state = inputs_of(name, 9)
        given["beta"].fill_(beta)
        given["g"][:, ::2] = log_gate
        given["k"][:, 3] = 0
        leaves = [t.requires_grad_() for t in (*given.values(), state)]
        got, want = call(name, given, state), reference(name, given, state)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        grads = torch.autograd.grad(got[0].sum(), leaves)
        torch.testing.assert_close(grads, torch.autograd.grad(want[0].sum(), leaves))
        if log_gate == -math.inf:
            assert not grads[3][:, ::2].any(), "what a gate of 0 has passed is no difference"


def options_of(name, form, heads=2, keys=3):
    """Every option of a function that changes what it reads, and the same by torch."""
    (A_log, bias) = draw((heads,), (heads, keys) if name == "kda" else (heads,), seed=5)
    options = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
    options |= {"allow_neg_eigval": True, "scale": 0.3}
    learned = {} if name == "delta_rule" else {"A_log": A_log, "dt_bias": bias}
    if form == "bound of biases":
        del learned["A_log"]
    if learned:
        options["use_gate_in_kernel"] = True
    if form != "softplus":
        options["lower_bound"] = -5.0

    def by_torch(given, learned):
        changed = dict(given)
        for n in "qk":
            x = given[n]
            changed[n] = x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        changed["beta"] = 2 * given["beta"].sigmoid()
        if "g" in given:
            raw = given["g"] + learned["dt_bias"]
            rate = learned["A_log"].exp() if "A_log" in learned else raw.new_ones(heads)
            rate = rate[:, None] if name == "kda" else rate
            bounded = -5 * (rate * raw).sigmoid()
            changed["g"] = -rate * F.softplus(raw) if form == "softplus" else bounded
        return changed

    return options, learned, by_torch


FORMS = [("delta_rule", "softplus"), ("gated_delta_rule", "softplus")]
FORMS += [("kda", form) for form in ("softplus", "bound", "bound of biases")]


@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("group", [1, 2])
def test_what_the_kernel_reads(name, form, group):
    """Norms, gates and rates are computed by the kernel, and so are their gradients."""
    keys = 16
    given, state = inputs_of(name, 70, heads=1, group=group, keys=keys, values=64)
    given["k"] = 3 * given["k"]
    options, learned, by_torch = options_of(name, form, heads=group, keys=keys)
    leaves = [t.requires_grad_() for t in (*given.values(), *learned.values(), state)]
    got = call(name, given, state, **learned, **options)
    want = reference(name, by_torch(given, learned), state, scale=0.3)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    upstream = draw(want[0].shape, want[1].shape, seed=3)
    torch.testing.assert_close(
        torch.autograd.grad(got, leaves, upstream),
        torch.autograd.grad(want, leaves, upstream),
        rtol=1e-10,
        atol=1e-10,
    )


@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("packed", [False, True])
def test_derivatives_of_what_the_kernel_reads(name, form, packed):
    batch, sequences = (1, 2) if packed else (2, None)
    given, state = inputs_of(name, 5, batch=batch, sequences=sequences)
    options, learned, _ = options_of(name, form)
    if packed:
        options["cu_seqlens"] = torch.tensor([0, 2, 5])
    names = [*given, *learned]
    leaves = [t.requires_grad_() for t in (*given.values(), *learned.values(), state)]

    def run(*tensors):
        *named, first = tensors
        return call(name, dict(zip(names, named, strict=True)), first, **options)

    check_derivatives(run, leaves)


@pytest.mark.parametrize(("name", "form"), FORMS[1:3])
def test_what_the_kernel_reads_in_float32(name, form):
    """By vectors, whose functions are polynomials, beside float64."""
    given, state = inputs_of(name, 33, batch=1, keys=32, values=16)
    given["g"] = 4 * given["g"]
    options, learned, by_torch = options_of(name, form, keys=32)
    narrow = {n: t.float() for n, t in given.items()}
    leaves = [t.requires_grad_() for t in narrow.values()]
    wide = [t.requires_grad_() for t in given.values()]
    got, _ = call(
        name, narrow, state.float(), **options, **{n: t.float() for n, t in learned.items()}
    )
    want, _ = reference(name, by_torch(given, learned), state, scale=0.3)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
    grads = torch.autograd.grad(got.sum(), leaves)
    wanted = torch.autograd.grad(want.sum(), wide)
    for grad, exact in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad.double(), exact, rtol=1e-4, atol=1e-5)


def test_what_is_read_is_mapped():
    """Rows of `torch.vmap` share the parameters, or have their own."""
    given, state = inputs_of("gated_delta_rule", 4, batch=3)
    options, learned, _ = options_of("gated_delta_rule", "softplus")
    options["output_final_state"] = False
    rows = {n: t.unsqueeze(1) for n, t in given.items()}

    def total(A_log, row, first):
        learned_here = {**learned, "A_log": A_log}
        return ts.gated_delta_rule(**row, initial_state=first, **learned_here, **options)[0].sum()

    grads = torch.vmap(torch.func.grad(total), (None, 0, 0))(learned["A_log"], rows, state[:, None])
    several = learned["A_log"].expand(3, -1)
    alike = torch.vmap(torch.func.grad(total))(several, rows, state[:, None])
    for n in range(3):
        row = {name: t[n] for name, t in rows.items()}
        want = torch.func.grad(total)(learned["A_log"], row, state[n : n + 1])
        torch.testing.assert_close(grads[n], want)
        torch.testing.assert_close(alike[n], want)


def test_states_with_values_first():
    given, state = inputs_of("gated_delta_rule", 6, group=2)
    got = call("gated_delta_rule", given, state.mT, state_v_first=True)
    want = reference("gated_delta_rule", given, state)
    torch.testing.assert_close(got, (want[0], want[1].mT))


@pytest.mark.parametrize("name", NAMES)
def test_in_place(name):
    """Decoding: the state is where it was, and step after step is the whole."""
    given, state = inputs_of(name, 4, keys=3, values=4)
    given, state = {n: t.float() for n, t in given.items()}, state.float()
    want, last = call(name, given, state)
    ours = state.clone()
    where, parts = ours.data_ptr(), []
    for t in range(4):
        part = {n: x[:, t : t + 1] for n, x in given.items()}
        y, same = call(name, part, ours, inplace_final_state=True)
        assert same is ours
        parts.append(y)
    assert ours.data_ptr() == where
    torch.testing.assert_close(torch.cat(parts, 1), want)
    torch.testing.assert_close(ours, last)
    flipped = state.mT.contiguous()
    y, same = call(name, given, flipped, inplace_final_state=True, state_v_first=True)
    assert same is flipped
    torch.testing.assert_close((y, flipped.mT), (want, last))
    with pytest.raises(ValueError, match="an initial_state to write to, got None; pass one"):
        call(name, given, inplace_final_state=True)
    next(iter(given.values())).requires_grad_()
    with pytest.raises(ValueError, match=r"no derivative of inplace_final_state.*no_grad"):
        call(name, given, ours, inplace_final_state=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_alone_has_the_bits_of_one_among_others(name):
    """Its kernel takes the state where it is, and has no loop over time; three steps have one."""
    given, state = inputs_of(name, 3, keys=20, values=16)
    given, state = {n: t.float() for n, t in given.items()}, state.float()
    together, after = call(name, given, state)
    in_place = state.clone()
    for t in range(3):
        token = {n: x[:, t : t + 1].contiguous() for n, x in given.items()}
        before = state.clone()
        y, last = call(name, token, state)
        assert torch.equal(state, before) and torch.equal(y, together[:, t : t + 1])
        y, _ = getattr(ts, name)(**token, initial_state=in_place, inplace_final_state=True)
        assert torch.equal(y, together[:, t : t + 1]) and torch.equal(in_place, last)
        state = last
    assert torch.equal(state, after)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_dtypes(dtype):
    given, state = inputs_of("gated_delta_rule", 300, batch=1, keys=16, values=16)
    given, state = {n: t.to(dtype) for n, t in given.items()}, state.to(dtype)
    got = call("gated_delta_rule", given, state)
    assert [t.dtype for t in got] == [dtype, torch.float32]
    want = reference("gated_delta_rule", {n: t.double() for n, t in given.items()}, state.double())
    # Halves are rounded once, at the end.
    unit = 2.0**-23 * 16 if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(got[0].double(), want[0], rtol=unit, atol=unit)


def test_autocast_rounds_nothing():
    given, state = inputs_of("gated_delta_rule", 6)
    given, state = {n: t.float() for n, t in given.items()}, state.float()
    options = {"use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True}
    options |= {"A_log": torch.zeros(2), "use_beta_sigmoid_in_kernel": True}
    runs = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            runs.append(call("gated_delta_rule", given, state, **options))
    assert all(torch.equal(want, got) for want, got in zip(*runs, strict=True))


def wrong(**changes):
    given, state = inputs_of("gated_delta_rule", 4, group=2)
    options = {n: v for n, v in changes.items() if n not in given and n != "state"}
    given |= {n: v for n, v in changes.items() if n in given}
    return call("gated_delta_rule", given, changes.get("state", state), **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"q": torch.zeros(2, 4, 3, 3), "k": torch.zeros(2, 4, 3, 3)},
            "heads of q that divide the 4",
        ),
        ({"state": torch.zeros(2, 4, 4, 3)}, r"initial_state of shape \(2, 4, 3, 4\), got"),
        ({"g": torch.zeros(2, 4, 2)}, r"g of shape \(2, 4, 4\), got \(2, 4, 2\)"),
        ({"cu_seqlens": torch.tensor([0, 4])}, r"one row of packed sequences, got \(2, 4\)"),
        ({"cu_seqlens": torch.tensor([0.0, 4])}, "integers in cu_seqlens, got torch.float32"),
        ({"allow_neg_eigval": True}, "beta's logits with allow_neg_eigval"),
        ({"A_log": torch.zeros(4)}, "gates that are computed, got A_log; pass use_gate_in_kernel"),
        ({"use_gate_in_kernel": True}, "an A_log with use_gate_in_kernel, got None"),
        ({"scale": torch.ones(())}, "a scale that is a number, got Tensor"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        wrong(**changes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("offsets", [[0, 3, 2, 4], [1, 4], [0, 3], [0, 5], [-1, 4]])
def test_bad_offsets(name, offsets):
    """The error has the name of the function that was called."""
    given, _ = inputs_of(name, 4, batch=1)
    found = rf"^tvm_scan.torch.{name}: expected cu_seqlens rising from 0 to 4, got \["
    with pytest.raises(ValueError, match=found):
        call(name, given, cu_seqlens=torch.tensor(offsets))


def test_many_steps():
    """Of 2^16 steps with gates close to 1 the error is that of a few steps, not of so many."""
    length = 1 << 16
    given, state = inputs_of("gated_delta_rule", length, batch=1, heads=1, keys=4, values=8)
    given["g"] = 1e-3 * given["g"]
    narrow = {n: t.float() for n, t in given.items()}
    y, last = call("gated_delta_rule", narrow, state.float())
    q, k, v, g, beta = (t[0, :, 0].double().numpy() for t in narrow.values())
    S, out = state[0, 0].float().double().numpy(), numpy.empty((length, 8))
    for t, gate in enumerate(numpy.exp(g)):
        S = gate * S
        S = S + k[t][:, None] * (beta[t] * (v[t] - k[t] @ S))
        out[t] = 0.5 * (q[t] @ S)
    unit = float(abs(out).max()) * 2.0**-19
    torch.testing.assert_close(y[0, :, 0].double(), torch.from_numpy(out), rtol=0, atol=unit)
    torch.testing.assert_close(last[0, 0].double(), torch.from_numpy(S), rtol=0, atol=unit)


@pytest.mark.parametrize(("length", "count"), [(1, 0), (64, 0), (65, 1), (130, 2)])
def test_states_that_are_kept(length, count):
    """One for every 64 steps, but for the one that the caller has; and what each step reads."""
    given, state = inputs_of("gated_delta_rule", length)
    tensors = DeltaTensors(
        **given, a=None, b=None, A_log=None, dt_bias=None, h0=state, offsets=None
    )
    kept, known = delta_scan(*tensors, None, "w: exp", True)[2:]
    assert kept.shape == (2 * count, *state.shape[1:])
    for n in range(count):
        before = {name: t[:, : 64 * (n + 1)] for name, t in given.items()}
        torch.testing.assert_close(kept[n::count], call("gated_delta_rule", before, state)[1])
    for t in {0, 5, length - 1} & set(range(length)):
        before = {name: tensor[:, :t] for name, tensor in given.items()}
        passed = (
            given["g"][:, t].exp()[..., None, None] * call("gated_delta_rule", before, state)[1]
        )
        read = torch.einsum("bhk,bhkv->bhv", given["k"][:, t], passed)
        torch.testing.assert_close(known[:, t], read)
    assert not delta_scan(*tensors, None, "w: exp", False)[3].numel()
