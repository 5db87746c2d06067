"""Steps of a walk in pairs, by ``fma.rn.f32x2`` of sm_100: their bits, and what nvcc makes."""

import re

import numpy as np
import pytest
from tvm import tirx
from tvm.target import Target

from bench.machine_code import counted
from bench.machine_code_cases import parts_of
from bench.machine_code_peers import compiled
from bench.tuned_torch import torch_loop
from tests.support import cusim
from tests.support.cuda_harness import CUDA_TARGET, compile_cuda, emit_cuda, run_cuda
from tests.support.cusim import nvcc
from tests.support.library_runs import error_bound
from tests.support.selective_walks import CHANNELS, PLANS, STATES, inputs
from tvm_scan import extract, library, parallelize, tir
from tvm_scan.library import LIBRARY
from tvm_scan.schedules.common.ir import int_const, local
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.machine.pairs import in_pairs, step

SM_100 = Target({**dict(CUDA_TARGET.export()), "arch": "sm_100"})
PLANS = {**PLANS, "polynomials": PLANS["two threads"].with_(exp_share=4)}
LENGTH = 72
#: Of kernels that are run, or emitted, which on a GPU compiles them for it.
needs_pairs = pytest.mark.skipif(
    not cusim.is_simulated(), reason="changes what the simulator compiles, and is for sm_100"
)


def test_which_targets_have_them():
    archs = {"sm_90": False, "sm_90a": False, "sm_100": True, "sm_100a": True, "sm_120": True}
    for arch, has in archs.items():
        assert device_of(Target({"kind": "cuda", "arch": arch})).pairs == has, arch


FMA2 = re.compile(r'asm\("[^"]*fma\.rn\.f32x2[^"]*"[^;]*;')
IN_TWO = "out[0] = a0 * b0 + c0; out[1] = a1 * b1 + c1;"


def in_two_roundings(source):
    """Products and their sums rounded one by one, as the simulated device has separate steps."""
    changed, count = FMA2.subn(IN_TWO, source)
    assert count == 1
    return changed


def separate_and_paired(func, plan, args):
    """The last array of a kernel for sm_90, of one for sm_100, and of that in two roundings."""
    kernels = [parallelize(func, target, plan) for target in (CUDA_TARGET, SM_100)]
    assert [".f32x2" in emit_cuda(kernel) for kernel in kernels] == [False, True]
    separate = run_cuda(kernels[0], args, seeds=(0,))[-1]
    paired = run_cuda(kernels[1], args, seeds=(0, 2))[-1]
    with cusim.rewritten_source(in_two_roundings):
        rounded = run_cuda(kernels[1], args, seeds=(0,), executable=compile_cuda(kernels[1]))[-1]
    return separate, paired, rounded


@needs_pairs
@pytest.mark.parametrize("plan", PLANS)
def test_selective_scan(plan):
    """The bits of separate steps, where a product and its sum are rounded as theirs are."""
    func = library.selective_scan(1, CHANNELS, LENGTH, STATES)
    for exponents in (-np.arange(1, STATES + 1), -np.random.default_rng(1).random(STATES)):
        arrays = inputs(exponents, LENGTH)
        args = [*arrays.values(), np.full((1, CHANNELS, LENGTH), 77, "float32")]
        separate, paired, rounded = separate_and_paired(func, PLANS[plan], args)
        np.testing.assert_array_equal(rounded.view("int32"), separate.view("int32"))
        want = LIBRARY["selective_scan"].expected(arrays)["out"]
        bound = error_bound("selective_scan", arrays, {}, LENGTH)["out"]
        assert (np.abs(paired - want) <= bound).all()


