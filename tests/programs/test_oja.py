"""Oja's rule, which erases along the value and reads along the key: two loops over time."""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.programs.suite.mutation import mutants
from tests.programs.suite.running import CPU, run_loop
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tvm_scan import Recurrence, Refusal, parallelize, verify
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.analysis import analyse

H, L, K, V = 2, 37, 12, 20
KEYS, VALUES, HEAD = (H, L, K), (H, L, V), (H, L)


@T.prim_func(s_tir=True)
def as_published(
    Q: T.Buffer(KEYS, "float32"),
    Ks: T.Buffer(KEYS, "float32"),
    Vs: T.Buffer(VALUES, "float32"),
    B: T.Buffer(HEAD, "float32"),
    G: T.Buffer(VALUES, "float32"),
    S: T.Buffer((H, K, V), "float32"),
    Y: T.Buffer(VALUES, "float32"),
):
    # Decayed by a gate for each element of the value, then updated by the key's own error.
    error = T.alloc_buffer((K,), "float32")
    for h, t in T.grid(H, L):
        for i, v in T.grid(K, V):
            S[h, i, v] = T.exp(G[h, t, v]) * S[h, i, v]
        for i in range(K):
            error[i] = T.float32(0)
        for i, v in T.grid(K, V):
            error[i] += S[h, i, v] * Vs[h, t, v]
        for i in range(K):
            error[i] = B[h, t] * (Ks[h, t, i] - error[i])
        for i, v in T.grid(K, V):
            S[h, i, v] = S[h, i, v] + error[i] * Vs[h, t, v]
        for v in range(V):
            Y[h, t, v] = T.float32(0)
        for v, i in T.grid(V, K):
            Y[h, t, v] += Q[h, t, i] * S[h, i, v]


@T.prim_func(s_tir=True)
def own_state(
    Q: T.Buffer(KEYS, "float32"),
    Ks: T.Buffer(KEYS, "float32"),
    Vs: T.Buffer(VALUES, "float32"),
    B: T.Buffer(HEAD, "float32"),
    G: T.Buffer(VALUES, "float32"),
    S: T.Buffer((H, K, V), "float32"),
    Y: T.Buffer(VALUES, "float32"),
    S1: T.Buffer((H, K, V), "float32"),
):
    # The nest's own state, values first; the outputs read it before the step, the sum undecayed.
    state = T.alloc_buffer((V, K), "float32")
    known = T.alloc_buffer((K,), "float32")
    seen = T.alloc_buffer((V,), "float32")
    for h in range(H):
        for v, i in T.grid(V, K):
            state[v, i] = S[h, i, v]
        for t in range(L):
            for i in range(K):
                known[i] = T.float32(0)
            for v, i in T.grid(V, K):
                known[i] = known[i] + T.exp(G[h, t, v]) * Vs[h, t, v] * state[v, i]
            for v in range(V):
                seen[v] = T.float32(0)
            for v, i in T.grid(V, K):
                seen[v] = seen[v] + Q[h, t, i] * state[v, i]
            for v, i in T.grid(V, K):
                state[v, i] = T.exp(G[h, t, v]) * state[v, i] + B[h, t] * Vs[h, t, v] * (
                    Ks[h, t, i] - known[i]
                )
            for v in range(V):
                Y[h, t, v] = T.max(seen[v], T.float32(0))
        for v, i in T.grid(V, K):
            S1[h, i, v] = state[v, i]


@T.prim_func(s_tir=True)
def halves(
    Q: T.Buffer(KEYS, "float16"),
    Ks: T.Buffer(KEYS, "float16"),
    Vs: T.Buffer(VALUES, "float16"),
    B: T.Buffer(HEAD, "float16"),
    G: T.Buffer(VALUES, "float32"),
    S: T.Buffer((H, K, V), "float32"),
    Y: T.Buffer(VALUES, "float16"),
):
    # As models keep them: vectors and rates in halves, gates, sums and states in float32.
    error = T.alloc_buffer((K,), "float32")
    seen = T.alloc_buffer((V,), "float32")
    for h, t in T.grid(H, L):
        for i, v in T.grid(K, V):
            S[h, i, v] = T.exp(G[h, t, v]) * S[h, i, v]
        for i in range(K):
            error[i] = T.float32(0)
        for i, v in T.grid(K, V):
            error[i] += S[h, i, v] * T.float32(Vs[h, t, v])
        for i in range(K):
            error[i] = T.float32(B[h, t]) * (T.float32(Ks[h, t, i]) - error[i])
        for i, v in T.grid(K, V):
            S[h, i, v] = S[h, i, v] + error[i] * T.float32(Vs[h, t, v])
        for v in range(V):
            seen[v] = T.float32(0)
        for v, i in T.grid(V, K):
            seen[v] += T.float32(Q[h, t, i]) * S[h, i, v]
        for v in range(V):
            Y[h, t, v] = T.float16(seen[v])


