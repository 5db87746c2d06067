"""Elementwise neighbours of a scan become part of it, and nothing else does."""

import logging

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.ir import Op
from tvm.script import tirx as T
from tvm.target import Target

from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, in_every_order
from tvm_scan import library
from tvm_scan.relax import FindScans, FuseScans, LegalizeScans, get_pipeline

CPU = Target.from_device("cpu")
ROWS, LENGTH = 16, 1024


def model(write, rows=ROWS, length=LENGTH, func=None, extra=()):
    """A function of a, x and what is `extra`, whose body `write` emits."""
    builder = relax.BlockBuilder()
    kind = relax.TensorType([rows, length], "float32")
    params = [relax.Var("a", kind), relax.Var("x", kind)]
    params += [relax.Var(f"p{i}", relax.TensorType(s, "float32")) for i, s in enumerate(extra)]
    name = builder.add_func(func or library.linear_recurrence(rows, length), "recurrence")

    def scan(a, x):
        return builder.emit(relax.call_tir(name, [a, x], kind))

    with builder.function("main", params):
        with builder.dataflow():
            results = write(builder, scan, *params)
            several = results if isinstance(results, tuple) else (results,)
            outs = [builder.emit_output(r) for r in several]
        builder.emit_func_output(relax.Tuple(outs) if len(outs) > 1 else outs[0])
    return builder.get()


def calls(mod):
    """Calls of functions and of operators in main."""
    found = []
    relax.analysis.post_order_visit(
        mod["main"], lambda e: found.append(e) if isinstance(e, relax.Call) else None
    )
    return [c for c in found if isinstance(c.op, Op) and c.op.name.startswith("relax.")]


