"""The Relax pass: recurrences are scheduled, everything else stays as it is."""

import logging

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import dlight
from tvm.script import tirx as T
from tvm.target import Target

from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, in_every_order
from tvm_scan import library
from tvm_scan.relax import FindScans, ParallelizeScans, ScanScheduleRule, get_pipeline

CPU = Target.from_device("cpu")
ROWS, LENGTH = 4, 5000


@T.prim_func(s_tir=True, private=True)
def squared_carry(
    X: T.Buffer((T.int64(4), T.int64(8)), "float32"),
    H: T.Buffer((T.int64(4), T.int64(8)), "float32"),
):
    T.func_attr({"op_pattern": 8})
    for b, t in T.grid(T.int64(4), T.int64(8)):
        with T.sblock("scan"):
            vb = T.axis.spatial(T.int64(4), b)
            vt = T.axis.scan(T.int64(8), t)
            T.reads(X[vb, vt], H[vb, vt - T.int64(1)])
            T.writes(H[vb, vt])
            H[vb, vt] = (
                T.sin(T.if_then_else(vt > T.int64(0), H[vb, vt - T.int64(1)], T.float32(0)))
                + X[vb, vt]
            )


def module(rows=ROWS, length=LENGTH, func=None, twice=False):
    """sigmoid -> recurrence -> multiply -> relu, and a matrix product beside it."""
    builder = relax.BlockBuilder()
    shape = [rows, length]
    a = relax.Var("a", relax.TensorType(shape, "float32"))
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    func = func or library.linear_recurrence(rows, length)
    with builder.function("main", [a, x]):
        with builder.dataflow():
            gate = builder.emit(relax.op.sigmoid(a))
            name = builder.add_func(func, "recurrence")
            kind = relax.TensorType(shape, "float32")
            h = builder.emit(relax.call_tir(name, [gate, x], kind))
            if twice:
                h = builder.emit(relax.call_tir(name, [gate, h], kind))
            y = builder.emit(relax.op.nn.relu(relax.op.multiply(h, relax.const(2.0, "float32"))))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


def expected(a, x, twice=False):
    gate = 1 / (1 + np.exp(-a.astype("float64")))
    h, _ = library.linear_recurrence_reference(gate, x.astype("float64"))
    if twice:
        h, _ = library.linear_recurrence_reference(gate, h)
    return np.maximum(2 * h, 0)


def run(executable, device, *arrays):
    machine = relax.VirtualMachine(executable, device)
    tensors = [tvm.runtime.tensor(array, device) for array in arrays]
    return machine["main"](*tensors).numpy()


def arrays(rows=ROWS, length=LENGTH):
    rng = np.random.default_rng(0)
    return rng.standard_normal((2, rows, length)).astype("float32")


def test_report_names_the_recurrence():
    (report,) = FindScans(module())
    assert report.name == "recurrence"
    assert "affine scan over" in str(report)


@pytest.mark.parametrize("twice", [False, True])
def test_default_cpu_pipeline(twice):
    a, x = arrays()
    mod = module(twice=twice)
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    np.testing.assert_allclose(run(built, tvm.cpu(), a, x), expected(a, x, twice), 1e-4, 1e-4)


def test_inside_the_zero_pipeline():
    a, x = arrays()
    with CPU:
        mod = ParallelizeScans(CPU)(module())
        mod = relax.get_pipeline("zero")(mod)
    built = tvm.compile(mod, target=CPU)
    np.testing.assert_allclose(run(built, tvm.cpu(), a, x), expected(a, x), 1e-4, 1e-4)


def test_after_fusion_functions_with_several_blocks():
    a, x = arrays()
    func = library.linear_recurrence(ROWS, LENGTH).without_attr("op_pattern")
    with CPU:
        mod = tvm.ir.transform.Sequential(
            [
                relax.transform.LegalizeOps(),
                relax.transform.AnnotateTIROpPattern(),
                relax.transform.FuseOps(),
                relax.transform.FuseTIR(),
            ]
        )(module(func=func))
        reports = {report.name: report for report in FindScans(mod)}
        (fused,) = (report for name, report in reports.items() if name.startswith("fused"))
        assert len(fused.recurrences) == 1
        assert len(fused.findings) > 1, "the recurrence was expected in a fused function"
        mod = ParallelizeScans(CPU)(mod)
    built = tvm.compile(mod, target=CPU)
    np.testing.assert_allclose(run(built, tvm.cpu(), a, x), expected(a, x), 1e-4, 1e-4)


def test_default_cuda_pipeline():
    a, x = arrays(2, 300)
    built = compile_cached(
        module(2, 300), target=CUDA_TARGET, relax_pipeline=get_pipeline(CUDA_TARGET)
    )
    (got,) = in_every_order(lambda: [run(built, tvm.cuda(), a, x)], built)
    np.testing.assert_allclose(got, expected(a, x), 1e-4, 1e-4)


