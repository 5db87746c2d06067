"""Exponentials on CUDA: base 2, and a share of them by a polynomial; errors, counts, refusals."""

import re

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.support.cuda_harness import (
    CUDA_TARGET,
    check_nvcc,
    emit_cuda,
    run_cuda,
)
from tests.support.recurrence_cases import Case, check_random, random_inputs
from tvm_scan import ScanPlan, extract, library, parallelize
from tvm_scan.errors import PlanError
from tvm_scan.schedules.common.polynomials import Pool, Values, exp2_in_range
from tvm_scan.schedules.machine.machine import Machine

WALK = ScanPlan.parse(
    "cuda/lanes(threads_per_block=32, items_per_thread=4, vector_loads=True, threads_per_lane=4)"
)


def polynomial(count):
    """A kernel of nothing but the polynomial."""
    pool = Pool(1)
    let = Values(pool, tvm.tirx.IntImm("int32", 0))

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((count,), "float32"), y: T.Buffer((count,), "float32")):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        for b in T.thread_binding(count // 64, thread="blockIdx.x"):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("element"):
                    i = T.axis.spatial(count, b * 64 + tx)
                    y[i] = T.exp2(x[i])

    def on_block(block):
        store = block.body
        value = exp2_in_range(store.value.args[0], let)
        changed = tvm.tirx.BufferStore(store.buffer, value, store.indices)
        body = tvm.tirx.SeqStmt([*let.stores, changed])
        return tvm.s_tir.SBlock(
            block.iter_vars, block.reads, block.writes, block.name_hint, body, None, pool.buffers
        )

    import tvm_ffi

    def visit(block):
        return on_block(block) if block.name_hint == "element" else block

    return main.with_body(tvm_ffi.structural_map(main.body, (tvm.s_tir.SBlock, visit)))


def test_the_polynomial_is_off_by_two_ulp_at_most():
    rng = np.random.default_rng(0)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 128, 127, -126, -127, -200, 1e9, -1e9])
    x = np.concatenate([rng.uniform(-126, 128, 3000), rng.uniform(-1, 1, 1000), special])
    x = np.resize(x, 4096).astype("float32")
    got = run_cuda(polynomial(x.size), [x, np.zeros_like(x)], seeds=(0,))[1].astype("float64")
    with np.errstate(over="ignore"):
        want = np.exp2(x.astype("float64"))
        rounded = want.astype("float32")
    normal = np.isfinite(rounded) & (want >= 2.0**-125)
    ulp = np.abs(got[normal] - want[normal]) / np.spacing(np.abs(rounded[normal])).astype("float64")
    assert 0.4 < ulp.max() <= 2
    whole = normal & (x == np.round(x))
    assert whole.any() and (got[whole] == want[whole]).all()
    beyond = ~normal
    tiny = beyond & (want < 2.0**-125)
    assert (np.abs(got[tiny] - want[tiny]) < 2.0**-125).all()
    np.testing.assert_array_equal(got[beyond & ~tiny], rounded[beyond & ~tiny])


@pytest.mark.parametrize("share", [0, 4, 6, 16])
def test_a_scan_with_a_share_of_polynomials(share):
    """Within the bound of the loop's own rounding; the polynomial's two ulp are in its reserve."""
    plan = WALK.with_(exp_share=share)
    case = Case("selective_scan", sizes=(("channels", 3), ("batch", 1), ("states", 16)))
    inputs, want = random_inputs(case, 97)
    func = parallelize(case.function(97), CUDA_TARGET, plan)
    args = [*inputs.values(), *(np.full(a.shape, 77, "float32") for a in want.values())]
    got = run_cuda(func, args, seeds=(0, 2))
    check_random(case, 97, dict(zip(want, got[len(inputs) :], strict=True)), plan)
    check_nvcc(func)


def test_the_share_is_what_the_source_holds():
    """Four times 16 exponentials over the states are written out: of four steps of four owners."""
    func = library.selective_scan(1, 8, 256, 16)
    for share in (0, 4, 8, 16):
        scheduled = parallelize(func, CUDA_TARGET, WALK.with_(exp_share=share))
        source = emit_cuda(scheduled)
        assert len(re.findall(r"= .*scan_exp2\(", source)) == 4 * (16 - share)
        assert source.count("<< 23)") == 4 * share


