"""Delta rules as serving engines write them: taken, and the loop; changed, refused or the loop."""

import linecache

import numpy as np
import pytest
import tvm

from tests.programs import engine_programs as programs
from tests.programs.delta_programs import FORMS as FORMS_BY_HAND
from tests.programs.engine_variants import VARIANTS
from tests.programs.suite.mutation import mutants
from tests.programs.suite.running import CPU, run_loop
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, check_nvcc, run_cuda
from tests.support.tiers import paired
from tvm_scan import parallelize, verify
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.errors import PlanError, RefusalError
from tvm_scan.extraction import root_nests
from tvm_scan.extraction.delta import extract_delta
from tvm_scan.recurrence import Refusal
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.splice import ensure_blocks
from tvm_scan.schedules.verification.verify import check_verified

HEADS, KEYS, VALUES = 4, 16, 64
#: A half has 11 bits; float32 adds and multiplies some twenty times a step, and gates forget.
CLOSE = {"float32": 2e-5, "float16": 2e-3}


def gated(q, k, v, g, beta, state):
    """The sequential loop in float64."""
    q, k, v, g, beta, state = (np.asarray(a, "float64") for a in (q, k, v, g, beta, state))
    group = v.shape[2] // q.shape[2]
    q, k = (np.repeat(a, group, 2) * scale for a, scale in ((q, k.shape[-1] ** -0.5), (k, 1)))
    out = np.zeros(v.shape)
    for t in range(v.shape[1]):
        state = g[:, t, :, None, None] * state
        known = np.einsum("bhk,bhkv->bhv", k[:, t], state)
        error = beta[:, t, :, None] * (v[:, t] - known)
        state = state + k[:, t, :, :, None] * error[:, :, None]
        out[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t], state)
    return out, state


def seven(r, w, k, v, a, b, state):
    """The sequential loop in float64."""
    r, w, k, v, a, b, state = (np.asarray(x, "float64") for x in (r, w, k, v, a, b, state))
    out = np.zeros(v.shape)
    for t in range(v.shape[1]):
        erased = np.einsum("bhj,bhij->bhi", a[:, t], state)
        state = (
            w[:, t, :, None] * state
            + v[:, t, :, :, None] * k[:, t, :, None]
            + erased[..., None] * b[:, t, :, None]
        )
        out[:, t] = np.einsum("bhj,bhij->bhi", r[:, t], state)
    return out, state


def unit(rng, shape):
    a = rng.standard_normal(shape)
    return a / np.linalg.norm(a, axis=-1, keepdims=True)