def test_as_a_dlight_rule_before_tvms_own():
    mod = relax.transform.LegalizeOps()(module(2, 300))
    with CUDA_TARGET:
        mod = dlight.ApplyDefaultSchedule(ScanScheduleRule(), dlight.gpu.Fallback())(mod)
    built = tvm.compile(mod, target=CUDA_TARGET)
    a, x = arrays(2, 300)
    (got,) = in_every_order(lambda: [run(built, tvm.cuda(), a, x)], built)
    np.testing.assert_allclose(got, expected(a, x), 1e-4, 1e-4)


def test_a_rule_of_tvms_that_fails_leaves_a_function_to_the_next(monkeypatch, caplog):
    def fails(*_):
        raise AttributeError("'Add' object has no attribute 'value'")

    monkeypatch.setattr(dlight.gpu.GEMV, "apply", fails)
    with caplog.at_level(logging.INFO, logger="tvm_scan"):
        after = get_pipeline(CUDA_TARGET)(products())
    assert "TVM's rule GEMV fails on a function, the next one is tried" in caplog.text
    functions = [f for _, f in after.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    assert functions and all(f.attrs["tirx.is_scheduled"] for f in functions)


def products():
    builder = relax.BlockBuilder()
    a = relax.Var("a", relax.TensorType([8, 8], "float32"))
    with builder.function("main", [a]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.sum(relax.op.matmul(a, relax.op.exp(a)), axis=1))
        builder.emit_func_output(y)
    return builder.get()


def test_everything_else_stays_as_it_is():
    mod = relax.transform.LegalizeOps()(products())
    tvm.ir.assert_structural_equal(ParallelizeScans(CPU)(mod), mod)


def test_only_the_recurrence_changes():
    mod = relax.transform.LegalizeOps()(module())
    after = ParallelizeScans(CPU)(mod)
    for name, func in mod.functions_items():
        if name.name_hint == "recurrence":
            assert after[name.name_hint].attrs["tirx.is_scheduled"]
        else:
            tvm.ir.assert_structural_equal(after[name.name_hint], func)


@T.prim_func(s_tir=True)
def public_sum(X: T.Buffer((4, 8), "float32"), H: T.Buffer((4, 8), "float32")):
    for b in range(4):
        for t in range(8):
            H[b, t] = T.if_then_else(t > 0, H[b, t - 1], T.float32(0)) + X[b, t]


@T.prim_func(s_tir=True, private=True)
def plain_sine(X: T.Buffer((4, 8), "float32"), H: T.Buffer((4, 8), "float32")):
    for b in range(4):
        for t in range(8):
            H[b, t] = T.sin(T.if_then_else(t > 0, H[b, t - 1], T.float32(0))) + X[b, t]


def test_plain_loops_as_people_write_them():
    """Without blocks and with int32 shapes, one of them refused, between operators."""
    builder = relax.BlockBuilder()
    kind = relax.TensorType([4, 8], "float32")
    x = relax.Var("x", kind)
    with builder.function("main", [x]):
        with builder.dataflow():
            name = builder.add_func(plain_sine, "sine")
            y = builder.emit(relax.call_tir(name, [builder.emit(relax.op.exp(x))], kind))
            out = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(out)
    builder.add_func(public_sum, "public_sum")
    mod = builder.get()
    assert [str(report).split("\n")[:2] for report in FindScans(mod) if report.recurrences] == [
        ["public_sum", "  reduce scan over 8 steps, 4 lanes"]
    ]
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    values = np.random.default_rng(0).random((4, 8), dtype="float32")
    want, state = np.zeros((4, 8)), np.zeros(4)
    for t in range(8):
        want[:, t] = state = np.sin(state) + np.exp(values[:, t].astype("float64"))
    np.testing.assert_allclose(run(built, tvm.cpu(), values), np.maximum(want, 0), 1e-5)
    sums = tvm.runtime.tensor(np.zeros((4, 8), "float32"))
    built["public_sum"](tvm.runtime.tensor(values), sums)
    np.testing.assert_allclose(sums.numpy(), np.cumsum(values, 1), 1e-5)
    assert ParallelizeScans(CPU)(mod)["public_sum"].attrs["tirx.is_scheduled"]


def test_refused_loop_is_left_and_logged(caplog):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            name = builder.add_func(squared_carry, "squared")
            out = builder.emit_output(
                relax.call_tir(name, [x], relax.TensorType([4, 8], "float32"))
            )
        builder.emit_func_output(out)
    mod = builder.get()
    with caplog.at_level(logging.INFO, logger="tvm_scan"):
        after = ParallelizeScans(CPU)(mod)
    tvm.ir.assert_structural_equal(after, mod)
    assert "squared is left sequential: unsupported-step" in caplog.text


def test_symbolic_length():
    rows, length = tvm.tirx.Var("r", "int64"), tvm.tirx.Var("l", "int64")
    mod = module(rows, length, library.linear_recurrence(None, None))
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    for shape in ((1, 1), (3, 257), (2, 20000)):
        a, x = arrays(*shape)
        np.testing.assert_allclose(run(built, tvm.cpu(), a, x), expected(a, x), 1e-4, 1e-4)
