"""Delta rules whose large products are made on tensor cores, each in three of tf32."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm.target import Target

from tests.programs.delta_programs import FORMS, linear_attention
from tests.programs.suite.running import run_loop
from tests.programs.test_delta import arguments, attention, check_causal
from tests.support import cusim
from tests.support.cuda_harness import CUDA_TARGET, compile_cuda, emit_cuda, run_cuda
from tests.support.cusim import nvcc
from tests.support.tiers import longer
from tvm_scan import ScanPlan, default_plan, parallelize
from tvm_scan.errors import PlanError
from tvm_scan.loops.linear_attention import LinearAttention
from tvm_scan.meta.space.decisions import enumerate_plans
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.common.ir import local
from tvm_scan.schedules.delta.tensor_tiles import Tiles
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.machine.machine import Machine

EIGHT = "cuda/delta_blocks(steps=8, threads_per_block=64, products=tf32x3)"
SIXTEEN = "cuda/delta_blocks(products=tf32x3)"
WIDE = "cuda/delta_blocks(steps=8, threads_per_block=256, products=tf32x3)"
FMA = "cuda/delta_blocks(steps=16)"
#: By multiply-adds alone, of chunks that are shorter than the forms.
ADDS = "cuda/delta_blocks(steps=4, threads_per_block=64)"
CUT = "cuda/delta_blocks(steps=8, threads_per_block=64, chunks=3, products=tf32x3)"


def on_target(arch):
    return Target({**dict(CUDA_TARGET.export()), "arch": arch})


def by(plan):
    def run(func, arrays):
        scheduled = parallelize(func, CUDA_TARGET, plan)
        assert "scan_multiply_tf32" in scheduled.script()
        return run_cuda(scheduled, arrays)

    return run


#: Rows of every form are no multiple of a tile; gates of heads, rows, columns and none at all.
PLANS = dict(zip(FORMS, 10 * (EIGHT, SIXTEEN, WIDE), strict=False))
PLANS |= {"several_sums": EIGHT, "product_of_three": WIDE, "own_state": CUT, "two_vectors": CUT}


@pytest.mark.parametrize(
    "name", longer(["by_vectors", "own_state", "several_sums", "gates_of_columns"], list(FORMS))
)
def test_forms(name):
    """In three orders and under the race detector, as the loop in float64 has it."""
    given = arguments(FORMS[name])
    made = by(PLANS[name])(FORMS[name], given)
    for got, want in zip(made, run_loop(FORMS[name], given), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("plan", "length", "keys", "values", "each", "symbolic", "decay"),
    [
        (EIGHT, 0, 8, 16, False, True, None),
        (SIXTEEN, 1, 8, 16, True, False, None),
        (EIGHT, 19, 7, 33, True, True, None),
        (SIXTEEN, 35, 64, 32, False, False, None),
        (CUT, 50, 16, 16, True, False, -120.0),
        (EIGHT, 17, 128, 128, False, False, None),
    ],
)
def test_against_float64(plan, length, keys, values, each, symbolic, decay):
    sizes = {"each": each, "symbolic": symbolic, "heads": 1, "decay": decay}
    got, want = attention(length, keys, values, run=by(plan), **sizes)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "plan"), [("by_vectors", SIXTEEN), ("own_state", EIGHT)])
def test_no_step_sees_what_comes_later(name, plan):
    check_causal(name, "Ks", np.inf, by(plan))


@pytest.mark.parametrize(
    ("name", "plan", "most"),
    [
        ("gated", EIGHT, 5),
        ("by_vectors", SIXTEEN, 14),
        ("gated", ADDS, 6),
        ("two_vectors", ADDS, 6),
    ],
)
@pytest.mark.skipif(not cusim.is_simulated(), reason="the race detector is the simulated device's")
def test_every_barrier_is_needed(name, plan, most):
    """Without one of them there is a race, of the reads for fragments, too."""
    scheduled, given = parallelize(FORMS[name], CUDA_TARGET, plan), arguments(FORMS[name])
    barrier = "__syncthreads();"
    count = emit_cuda(scheduled).count(barrier)
    assert count == most
    for number in range(count):

        def without_one(source, number=number):
            parts = source.split(barrier)
            return barrier.join(parts[: number + 1]) + barrier.join(parts[number + 1 :])

        with cusim.rewritten_source(without_one):
            executable = compile_cuda(scheduled)
            with pytest.raises(tvm.error.InternalError, match="race on shared memory"):
                run_cuda(scheduled, given, seeds=(0,), executable=executable)


def errors(run):
    """Of the output and the last state."""
    got, want = attention(130, 32, 32, run=run, decay=-0.01, heads=1, each=False)
    return [np.abs(one - other).max() for one, other in zip(got, want, strict=True)]


def errors_by_adds():
    return errors(lambda func, a: run_cuda(parallelize(func, CUDA_TARGET, FMA), a, seeds=(0,)))


def test_float32s_accuracy():
    """Within twice the error of multiply-adds."""
    for error, other in zip(errors(by(SIXTEEN)), errors_by_adds(), strict=True):
        assert error <= 2 * other + 2.0**-23


@pytest.mark.skipif(not cusim.is_simulated(), reason="changes what the simulator compiles")
def test_big_parts_alone_are_not_accurate():
    """One product of tf32 in the place of three is far beyond float32's error."""

    def big_alone(func, arrays):
        with cusim.rewritten_source(without_small):
            executable = compile_cuda(parallelize(func, CUDA_TARGET, SIXTEEN))
            return run_cuda(func, arrays, seeds=(0,), race=False, executable=executable)

    def without_small(source):
        begin = source.index("asm volatile(")
        last = source.rindex("asm volatile(")
        return source[:begin] + "s[4] = s[5] = s[6] = s[7] = 0.0f;\n  " + source[last:]

    assert min(errors(big_alone)) > 20 * max(errors_by_adds())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_real_heads_fit_a_block(arch):
    """No spills, and the shared memory that the plan says."""
    if not nvcc.nvcc_available():
        pytest.skip("nvcc is missing: registers and spills of the kernels are not checked")
    rows = {"sm_80": 128, "sm_90": 128, "sm_100": 64}[arch]
    plan = {"sm_80": SIXTEEN, "sm_90": SIXTEEN[:-1] + ", threads_per_block=64)", "sm_100": EIGHT}
    op = LinearAttention("gated_delta", 2, 2, rows, rows, 1.0, 1, 64, "float32", "float32",
                         2 * (1 if arch == "sm_80" else rows), 2, True)  # fmt: skip
    func = op.loop().with_attr("global_symbol", "main")
    (rule,) = analyse(func).deltas
    source = emit_cuda(parallelize(func, on_target(arch), plan[arch]))
    kernels = nvcc.compile_resources(source, arch=arch).values()
    assert all(k.spill_stores + k.spill_loads == 0 for k in kernels)
    size = ScanPlan.parse(plan[arch]).smem_bytes(rule)
    assert size - 512 <= max(k.shared_bytes for k in kernels) <= size + 512