@needs_pairs
def test_states_in_pairs():
    """Where each step loads its own states, as of outer products, two of them are a pair."""
    options = {"dtype": "float32", "reverse": False, "states": 16, "emit": "inclusive"}
    func = torch_loop(
        "outer_products", (1, 2, 16, 24), {**options, "gate": "head", "has_reset": False}
    )
    plan = PLANS["without tiles"].with_(threads_per_lane=4)
    rng = np.random.default_rng(3)
    shapes = [[int(extent) for extent in tir.shape_of(array)] for array in func.params]
    args = [rng.uniform(-1, 1, shape).astype("float32") for shape in shapes]
    separate, paired, rounded = separate_and_paired(func, plan, args)
    np.testing.assert_array_equal(rounded.view("int32"), separate.view("int32"))
    np.testing.assert_allclose(paired, separate, rtol=1e-4, atol=1e-5)


def cells(name, count=1):
    return local(name, [count], "float32")


def load(buffer, index=0):
    return tirx.BufferLoad(buffer, [int_const(index, "int32")])


def store(buffer, value, index=0):
    return tirx.BufferStore(buffer, value, [int_const(index, "int32")])


def of_two(make):
    """The text of two steps, made by ``make(0)`` and ``make(1)``."""
    return str(in_pairs(tir.seq([step(make(0)), step(make(1))]), has_pairs=True))


def test_what_would_not_be_the_same_is_left_alone():
    a, b, c, x = cells("a"), cells("b"), cells("c"), cells("x", 2)
    i = tirx.Var("i", "int32")

    def reads_what_the_first_writes_later(k):
        return tir.seq([store(b, load(a) * load(x, k)), store(a, load(x, k) * load(x, k))])

    def reads_what_the_second_has_written(k):
        return tir.seq([store(c, load(x, k) * load(a)), store(x, load(b) * load(b), 1 - k)])

    def by_an_index_that_varies(k):
        return tirx.BufferStore(x, load(a) * load(b), [i + k])

    for make in (
        reads_what_the_first_writes_later,
        reads_what_the_second_has_written,
        by_an_index_that_varies,
    ):
        assert "scan_" not in of_two(make), make.__name__


def test_a_product_stays_with_the_sum_that_takes_it():
    """Of a sum that waits for the step before, the other product alone is made in pairs."""
    h, g, x, y = cells("h"), cells("g", 2), cells("x", 2), cells("y", 2)

    def one(k):
        return store(h, load(g, k) * load(h) + load(x, k) * load(y, k))

    text = of_two(one)
    assert text.count("scan_mul2(") >= 1 and "scan_fma2" not in text

    def total(k):
        return store(h, load(h) + load(x, k) * load(y, k))

    assert "scan_" not in of_two(total), "a sum of products is rounded once for each"


@needs_pairs
@pytest.mark.skipif(nvcc.nvdisasm_path() is None, reason="needs nvcc and nvdisasm")
def test_machine_code_has_them():
    func = library.selective_scan(8, 2048, 2048, 16)
    code = nvcc.sass(emit_cuda(parallelize(func, SM_100, PLANS["two threads"])), "sm_100")
    assert code.count("FFMA2") >= 8 * 8 and code.count("FMUL2") >= 8 * 8


@needs_pairs
@pytest.mark.skipif(nvcc.nvdisasm_path() is None, reason="needs nvcc and nvdisasm")
@pytest.mark.parametrize("plan", ["two threads", "polynomials"])
def test_what_pairs_save_is_counted(plan, tmp_path):
    """The cost model's instructions of a thread are those of the machine code within a tenth."""
    func, chosen = library.selective_scan(8, 2048, 2048, STATES), PLANS[plan]
    found, elements = extract(func), 8 * 2048 * 2048 * STATES
    source = tmp_path / "kernel.cu"
    source.write_text(emit_cuda(parallelize(func, SM_100, chosen)))
    code = compiled(source, tmp_path, [], "sm_100")
    row = counted(code, parts_of(chosen, found), chosen.threads_per_block, stored=4 / STATES)
    separate, made = (
        chosen.cost(found, Machine.of(target)).work * 32 / elements
        for target in (CUDA_TARGET, SM_100)
    )
    assert made == pytest.approx(row["instructions"], rel=0.1) and made < 0.9 * separate