def inputs(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def run(mod, arrays, target=CPU, device=None):
    built = compile_cached(mod, target=target, relax_pipeline=get_pipeline(target), plainly=True)
    device = device or tvm.cpu()
    machine = relax.VirtualMachine(built, device)

    def call():
        got = machine["main"](*(tvm.runtime.tensor(v, device) for v in arrays))
        return [got.numpy()] if hasattr(got, "numpy") else [g.numpy() for g in got]

    return call, built


def gated(builder, scan, a, x):
    """Gate and norm in front, activation and residual behind."""
    gate = builder.emit(relax.op.sigmoid(a))
    h = scan(gate, builder.emit(relax.op.multiply(x, relax.const(0.5, "float32"))))
    return builder.emit(relax.op.add(builder.emit(relax.op.nn.silu(h)), x))


def gated_reference(a, x):
    a, x = a.astype("float64"), x.astype("float64")
    h, _ = library.linear_recurrence_reference(1 / (1 + np.exp(-a)), 0.5 * x)
    return h / (1 + np.exp(-h)) + x


def test_neighbours_become_one_function(caplog):
    mod = model(gated)
    with caplog.at_level(logging.INFO, logger="tvm_scan"):
        after = FuseScans(CPU)(mod)
    relax.analysis.well_formed(after)
    assert (len(calls(mod)), len(calls(after))) == (5, 1)
    (report,) = FindScans(after)
    assert len(report.recurrences) == 1
    assert "fused tir_sigmoid, multiply, silu, add" in caplog.text
    a, x = inputs((ROWS, LENGTH), (ROWS, LENGTH))
    call, _ = run(mod, (a, x))
    np.testing.assert_allclose(call()[0], gated_reference(a, x), 1e-4, 1e-5)


@T.prim_func(s_tir=True, private=True)
def narrow(
    A: T.Buffer((16, 1024), "float32"),
    X: T.Buffer((16, 1024), "float32"),
    H: T.Buffer((16, 1024), "float32"),
):
    for b in range(16):
        for t in range(1024):
            H[b, t] = A[b, t] * T.if_then_else(t > 0, H[b, t - 1], T.float32(0)) + X[b, t]


def test_a_loop_with_extents_of_int32_fuses_with_operators():
    """TVMScript writes plain numbers in int32; TVM's operators have int64."""
    mod = model(gated, func=narrow)
    assert len(calls(FuseScans(CPU)(mod))) == 1
    arrays = inputs((ROWS, LENGTH), (ROWS, LENGTH))
    call, _ = run(mod, arrays)
    np.testing.assert_allclose(call()[0], gated_reference(*arrays), 1e-4, 1e-5)


def test_the_output_of_the_scan_is_not_stored():
    after = FuseScans(CPU)(model(gated))
    (report,) = FindScans(after)
    (recurrence,) = report.recurrences
    (carry,) = recurrence.carries
    assert not carry.register.visible


def test_a_gate_that_the_consumer_reads_too_is_computed_once():
    assert len(calls(FuseScans(CPU)(model(shared_producer)))) == 1


def test_on_a_gpu():
    a, x = inputs((2, 300), (2, 300))
    call, built = run(model(gated, 2, 300), (a, x), CUDA_TARGET, tvm.cuda())
    (got,) = in_every_order(call, built)
    np.testing.assert_allclose(got, gated_reference(a, x), 1e-4, 1e-5)


def test_symbolic_extents():
    rows, length = tirx.Var("r", "int64"), tirx.Var("l", "int64")
    mod = model(gated, rows, length, library.linear_recurrence(None, None))
    assert len(calls(FuseScans(CPU)(mod))) == 1
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    machine = relax.VirtualMachine(built, tvm.cpu())
    for shape in ((1, 1), (3, 2), (2, 5000)):
        a, x = inputs(shape, shape)
        got = machine["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(got, gated_reference(a, x), 1e-4, 1e-5)


def test_a_broadcast_and_a_cast_are_elementwise():
    def write(builder, scan, a, x, scale):
        gate = builder.emit(relax.op.multiply(a, scale))
        return builder.emit(relax.op.astype(scan(gate, x), "float16"))

    mod = model(write, extra=[(ROWS, 1)])
    assert len(calls(FuseScans(CPU)(mod))) == 1
    a, x, scale = inputs((ROWS, LENGTH), (ROWS, LENGTH), (ROWS, 1))
    a *= 0.2
    want, _ = library.linear_recurrence_reference((a * scale).astype("f8"), x.astype("f8"))
    np.testing.assert_allclose(run(mod, (a, x, scale))[0]()[0], want, 2e-3, 2e-3)


def with_final_state(*, twice=False, whole=False):
    """The library's form of two outputs: the history, and the last state."""
    builder = relax.BlockBuilder()
    func = library.linear_recurrence(ROWS, LENGTH, final_state=True)
    kinds = [relax.TensorType([ROWS, LENGTH], "float32"), relax.TensorType([ROWS], "float32")]
    a, x = relax.Var("a", kinds[0]), relax.Var("x", kinds[0])
    name = builder.add_func(func, "recurrence")
    with builder.function("main", [a, x]):
        with builder.dataflow():
            both = builder.emit(relax.call_tir(name, [builder.emit(relax.op.sigmoid(a)), x], kinds))
            h, last = (builder.emit(relax.TupleGetItem(both, i)) for i in range(2))
            y = builder.emit_output(relax.op.exp(h))
            end = builder.emit_output(relax.op.negative(last))
            more = [builder.emit_output(relax.TupleGetItem(both, 0))] if twice else []
            more += [builder.emit_output(both)] if whole else []
        builder.emit_func_output(relax.Tuple([y, end, *more]))
    return builder.get()


def test_one_of_several_outputs():
    after = FuseScans(CPU)(with_final_state())
    relax.analysis.well_formed(after)
    assert len(calls(after)) < 4
    a, x = inputs((ROWS, LENGTH), (ROWS, LENGTH))
    y, end = run(with_final_state(), (a, 0.1 * x))[0]()
    want, last = library.linear_recurrence_reference(1 / (1 + np.exp(-a.astype("f8"))), 0.1 * x)
    np.testing.assert_allclose(y, np.exp(want), 1e-4)
    np.testing.assert_allclose(end, -last, 1e-4, 1e-5)


@pytest.mark.parametrize("others", [{"twice": True}, {"whole": True}], ids=str)
def test_an_output_that_someone_else_reads_is_kept(others):
    after = FuseScans(CPU)(with_final_state(**others))
    relax.analysis.well_formed(after)
    names = [str(c.op.name) for c in calls(after)]
    assert "relax.exp" in names, "its operand has another reader"
    assert "relax.sigmoid" not in names


def shared_producer(builder, scan, a, x):
    gate = builder.emit(relax.op.sigmoid(a))
    return builder.emit(relax.op.add(scan(gate, x), gate))


def shared_output(builder, scan, a, x):
    h = scan(a, x)
    return h, builder.emit(relax.op.nn.relu(h))


def a_reduction(builder, scan, a, x):
    return builder.emit(relax.op.sum(scan(builder.emit(relax.op.nn.softmax(a, 1)), x), 1))


def a_permutation(builder, scan, a, x):
    turned = builder.emit(relax.op.flip(a, 1))
    return builder.emit(relax.op.permute_dims(scan(turned, x)))


def the_product_of_two(builder, scan, a, x):
    h = scan(a, x)
    return builder.emit(relax.op.multiply(h, h))


@pytest.mark.parametrize("write", [shared_output, a_reduction, a_permutation, the_product_of_two])
def test_what_must_not_be_fused_is_left_as_it_is(write):
    mod = model(write)
    after = FuseScans(CPU)(mod)
    tvm.ir.assert_structural_equal(after, mod)


def test_a_call_with_effects_is_no_neighbour():
    """Outside of a dataflow block order matters, and nothing moves."""
    builder = relax.BlockBuilder()
    kind = relax.TensorType([ROWS, LENGTH], "float32")
    a, x = relax.Var("a", kind), relax.Var("x", kind)
    name = builder.add_func(library.linear_recurrence(ROWS, LENGTH), "recurrence")
    with builder.function("main", [a, x], pure=False):
        gate = builder.emit(relax.op.sigmoid(a))
        builder.emit(relax.Call(relax.ExternFunc("test.effect"), [gate], ty_args=[kind]))
        h = builder.emit(relax.call_tir(name, [gate, x], kind))
        builder.emit_func_output(builder.emit(relax.op.nn.relu(h)))
    mod = builder.get()
    tvm.ir.assert_structural_equal(FuseScans(CPU)(mod), mod)


def test_other_names_and_casts_in_between_are_kept():
    """``lv1 = lv`` is what a legalized operator leaves; a cast of types reads through it."""
    builder = relax.BlockBuilder()
    kind = relax.TensorType([ROWS, LENGTH], "float32")
    x = relax.Var("x", kind)
    with builder.function("main", [x]):
        with builder.dataflow():
            total = builder.emit(relax.op.cumsum(x, 1))
            y = builder.emit(relax.op.exp(builder.emit(relax.op.negative(total))))
            again = builder.match_cast(builder.emit(relax.op.cumsum(y, 1)), kind)
            out = builder.emit_output(relax.op.negative(again))
        builder.emit_func_output(out)
    mod = builder.get()
    after = FuseScans(CPU)(LegalizeScans()(mod))
    relax.analysis.well_formed(after)
    assert len(calls(after)) == 3
    (x,) = inputs((ROWS, LENGTH))
    x = np.abs(x)
    want = -np.cumsum(np.exp(-np.cumsum(x.astype("f8"), 1)), 1)
    np.testing.assert_allclose(run(mod, [x])[0]()[0], want, 1e-4)


def test_a_module_without_scans_is_the_same_object():
    builder = relax.BlockBuilder()
    a = relax.Var("a", relax.TensorType([8, 8], "float32"))
    with builder.function("main", [a]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.exp(relax.op.matmul(a, a)))
        builder.emit_func_output(y)
    mod = relax.transform.LegalizeOps()(builder.get())
    assert FuseScans(CPU)(mod).same_as(mod)