def test_which_targets_have_them():
    rates = {"sm_75": 0, "sm_80": 512, "sm_86": 256, "sm_90a": 1024, "sm_100": 1024, "sm_120": 128}
    for arch, rate in rates.items():
        assert device_of(on_target(arch)).tensor_cores == (rate > 0), arch
        assert not rate or Machine.of(on_target(arch)).gpu.tensor == rate
    assert not device_of(Target("opencl")).tensor_cores


#: A change of the plan, the target and what is said.
REFUSED = {
    "older": (
        ("", ""),
        "sm_75",
        "expected tensor cores of tf32 .* from sm_80 on, got cuda of sm_75",
    ),
    "short": (("steps=8", "steps=4"), "sm_90", "expected chunks of 16 or 8 steps .* got steps=4"),
    "one": (("tf32x3", "tf32"), "sm_90", "expected products by fma or tf32x3, got products=tf32;"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what):
    change, arch, said = REFUSED[what]
    with pytest.raises(PlanError, match=said):
        parallelize(linear_attention(40), on_target(arch), EIGHT.replace(*change))


def test_what_is_not_float32_or_too_much_is_refused():
    (rule,), plan = analyse(linear_attention(40)).deltas, ScanPlan.parse(EIGHT)
    wide = replace(rule, state=local("S", [16, 16], "float64"))
    with pytest.raises(PlanError, match=r"expected a state of float32 .* got float64"):
        plan.check(CUDA_TARGET, wide)
    many = replace(rule, terms=rule.terms * 8)
    with pytest.raises(PlanError, match=r"expected at most 2048 products of the steps .* got 7680"):
        plan.with_(steps=16).check(CUDA_TARGET, many)


def test_the_default_and_the_space():
    """Of many states and of few; on no device that lacks them."""
    (many,) = analyse(linear_attention(2048, 128, 128)).deltas
    (few,) = analyse(linear_attention(16, 2, 16)).deltas
    assert default_plan(CUDA_TARGET, many).products == "tf32x3"
    assert default_plan(CUDA_TARGET, few).products == "tf32x3"
    assert default_plan(on_target("sm_75"), many).products == "fma"
    for arch, has in (("sm_90", True), ("sm_75", False)):
        plans = enumerate_plans(on_target(arch), few)
        assert any(getattr(plan, "products", "fma") != "fma" for plan in plans) == has
    plan, machine = ScanPlan.parse(SIXTEEN), Machine.of(CUDA_TARGET)
    assert 0 < plan.cost(many, machine).tensor < plan.cost(many, machine).seconds
    assert ScanPlan.parse(FMA).cost(many, machine).tensor == 0


def test_loads_of_a_fragment_meet_in_no_bank():
    """Of vectors: two neighbours for 16 lanes at once, and single cells for 32."""
    for rows in range(1, 257):
        for threads in (64, 128, 256):
            tiles = Tiles.of(rows, threads)
            assert tiles.per_group * tiles.groups * 8 == tiles.depth >= rows
            lanes = [(lane // 4, lane % 4) for lane in range(32)]
            for half in (lanes[:16], lanes[16:]):
                banks = {(g * tiles.stride + 2 * f + n) % 32 for g, f in half for n in (0, 1)}
                assert len(banks) == 32
            assert len({(f * tiles.stride + g) % 32 for g, f in lanes}) == 32
