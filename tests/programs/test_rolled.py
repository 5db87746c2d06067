"""Loops over time that are tiled or unrolled by hand are taken for the loop that they are."""

import numpy as np
import pytest
import tvm
import tvm_ffi

from tests.programs.rolled_programs import NEAR_MISSES, PAIRS
from tests.programs.test_extraction import CPU, sequential
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tvm_scan import Recurrence, Refusal, RefusalKind, ScanPlan, extract, parallelize, tir

CPU_PLAN = ScanPlan.of("cpu", "three_phase", chunks=4)
CUDA_PLAN = ScanPlan.of("cuda", "serial_tiles", threads_per_block=8, items_per_thread=2)

SIZES = {"m": 5, "n": 37}


def arguments(func):
    rng = np.random.default_rng(0)
    sizes = tir.VarMap(
        (var, tvm.tirx.const(SIZES[var.name], tir.dtype_of(var)))
        for param in func.params
        for extent in tir.shape_of(param)
        for var in tir.variables(extent).keys()
    )
    shapes = [
        [tir.simplify(tir.substitute(e, sizes)) for e in tir.shape_of(p)] for p in func.params
    ]
    return [
        rng.integers(-1, 2, [int(e) for e in shape]).astype(tir.dtype_of(p))
        for p, shape in zip(func.params, shapes, strict=True)
    ]


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_scan_as_the_plain_loop(name):
    hand, plain = PAIRS[name]
    found = extract(hand)
    assert isinstance(found, Recurrence), found.message()
    made, wanted = (
        parallelize(func, CPU, CPU_PLAN).without_attr("global_symbol") for func in PAIRS[name]
    )
    assert tvm_ffi.structural_equal(made, wanted, map_free_vars=True), made.script()
    assert not tvm_ffi.structural_equal(hand, plain, map_free_vars=True)


ONCE = {plain.attrs["global_symbol"]: name for name, (_, plain) in PAIRS.items()}


@pytest.mark.parametrize("name", ONCE.values())
def test_cpu_and_cuda_equal_the_loop_as_written(name):
    """One of each plain loop: the others of its kind are the same function, as tested above."""
    hand, _ = PAIRS[name]
    args = arguments(hand)
    want = sequential(hand, args)
    tensors = [tvm.runtime.tensor(a) for a in args]
    compile_cached(parallelize(hand, CPU, CPU_PLAN), target=CPU, plainly=True)(*tensors)
    on_cuda = run_cuda(parallelize(hand, CUDA_TARGET, CUDA_PLAN), args, seeds=(0,))
    for tensor, cuda, expected in zip(tensors, on_cuda, want, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), expected)
        np.testing.assert_array_equal(cuda, expected)


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_are_refused(name):
    found = extract(NEAR_MISSES[name])
    assert isinstance(found, Refusal), f"taken as {found.algebras}"
    assert found.kind is not RefusalKind.NO_RECURRENCE, "it carries"


def test_an_unroll_is_not_said_to_cross_lanes():
    found = extract(NEAR_MISSES["another_second_step"])
    assert found.kind is RefusalKind.VARYING_LAG
    assert "unrolled by hand is taken where its steps are the same" in found.fix
