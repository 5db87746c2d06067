"""The delta rule in chunks: what is taken, that it is the loop, and what is refused."""

import functools
import linecache

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.target import Target

from tests.programs.delta_programs import (
    FORMS,
    NEAR_MISSES,
    H,
    K,
    L,
    V,
    linear_attention,
    momentum,
    near_miss,
)
from tests.programs.suite.mutation import mutants
from tests.programs.suite.running import CPU, PLAIN, run_loop
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, check_nvcc, run_cuda
from tvm_scan import default_plan, extract, parallelize
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.errors import PlanError, RefusalError
from tvm_scan.extraction import root_nests
from tvm_scan.extraction.delta import extract_delta
from tvm_scan.loops.linear_attention import LinearAttention
from tvm_scan.meta.space.decisions import enumerate_plans
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.splice import ensure_blocks


def rule_of(func):
    blocked = ensure_blocks(func)
    return extract_delta(blocked, root_nests(blocked)[0])


def run_chunks(func, arrays):
    return called(compile_cached(parallelize(func, CPU), target=CPU, plainly=True), arrays)


def called(compiled, arrays):
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    compiled(*tensors)
    return [tensor.numpy() for tensor in tensors]


@functools.cache
def both_of(name):
    """A form in chunks and its loop, compiled once for all that enters them."""
    chunks = compile_cached(parallelize(FORMS[name], CPU), CPU, plainly=True)
    return chunks, compile_cached(FORMS[name], PLAIN)


def arguments(func, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for param in func.params:
        shape = [int(extent) for extent in param.ty.shape]
        if str(param.ty.dtype) == "int32":
            made.append((rng.random(shape) < 0.2).astype("int32"))
            continue
        array = rng.standard_normal(shape)
        if param.name == "Ks" or param.name == "Q":
            array /= np.linalg.norm(array, axis=-1, keepdims=True)
        if param.name in ("B", "G"):
            array = rng.random(shape) if param.name == "B" else -rng.random(shape)
        made.append(array.astype("float32"))
    return made


@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    func = FORMS[name]
    found = rule_of(func)
    assert isinstance(found, DeltaRule), found.message()
    assert int(found.rows.extent) == K
    assert int(found.columns.extent) == V
    given = arguments(func)
    for got, want in zip(run_chunks(func, given), run_loop(func, given), strict=True):
        # A step rounds some twenty times, and gates and unit keys forget: no growth with L.
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("what", "parts", "reason"), NEAR_MISSES, ids=[m[0] for m in NEAR_MISSES])
def test_near_misses(what, parts, reason, tmp_path):
    source = near_miss(**parts)
    path = tmp_path / "program.py"
    path.write_text(source)
    linecache.checkcache()
    space = {}
    exec(compile(source, str(path), "exec"), space)
    found = rule_of(space["program"])
    assert not isinstance(found, DeltaRule), what
    assert reason in found.detail
    with pytest.raises(RefusalError, match="expected"):
        parallelize(space["program"], CPU)


def reference(q, k, v, decay, beta, state):
    """The sequential loop in float64."""
    q, k, v, decay, beta, state = (np.asarray(a, np.float64) for a in (q, k, v, decay, beta, state))
    out = np.zeros(v.shape)
    for t in range(q.shape[0]):
        state = np.exp(decay[t])[:, :, None] * state
        error = beta[t][:, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], state))
        state = state + k[t][:, :, None] * error[:, None, :]
        out[t] = np.einsum("hk,hkv->hv", q[t], state)
    return out, state