FORMS = {"as_published": as_published, "own_state": own_state, "halves": halves}


def arguments(func, seed=0):
    rng = np.random.default_rng(seed)
    arrays = []
    for param in func.params:
        array = rng.standard_normal([int(extent) for extent in param.ty.shape])
        if param.name in ("Q", "Vs"):
            array /= np.linalg.norm(array, axis=-1, keepdims=True)
        if param.name in ("B", "G"):
            array = rng.random(array.shape) * (1 if param.name == "B" else -1)
        arrays.append(array.astype(str(param.ty.dtype)))
    return arrays


def in_float64(name, arrays):
    """The outputs, and the state after time."""
    q, k, v, beta, g, state = (array.astype("float64") for array in arrays[:6])
    outs = np.zeros_like(v)
    for t in range(L):
        before = np.einsum("hk,hkv->hv", q[:, t], state)
        state = np.exp(g[:, t])[:, None] * state
        error = k[:, t] - np.einsum("hkv,hv->hk", state, v[:, t])
        state = state + beta[:, t, None, None] * error[:, :, None] * v[:, t, None]
        after = np.einsum("hk,hkv->hv", q[:, t], state)
        outs[:, t] = np.maximum(before, 0) if name == "own_state" else after
    return outs, state


def run_on(target, func, arrays):
    scheduled = parallelize(func, target)
    if target is CUDA_TARGET:
        return run_cuda(scheduled, arrays)
    return run_cpu(scheduled, arrays)


def run_cpu(scheduled, arrays):
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    compile_cached(scheduled, target=CPU, plainly=True)(*tensors)
    return [tensor.numpy() for tensor in tensors]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("target", [CPU, CUDA_TARGET], ids=["cpu", "cuda"])
def test_against_float64(name, target):
    func, given = FORMS[name], arguments(FORMS[name])
    names = [str(param.name) for param in func.params]
    after = run_on(target, func, given)
    got = [after[names.index("Y")], after[names.index("S1" if name == "own_state" else "S")]]
    for one, want in zip(got, in_float64(name, given), strict=True):
        bound = 2e-3 if one.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(one, want, rtol=bound, atol=bound)


@pytest.mark.parametrize("name", FORMS)
def test_a_delta_rule_of_transposed_states_and_a_scan(name):
    analysis = analyse(FORMS[name])
    rule, scan = analysis.findings
    assert isinstance(rule, DeltaRule) and isinstance(scan, Recurrence)
    assert (int(rule.rows.extent), int(rule.columns.extent)) == (V, K)
    assert rule.column_gate is None, "the gates of the values are those of its rows"
    assert [algebra.name for algebra in scan.algebras] == ["affine"]


@pytest.mark.parametrize("name", ["as_published", "own_state"])
def test_mutants_are_refused_or_right(name):
    accepted = 0
    for number, mutant in enumerate(mutants(FORMS[name], 3, name)):
        if any(isinstance(finding, Refusal) for finding in analyse(mutant.func).findings):
            continue
        accepted += 1
        given = arguments(mutant.func, number)
        got = run_cpu(parallelize(mutant.func, CPU), given)
        for one, want in zip(got, run_loop(mutant.func, given), strict=True):
            scale = max(1.0, float(np.abs(want).max()))
            np.testing.assert_allclose(one / scale, want / scale, 1e-4, 1e-4, err_msg=mutant.change)
    assert accepted, "no mutant was taken, and held against its loop"


def test_verified_as_a_delta_rule():
    comparisons = verify(as_published, CPU)
    assert comparisons and all(comparison.holds for comparison in comparisons)