def test_the_model_counts_them():
    found, machine = extract(library.selective_scan(8, 2048, 2048, 16)), Machine.of(CUDA_TARGET)
    plain, mixed = (WALK.with_(exp_share=s).cost(found, machine) for s in (0, 4))
    saved = 8 * 2048 * 2048 * 4
    assert plain.specials - mixed.specials == saved
    # 15 instructions instead of one, in warps of 32.
    assert mixed.work - plain.work == pytest.approx(saved * 14 / 32)


def test_what_has_no_share():
    found = extract(library.selective_scan(1, 8, 256, 16))
    with pytest.raises(PlanError, match=r"exp_share of 0 to 16, with several threads per lane"):
        WALK.with_(exp_share=17).check(CUDA_TARGET, found)
    with pytest.raises(PlanError, match="got the field 'exp_share'"):
        ScanPlan.of("cuda", "serial_tiles", 32, 2, exp_share=4)
    with pytest.raises(PlanError, match="got exp_share=4, threads_per_lane=1"):
        WALK.with_(exp_share=4, threads_per_lane=1).check(CUDA_TARGET, found)
    double = extract(library.selective_scan(1, 8, 256, 16, "float64"))
    with pytest.raises(PlanError, match=r"exponentials exp\(x a\) of float32 .*, got none"):
        WALK.with_(exp_share=4).check(CUDA_TARGET, double)


@T.prim_func(s_tir=True)
def half_weights(
    A: T.Buffer((4, 8), "float16"),
    X: T.Buffer((4, 40), "float32"),
    Y: T.Buffer((4, 40), "float32"),
):
    for d in range(4):
        h = T.sblock_alloc_buffer((8,), "float32")
        y = T.sblock_alloc_buffer((1,), "float32")
        for n in range(8):
            h[n] = T.float32(0)
        for t in range(40):
            y[0] = T.float32(0)
            for n in range(8):
                h[n] = T.exp(X[d, t] * T.Cast("float32", A[d, n])) * h[n] + X[d, t]
                y[0] = y[0] + h[n]
            Y[d, t] = y[0]


@T.prim_func(s_tir=True)
def half_weights_used_twice(
    A: T.Buffer((4, 8), "float16"),
    X: T.Buffer((4, 40), "float32"),
    Y: T.Buffer((4, 40), "float32"),
):
    """The second use is of the half itself, which nobody may multiply by log2 e."""
    for d in range(4):
        h = T.sblock_alloc_buffer((8,), "float32")
        y = T.sblock_alloc_buffer((1,), "float32")
        for n in range(8):
            h[n] = T.float32(0)
        for t in range(40):
            y[0] = T.float32(0)
            for n in range(8):
                h[n] = T.exp(X[d, t] * T.Cast("float32", A[d, n])) * h[n] + T.Cast(
                    "float32", T.max(A[d, n], T.float16(-1))
                )
                y[0] = y[0] + h[n]
            Y[d, t] = y[0]


@pytest.mark.parametrize(("func", "bare"), [(half_weights, True), (half_weights_used_twice, False)])
def test_weights_in_halves_are_scaled_in_float32(func, bare):
    rng = np.random.default_rng(8)
    a, x = rng.uniform(-3, -0.1, (4, 8)).astype("float16"), rng.random((4, 40)).astype("float32")
    h, want = np.zeros((4, 8)), np.zeros((4, 40))
    for t in range(40):
        step = x[:, t, None].astype(float)
        added = step if bare else np.maximum(a.astype(float), -1)
        h = np.exp(step * a.astype(float)) * h + added
        want[:, t] = h.sum(1)
    scheduled = parallelize(func, CUDA_TARGET, WALK)
    source = emit_cuda(scheduled)
    assert ("scan_exp2(" in source) == bare
    got = run_cuda(scheduled, [a, x, np.zeros_like(x)])[2]
    # 2 ulp of an exponential and 3 roundings of a step, over states that sum to 8 * 40 at most;
    # log2 e rounded to a half would be off by 2^-12.
    np.testing.assert_allclose(got, want, rtol=40 * 5 * 2.0**-24, atol=320 * 2.0**-24)