def gated_inputs(batch, length, heads=HEADS, keys=KEYS, values=VALUES, dtype="float32"):
    rng = np.random.default_rng(length)
    tokens, states = (batch, length, heads // programs.KEYS_OF, keys), (batch, heads, keys, values)
    return [
        rng.standard_normal(tokens).astype(dtype),
        unit(rng, tokens).astype(dtype),
        rng.standard_normal((batch, length, heads, values)).astype(dtype),
        np.exp(-rng.random((batch, length, heads))).astype("float32"),
        rng.random((batch, length, heads)).astype("float32"),
        rng.standard_normal(states).astype("float32"),
    ]


def seven_inputs(batch, length, heads=HEADS, size=KEYS, dtype="float32"):
    rng = np.random.default_rng(length)
    shape = (batch, length, heads, size)
    erase = unit(rng, shape)
    return [
        rng.standard_normal(shape).astype(dtype),
        np.exp(-0.6 * rng.random(shape)).astype("float32"),
        rng.standard_normal(shape).astype(dtype),
        rng.standard_normal(shape).astype(dtype),
        (-erase).astype(dtype),
        (erase * rng.random(shape)).astype(dtype),
        rng.standard_normal((batch, heads, size, size)).astype("float32"),
    ]


def arguments(name, inputs, out="float32"):
    """All arguments of a form; what it writes holds something else before."""
    state = np.full_like(inputs[-1], 5)
    value = inputs[2 if name != "seven" else 3]
    outs = [np.full(value.shape, 7, out)]
    return [*inputs, *outs] if name == "in_place" else [*inputs, *outs, state]


def results(name, arrays):
    return (arrays[6], arrays[5]) if name == "in_place" else arrays[-2:]


def check(name, got, want, dtype):
    for part, expected in zip(results(name, got), want, strict=True):
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        close = CLOSE["float32" if part.dtype == np.float32 else dtype]
        np.testing.assert_allclose(part / scale, expected / scale, atol=close, rtol=close)


def run_cpu(func, arrays):
    return called(compile_cached(parallelize(func, CPU), CPU, plainly=True), arrays)


def called(compiled, arrays):
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    compiled(*tensors)
    return [tensor.numpy() for tensor in tensors]


def delta_of(func):
    (finding,) = analyse(func).findings
    assert isinstance(finding, DeltaRule), finding.message()
    return finding


FORMS = [*programs.MAKERS, "seven"]
DTYPES = [("float32", "float32"), ("float16", "float32"), ("float16", "float16")]


def form(name, dtype="float32", out="float32", heads=HEADS, keys=KEYS, values=VALUES):
    if name == "seven":
        return programs.make_wkv_seven(heads, keys, dtype, out)
    return programs.MAKERS[name](heads, keys, values, dtype, out)


def inputs_of(name, batch, length, dtype="float32", heads=HEADS, keys=KEYS, values=VALUES):
    if name == "seven":
        return seven_inputs(batch, length, heads, keys, dtype)
    return gated_inputs(batch, 1 if name == "step" else length, heads, keys, values, dtype)


def reference(name, inputs):
    return (seven if name == "seven" else gated)(*inputs)


@pytest.mark.parametrize("name", FORMS)
def test_rows_columns_and_terms(name):
    rule = delta_of(form(name))
    assert int(rule.rows.extent) == KEYS
    assert int(rule.columns.extent) == (KEYS if name == "seven" else VALUES)
    assert len(rule.lanes) == 2
    assert [term.source is None for term in rule.terms] == (
        [True, False] if name == "seven" else [False]
    )
    assert [read.after for read in rule.reads] == [True]


@pytest.mark.parametrize(("name", "kinds"), paired(FORMS, DTYPES))
def test_cpu(name, kinds):
    """One function for a prompt, a single token, and none at all."""
    dtype, out = kinds
    compiled = compile_cached(parallelize(form(name, dtype, out), CPU), CPU)
    for batch, length in ((2, 21), (3, 1), (1, 0), (0, 5)):
        inputs = inputs_of(name, batch, length, dtype)
        got = called(compiled, arguments(name, inputs, out))
        check(name, got, reference(name, inputs), dtype)


def test_a_state_of_halves():
    """It is read once, kept in float32 and rounded once, as the carry of any loop of halves."""
    func = programs.make_blocks(HEADS, KEYS, VALUES, "float16", "float16", "float16")
    inputs = inputs_of("blocks", 2, 21, "float16")
    inputs[-1] = inputs[-1].astype("float16")
    out, state = results("blocks", run_cpu(func, arguments("blocks", inputs, "float16")))
    for part, expected in zip((out, state), reference("blocks", inputs), strict=True):
        assert part.dtype == np.float16
        np.testing.assert_allclose(part, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("name", "kinds"), paired(["blocks", "step", "seven"], DTYPES))
def test_verify(name, kinds):
    comparisons = verify(form(name, *kinds), CPU)
    check_verified(comparisons)
    assert {c.output for c in comparisons} == {"Y", "S"}


def test_verify_own_output():
    """An output behind a maximum, of which a step's NaN is not seen."""
    check_verified(verify(FORMS_BY_HAND["own_state"], CPU))


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("name", ["blocks", "step"])
def test_heads_of_a_model(name, size):
    """16 heads of keys and 32 of values."""
    inputs = inputs_of(name, 1, 5, "float16", 32, size, size)
    func = form(name, "float16", "float32", 32, size, size)
    check(name, run_cpu(func, arguments(name, inputs)), reference(name, inputs), "float16")


@pytest.mark.parametrize("name", FORMS)
def test_on_a_gpu(name):
    sizes = {"heads": 2, "keys": 8, "values": 32}
    inputs = inputs_of(name, 2, 5, "float16", **sizes)
    scheduled = parallelize(form(name, "float16", **sizes), CUDA_TARGET)
    assert "delta_block" in scheduled.script()
    got = run_cuda(scheduled, arguments(name, inputs))
    check(name, got, reference(name, inputs), "float16")


def test_a_head_of_a_model_fits_a_block():
    func = form("blocks", "float16", "float32", 32, 128, 128)
    taken = check_nvcc(parallelize(func.with_attr("global_symbol", "main"), CUDA_TARGET))
    assert any(resources.shared_bytes > 16 << 10 for resources in taken.values())


def test_a_state_that_fits_no_block():
    with pytest.raises(PlanError, match=r"expected a chunk of 4 steps .* shared memory"):
        parallelize(form("blocks", keys=256, values=256), {**CUDA_TARGET.export(), **SMALL})


SMALL = {"max_shared_memory_per_block": 16384}


# ---- variants ---------------------------------------------------------------------------------


def compiled_source(source, path):
    path.write_text(source)
    linecache.checkcache()
    space = {}
    exec(compile(source, str(path), "exec"), space)
    return space["program"]


def random_arguments(func, seed=0):
    rng = np.random.default_rng(seed)
    arrays = []
    for param in func.params:
        shape = [int(extent) for extent in param.ty.shape]
        draw = {
            "Q": unit,
            "Ks": unit,
            "Gs": lambda r, s: r.random(s),
            "Bs": lambda r, s: r.random(s),
        }
        array = draw.get(str(param.name), lambda r, s: r.standard_normal(s))(rng, shape)
        arrays.append(array.astype("float32"))
    return arrays


def check_is_loop(func, seed=0, message=""):
    arrays = random_arguments(func, seed)
    for got, want in zip(run_cpu(func, arrays), run_loop(func, arrays), strict=True):
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got / scale, want / scale, 1e-4, 1e-4, err_msg=message)


@pytest.mark.parametrize(("what", "source", "reason"), VARIANTS, ids=[v[0] for v in VARIANTS])
def test_variants(what, source, reason, tmp_path):
    func = compiled_source(source, tmp_path / "program.py")
    (finding,) = analyse(func).findings
    assert isinstance(finding, DeltaRule) == (reason is None), what
    if not isinstance(finding, Refusal):
        check_is_loop(func)
        return
    blocked = ensure_blocks(func)
    assert reason in extract_delta(blocked, root_nests(blocked)[0]).detail
    with pytest.raises(RefusalError, match="expected"):
        parallelize(func, CPU)


@pytest.mark.parametrize("what", ["as it is", "registers", "split columns"])
def test_mutants_are_refused_or_right(what, tmp_path):
    source = next(source for name, source, _ in VARIANTS if name == what)
    accepted = 0
    for number, mutant in enumerate(mutants(compiled_source(source, tmp_path / "p.py"), 6, what)):
        if not isinstance(analyse(mutant.func).findings[0], DeltaRule):
            continue
        accepted += 1
        check_is_loop(mutant.func, number, mutant.change)
    assert accepted, "no mutant was taken, and held against its loop"