def attention(
    length, keys, values, *, decay=None, heads=2, each=False, symbolic=False, seed=0, run=run_chunks
):
    """Arrays of a gated delta rule, what it gives in chunks, and in float64."""
    op = LinearAttention("gated_delta", heads, heads, keys, values, 1.0, 1,
                         None if symbolic else length, "float32", "float32",
                         heads * (keys if each else 1), heads, True)  # fmt: skip
    func = op.loop().with_attr("global_symbol", "main")
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, length, heads, keys))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v = rng.standard_normal((length, heads, values))
    width = keys if each else 1
    if decay is None:
        decay = -np.exp(rng.standard_normal((length, heads, width)))
    else:
        decay = np.full((length, heads, width), decay)
    beta, state = rng.random((length, heads)), rng.standard_normal((heads, keys, values))
    q, k, v, decay, beta, state = (np.asarray(a, np.float32) for a in (q, k, v, decay, beta, state))
    want = reference(q, k, v, decay, beta, state)
    given = [q[None, :, :, None], k[None], v[None], state[None], decay[None], beta[None]]
    outs = [np.full((1, length, heads, 1, values), 7, "float32"), np.zeros_like(state[None])]
    got = run(func, [*given, *outs])[-2:]
    return (got[0][0, :, :, 0], got[1][0]), want


#: A chunk is 16 steps; widths that fill vectors, and that do not.
@pytest.mark.parametrize(
    ("length", "keys", "values", "each"),
    [(0, 16, 16, False), (1, 8, 16, True), (16, 16, 32, False), (33, 7, 33, True),
     (50, 128, 100, False), (17, 64, 128, True)],
)  # fmt: skip
def test_against_float64(length, keys, values, each):
    got, want = attention(length, keys, values, each=each)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_any_length():
    for length in (1, 40):
        got, want = attention(length, 16, 16, symbolic=True)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decay", [0.0, -5.0, -40.0, -120.0, -1e30])
