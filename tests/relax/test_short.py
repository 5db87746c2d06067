"""Kernels of a serving engine in Relax: parallel where they are long, the original at length 1."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.programs.serving_programs import make_wkv_five, make_wkv_six
from tests.programs.suite.frontends import rwkv_six_of_a_serving_engine as constant
from tests.programs.suite.running import CPU, run_loop
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, in_every_order
from tvm_scan import extract, parallelize
from tvm_scan.relax import ParallelizeScans, get_pipeline
from tvm_scan.relax.short import keep_for_one_step

HEADS, SIZE = 2, 8
#: Batch and length.
SIZES = [(3, 1), (3, 2), (2, 21), (1, 1000)]
KERNELS = {"five": make_wkv_five(HEADS, SIZE), "six": make_wkv_six(HEADS, SIZE)}


def types(name, batch, length):
    tokens, matrices = [batch, length, HEADS, SIZE], [batch, HEADS, SIZE, SIZE]
    gate = tokens if name == "six" else [HEADS, SIZE]
    return [tokens, tokens, tokens, [HEADS, SIZE], gate, matrices], [tokens, matrices]


def module(name):
    builder = relax.BlockBuilder()
    ins, outs = types(name, tirx.Var("b", "int64"), tirx.Var("n", "int64"))
    params = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(ins)]
    with builder.function("main", params):
        with builder.dataflow():
            kernel = builder.add_func(KERNELS[name], "wkv")
            kinds = [relax.TensorType(s, "float32") for s in outs]
            out = builder.emit_output(relax.call_tir(kernel, params, kinds))
        builder.emit_func_output(out)
    return builder.get()


def arguments(name, batch, length):
    rng = np.random.default_rng(length)
    ins, outs = types(name, batch, length)
    arrays = [rng.integers(-1, 2, s).astype("float32") for s in ins]
    arrays[4] = rng.choice(np.float32([-1, 0, 1]), ins[4])
    return arrays, [np.zeros(s, "float32") for s in outs]


def runs(name, target, device, sizes, every_order):
    built = compile_cached(
        module(name), target=target, relax_pipeline=get_pipeline(target), plainly=True
    )
    machine = relax.VirtualMachine(built, device)
    for size in sizes:
        ins, outs = arguments(name, *size)
        want = run_loop(KERNELS[name], [*ins, *outs])[-2:]

        def call(ins=ins):
            got = machine["main"](*(tvm.runtime.tensor(a, device) for a in ins))
            return [part.numpy() for part in got]

        got = in_every_order(call, built) if every_order else call()
        for value, expected in zip(got, want, strict=True):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("name", KERNELS)
def test_cpu(name):
    runs(name, CPU, tvm.cpu(), SIZES, every_order=False)


@pytest.mark.parametrize("name", KERNELS)
def test_cuda(name):
    runs(name, CUDA_TARGET, tvm.cuda(), SIZES[:3], every_order=True)
    runs(name, CUDA_TARGET, tvm.cuda(), SIZES[3:], every_order=False)


@pytest.mark.parametrize("target", [CPU, CUDA_TARGET], ids=["cpu", "cuda"])
def test_one_function_holds_both(target):
    func = ParallelizeScans(target)(module("six"))["wkv"]
    first, second = func.body.block.body.seq
    length = func.params[0].ty.shape[1]
    short = length <= tirx.IntImm("int64", 1)
    tvm.ir.assert_structural_equal(first.extent.condition, short)
    tvm.ir.assert_structural_equal(second.extent.condition, tirx.Not(short))
    assert "token" in first.script()
    assert "token" not in second.script()


def test_a_constant_length_has_no_branch():
    scheduled = parallelize(constant, CPU)
    found = [extract(constant)]
    assert keep_for_one_step(constant, scheduled, found, CPU).same_as(scheduled)
