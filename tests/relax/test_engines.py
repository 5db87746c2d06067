"""Delta rules of a serving engine in Relax, called as engines call them."""

import logging

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.programs import engine_programs as programs
from tests.programs.suite.running import CPU
from tests.programs.test_engine_loops import check, form, inputs_of, reference
from tests.programs.test_threads import no_loop_of_time, waits
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, in_every_order
from tvm_scan.extraction.threads import is_bound
from tvm_scan.relax import FindScans, ParallelizeScans, get_pipeline

SIZES = {"heads": 2, "keys": 8, "values": 32}
FORMS = [*programs.MAKERS, "seven"]


def module(name):
    """A Relax function that calls a form; one whose state is in place by an in-place call."""
    builder = relax.BlockBuilder()
    batch, length = tirx.Var("b", "int64"), tirx.Var("n", "int64")
    arrays = inputs_of(name, 3, 5, **SIZES)

    def kind(array):
        steps = 1 if name == "step" else length
        sizes = [{3: batch, 5: steps}.get(n, n) for n in array.shape[:2]]
        shape = [*sizes, *array.shape[2:]] if array is not arrays[-1] else [batch, *array.shape[1:]]
        return relax.TensorType(shape, str(array.dtype))

    params = [relax.Var(f"x{i}", kind(array)) for i, array in enumerate(arrays)]
    value = arrays[3 if name == "seven" else 2]
    kinds = [kind(value), kind(arrays[-1])]
    with builder.function("main", params):
        with builder.dataflow():
            kernel = builder.add_func(form(name, **SIZES), "kernel")
            if name == "in_place":
                call = relax.op.call_tir_inplace(kernel, relax.Tuple(params), [-1, 5], kinds)
            else:
                call = relax.call_tir(kernel, params, kinds)
            out = builder.emit_output(call)
        builder.emit_func_output(out)
    return builder.get()


def runs(name, target, device, sizes, every_order):
    built = compile_cached(
        module(name), target=target, relax_pipeline=get_pipeline(target), plainly=True
    )
    machine = relax.VirtualMachine(built, device)
    for batch, length in sizes:
        inputs = inputs_of(name, batch, length, **SIZES)

        def call(inputs=inputs):
            got = machine["main"](*(tvm.runtime.tensor(a, device) for a in inputs))
            return [part.numpy() for part in got]

        got = in_every_order(call, built) if every_order else call()
        check("blocks", got, reference(name, inputs), "float32")


@pytest.mark.parametrize("name", FORMS)
def test_cpu(name):
    runs(name, CPU, tvm.cpu(), [(3, 1), (2, 21)], every_order=False)


@pytest.mark.parametrize("name", ["blocks", "in_place", "step"])
def test_cuda(name):
    """Long sequences in chunks; one step as its author wrote it."""
    runs(name, CUDA_TARGET, tvm.cuda(), [(2, 1), (1, 5)], every_order=True)


@pytest.mark.parametrize("name", FORMS)
def test_found(name):
    (report,) = FindScans(module(name))
    assert len(report.deltas) == 1
    assert "delta rule over" in str(report)


def test_what_each_device_runs():
    on_cpu = ParallelizeScans(CPU)(module("blocks"))["kernel"]
    assert not is_bound(on_cpu.body)
    assert "delta_chunks" in on_cpu.script()
    both = ParallelizeScans(CUDA_TARGET)(module("blocks"))["kernel"].script()
    assert "delta_block" in both
    assert "decay" in both
    mod = module("step")
    assert ParallelizeScans(CUDA_TARGET)(mod)["kernel"].same_as(mod["kernel"])


def called(func, shape):
    """A module that calls a function of one input and one output."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            kernel = builder.add_func(func.with_attr("tirx.is_scheduled", True), "kernel")
            out = builder.emit_output(
                relax.call_tir(kernel, [x], relax.TensorType(shape, "float32"))
            )
        builder.emit_func_output(out)
    return builder.get()


def test_a_kernel_without_time_runs_on_a_cpu():
    shape = [int(extent) for extent in no_loop_of_time.params[0].ty.shape]
    mod = called(no_loop_of_time, shape)
    assert FindScans(mod) == []
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    x = np.random.default_rng(0).uniform(0.1, 1, shape).astype("float32")
    got = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, x / x.sum(1, keepdims=True), rtol=1e-5)


def test_a_kernel_that_waits_for_threads_stays(caplog):
    mod = called(waits, [8, 8])
    with caplog.at_level(logging.INFO, "tvm_scan"):
        kernel = ParallelizeScans(CPU)(mod)["kernel"]
    assert is_bound(kernel.body)
    assert "kernel keeps its threads on a CPU" in caplog.text