def test_small_gates_underflow_to_zero(decay):
    """No gate is divided by: where their product underflows, what it multiplies is forgotten."""
    got, want = attention(50, 16, 16, decay=decay)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def check_causal(name, spoiled, value, run, loop=run_loop):
    """What enters at a step reaches no step before it, and no column beside it."""
    func = FORMS[name]
    given, names = arguments(func), [str(param.name) for param in func.params]
    at = 21  # within the second chunk; in the order in which time is walked
    time, inputs = L - 1 - at if name == "own_state" else at, given[names.index(spoiled)]
    column = (1, time, 3) if spoiled == "Vs" else (1, time)
    inputs[column] = value
    outs = names.index("Y")
    got, want = run(func, given)[outs], loop(func, given)[outs]
    forwards = [y[:, ::-1] if name == "own_state" else y for y in (got, want)]
    np.testing.assert_allclose(*(y[:, :at] for y in forwards), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(got[0], want[0], rtol=2e-5, atol=2e-5)
    if spoiled == "Vs":
        others = [np.delete(y, 3, axis=-1) for y in (got, want)]
        np.testing.assert_allclose(*others, rtol=2e-5, atol=2e-5)
    if name != "own_state":  # whose maximum with zero hides a NaN
        assert not np.isfinite(want[1]).all()
        # Terms of either sign are summed in another order: inf - inf.
        np.testing.assert_array_equal(*(np.isfinite(y) for y in forwards))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("spoiled", ["Vs", "Ks", "B", "Q"])
@pytest.mark.parametrize(
    "name", ["gated", "by_vectors", "own_state", "two_vectors", "product", "gates_of_columns"]
)
def test_no_step_sees_what_comes_later(name, spoiled, value):
    chunks, loop = both_of(name)
    check_causal(
        name, spoiled, value, lambda _, given: called(chunks, given), lambda _, g: called(loop, g)
    )


def test_as_a_recurrence_it_is_refused():
    refusal = extract(FORMS["gated"])
    assert refusal.kind.value == "coupled-carries"


def test_a_memory_with_a_momentum_is_refused_and_says_why():
    """The theorem holds for it (tests/laws/test_delta_theorem.py); kernels have gates alone."""
    with pytest.raises(RefusalError, match=r"M and S both carried(.|\n)*two by two in the place"):
        parallelize(momentum, CPU)


def test_several_queries_read_one_state():
    op = LinearAttention("delta", 6, 2, 16, 16, 0.5, 1, L, "float16", "float32", 0, 1, False)
    found = parallelize(op.loop(), CPU)
    assert isinstance(found, tirx.PrimFunc)
    blocked = ensure_blocks(op.loop())
    (rule,) = [
        r for n in root_nests(blocked) if isinstance(r := extract_delta(blocked, n), DeltaRule)
    ]
    assert len(rule.reads) == 3
    assert len(rule.lanes) == H


#: A mutant of the trapezoid reads before its arrays.
@pytest.mark.parametrize("name", [name for name in FORMS if name != "trapezoid"])
def test_mutants_are_refused_or_right(name):
    """One change each to indices, operators and constants: never taken for another program."""
    accepted = 0
    for number, mutant in enumerate(mutants(FORMS[name], 3, name)):
        if not isinstance(rule_of(mutant.func), DeltaRule):
            continue
        accepted += 1
        given = arguments(mutant.func, number)
        got = run_chunks(mutant.func, given)
        for one, want in zip(got, run_loop(mutant.func, given), strict=True):
            scale = max(1.0, float(np.abs(want).max()))
            np.testing.assert_allclose(one / scale, want / scale, 1e-4, 1e-4, err_msg=mutant.change)
    assert accepted, "no mutant was taken, and held against its loop"


def run_blocks(func, arrays):
    scheduled = parallelize(func, CUDA_TARGET)
    assert "delta_block" in scheduled.script()
    return run_cuda(scheduled, arrays)


ON_A_GPU = ["by_vectors", "own_state", "two_vectors", "several_sums", "product"]
ON_A_GPU += ["gates_of_columns"]


@pytest.mark.parametrize("name", ON_A_GPU)
def test_forms_on_a_gpu(name):
    given = arguments(FORMS[name])
    for got, want in zip(run_blocks(FORMS[name], given), run_loop(FORMS[name], given), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["by_vectors", "own_state"])
def test_no_step_sees_what_comes_later_on_a_gpu(name):
    check_causal(name, "Ks", np.inf, run_blocks)


@pytest.mark.parametrize(
    ("length", "keys", "values", "each", "symbolic"),
    [(0, 8, 16, False, True), (1, 8, 16, True, False), (19, 7, 33, True, True)],
)
def test_blocks_against_float64(length, keys, values, each, symbolic):
    got, want = attention(
        length, keys, values, each=each, symbolic=symbolic, heads=1, run=run_blocks
    )
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


#: Segments of one chunk of steps, of several, and more than there are steps.
CUTS = ["steps=4, chunks=3", "steps=16, chunks=2, threads_per_block=64", "steps=4, chunks=12"]
#: Likewise on a CPU, whose threads take them; columns that no strip or vector divides.
CPU_CUTS = [
    "steps=4, chunks=3, threads=True, columns=16",
    "steps=2, chunks=2",
    "steps=4, chunks=12, threads=True, columns=16, strip=4, vector=4",
]


def run_cut(device, plan):
    def run(func, arrays):
        if device == "cuda":
            scheduled = parallelize(func, CUDA_TARGET, f"cuda/delta_blocks({plan})")
            assert "delta_carries" in scheduled.script()
            return run_cuda(scheduled, arrays)
        scheduled = parallelize(func, CPU, f"cpu/delta_walk({plan})")
        assert "delta_carries" in scheduled.script()
        return called(compile_cached(scheduled, target=CPU, plainly=True), arrays)

    return run


def each_cut(name):
    return [("cuda", name, plan) for plan in CUTS] + [("cpu", name, plan) for plan in CPU_CUTS]


@pytest.mark.parametrize(
    ("device", "name", "plan"),
    [
        *each_cut("own_state"),
        *(("cuda", name, CUTS[0]) for name in ("two_vectors", "product")),
        *(("cpu", name, CPU_CUTS[0]) for name in ("two_vectors", "product", "trapezoid")),
    ],
)
def test_segments_of_forms(device, name, plan):
    """Maps of segments are combined, and each is replayed from the state before it."""
    func = FORMS[name]
    given = arguments(func)
    for got, want in zip(run_cut(device, plan)(func, given), run_loop(func, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("device", "plan"), [("cuda", CUTS[0]), ("cpu", CPU_CUTS[0])])
@pytest.mark.parametrize("name", ["own_state", "with_resets"])
def test_no_step_sees_what_comes_later_in_segments(name, device, plan):
    check_causal(name, "Vs", np.nan, run_cut(device, plan))


@pytest.mark.parametrize(("device", "plan"), [("cuda", CUTS[0]), ("cpu", CPU_CUTS[0])])
@pytest.mark.parametrize(
    ("length", "keys", "values", "each", "symbolic", "decay"),
    [
        (0, 8, 16, False, True, None),
        (1, 8, 16, True, False, None),
        (19, 7, 33, True, True, None),
        (40, 8, 8, False, False, -120.0),
    ],
)
def test_segments_against_float64(length, keys, values, each, symbolic, decay, device, plan):
    sizes = {"each": each, "symbolic": symbolic, "heads": 1, "decay": decay}
    got, want = attention(length, keys, values, run=run_cut(device, plan), **sizes)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_what_many_cores_choose_is_right():
    """The default of 16 cores for one head, run by those that are here."""
    many = Target({"kind": "llvm", "mcpu": "znver3", "num-cores": 16})

    def run(func, arrays):
        (rule,) = analyse(func).deltas
        plan = default_plan(many, rule)
        assert plan.chunks and plan.threads
        return run_cut("cpu", str(plan).partition("(")[2].removesuffix(")"))(func, arrays)

    got, want = attention(1025, 64, 64, heads=1, run=run)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_column_of_its_own_has_no_map():
    for name, reason in (("several_sums", "a rate"), ("gates_of_columns", "a gate")):
        (rule,) = analyse(FORMS[name]).deltas
        wanted = f"by one matrix, for chunks of time, got {reason} of"
        plans = {CUDA_TARGET: "cuda/delta_blocks(", CPU: "cpu/delta_walk(steps=1, "}
        for target, plan in plans.items():
            with pytest.raises(PlanError, match=wanted):
                parallelize(FORMS[name], target, f"{plan}chunks=4)")
            assert not any(plan.chunks for plan in enumerate_plans(target, rule))


def test_few_long_states_are_cut_for_many_cores():
    def chosen(cores, heads, size, length=8192):
        target = Target({"kind": "llvm", "mcpu": "znver3", "num-cores": cores})
        (rule,) = analyse(linear_attention(length, heads, size)).deltas
        return default_plan(target, rule)

    assert chosen(16, 1, 64).chunks == 8
    assert chosen(64, 1, 128).chunks == 8
    assert not chosen(2, 1, 128).chunks, "columns fill two cores without passing time twice"
    assert not chosen(16, 32, 128).chunks
    assert not chosen(16, 1, 64, 16).chunks
    assert not chosen(64, 1, 64, None).chunks, "it may be a step"
    assert not chosen(1, 1, 64).chunks


def test_few_long_states_are_cut_and_many_are_not():
    def chosen(heads, length):
        (rule,) = analyse(linear_attention(length, heads, 128)).deltas
        return default_plan(CUDA_TARGET, rule)

    assert chosen(2, 8192).chunks > 8
    assert not chosen(128, 8192).chunks
    assert not chosen(2, 16).chunks
    assert not chosen(2, None).chunks, "it may be a step"


@pytest.mark.parametrize("keys", [64, 128])
def test_real_heads_fit_a_block(keys):
    op = LinearAttention("gated_delta", 2, 2, keys, keys, 1.0, 1, 64, "float32", "float32",
                         2 * keys, 2, True)  # fmt: skip
    func = op.loop().with_attr("global_symbol", "main")
    for plan in (None, "cuda/delta_blocks(steps=8, chunks=4)"):
        taken = check_nvcc(parallelize(func, CUDA_TARGET, plan))
        assert any(resources.shared_bytes > 16 << 10 for resources in taken.values())
