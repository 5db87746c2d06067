"""relax.cumsum and relax.cumprod through scans: every axis, dtype and pipeline; gradients."""

import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tests import ROOT
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, in_every_order
from tvm_scan.relax import FindScans, LegalizeScans, get_pipeline, scan_passes

CPU = Target.from_device("cpu")
OPERATORS = {"cumsum": relax.op.cumsum, "cumprod": relax.op.cumprod}


def module(shape, dtype, body):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(body(builder, x)))
        builder.emit_func_output(out)
    return builder.get()


def cumulative(name, shape, dtype, axis, out=None, exclusive=False):
    operator = OPERATORS[name]
    return module(shape, dtype, lambda _, x: operator(x, axis, out, exclusive))


def reference(name, x, axis, out=None, exclusive=False):
    """Step after step: floats in float64, integers in their own dtype, which wraps."""
    steps = x.reshape(-1) if axis is None else np.moveaxis(x, axis, 0)
    dtype = np.dtype(out or x.dtype)
    steps = steps.astype(dtype if dtype.kind in "iu" else "float64")
    carry = np.full(steps.shape[1:], 0 if name == "cumsum" else 1, steps.dtype)
    y = np.empty_like(steps)
    with np.errstate(over="ignore"):
        for t, step in enumerate(steps):
            after = carry + step if name == "cumsum" else carry * step
            y[t] = carry if exclusive else after
            carry = after
    return y if axis is None else np.moveaxis(y, 0, axis)


def run(built, device, x, name="main"):
    machine = relax.VirtualMachine(built, device)
    return machine[name](tvm.runtime.tensor(x, device)).numpy()


def sample(shape, dtype):
    rng = np.random.default_rng(0)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(dtype)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    # Near 1, so that products neither vanish nor overflow.
    return rng.uniform(0.9, 1.1, shape).astype(dtype)


def scanned_functions(mod):
    return [report.name for report in FindScans(LegalizeScans()(mod)) if report.recurrences]


@pytest.mark.parametrize(
    ("name", "axis", "exclusive"), list(product(OPERATORS, (0, 1, 2, -1, None), (False, True)))
)
def test_every_axis(name, axis, exclusive):
    mod = cumulative(name, (3, 40, 5), "float32", axis, exclusive=exclusive)
    assert scanned_functions(mod) == [name]
    x = sample((3, 40, 5), "float32")
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    np.testing.assert_allclose(
        run(built, tvm.cpu(), x), reference(name, x, axis, exclusive=exclusive), rtol=1e-4
    )


@pytest.mark.parametrize(
    ("dtype", "out"),
    [
        ("float64", None),
        ("float16", None),
        ("int8", None),
        ("uint8", None),
        ("int32", None),
        ("int64", None),
        ("int8", "int32"),
        ("bool", "int32"),
        ("int32", "float32"),
        ("float16", "float32"),
        ("float32", "float16"),
    ],
)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_dtype(name, dtype, out):
    mod = cumulative(name, (2, 30), dtype, 1, out)
    assert scanned_functions(mod) == [name]
    x = sample((2, 30), dtype)
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    got = run(built, tvm.cpu(), x)
    expected = reference(name, x, 1, out)
    assert got.dtype == np.dtype(out or dtype)
    if got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, expected)
    else:
        # One rounding of the result to its dtype, or the steps' in a dtype of that many bits;
        # what the input was rounded to is not in question.
        tolerance = {"float64": 1e-13, "float32": 30 * 2**-23, "float16": 2**-10}[got.dtype.name]
        np.testing.assert_allclose(got.astype("float64"), expected, rtol=tolerance)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (1, 5000), (5000, 1), (3, 20000)])
def test_extents(shape):
    x = sample(shape, "float32")
    for axis in (0, 1, None):
        mod = cumulative("cumsum", shape, "float32", axis)
        built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
        np.testing.assert_allclose(
            run(built, tvm.cpu(), x), reference("cumsum", x, axis), rtol=1e-4
        )


def test_symbolic_extents_on_every_side():
    shape = [tvm.tirx.Var(name, "int64") for name in "abc"]
    for axis in (0, 1, 2, None):
        mod = cumulative("cumsum", shape, "float32", axis)
        assert scanned_functions(mod) == ["cumsum"]
        built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
        for concrete in ((2, 3, 4), (1, 300, 1)):
            x = sample(concrete, "float32")
            np.testing.assert_allclose(
                run(built, tvm.cpu(), x), reference("cumsum", x, axis), rtol=1e-4
            )


def test_in_front_of_the_zero_pipeline():
    x = sample((3, 500), "float32")
    mod = cumulative("cumsum", (3, 500), "float32", 1)
    with CPU:
        mod = relax.get_pipeline("zero")(scan_passes(CPU)(mod))
    assert mod["cumsum"].attrs["tirx.is_scheduled"]
    built = tvm.compile(mod, target=CPU)
    np.testing.assert_allclose(run(built, tvm.cpu(), x), reference("cumsum", x, 1), rtol=1e-4)


@pytest.mark.parametrize(("name", "axis"), [("cumsum", 1), ("cumprod", 1), ("cumsum", 0)])
def test_in_the_default_cuda_pipeline(name, axis):
    x = sample((3, 700), "float32")
    mod = cumulative(name, (3, 700), "float32", axis, exclusive=True)
    built = compile_cached(mod, target=CUDA_TARGET, relax_pipeline=get_pipeline(CUDA_TARGET))
    (got,) = in_every_order(lambda: [run(built, tvm.cuda(), x)], built)
    np.testing.assert_allclose(got, reference(name, x, axis, exclusive=True), rtol=1e-4)


def flipped(_builder, x, axes=(1, 1, 1)):
    flip = relax.op.flip
    inner = _builder.emit(flip(x, axes[0]))
    scan = _builder.emit(relax.op.cumsum(inner, axes[1], exclusive=True))
    return flip(scan, axes[2])


def test_flips_become_a_walk_from_the_end():
    x = sample((3, 50), "float32")
    mod = module((3, 50), "float32", flipped)
    legal = LegalizeScans()(mod)
    assert "R.flip" not in legal.script()
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    expected = reference("cumsum", x[:, ::-1], 1, exclusive=True)[:, ::-1]
    np.testing.assert_allclose(run(built, tvm.cpu(), x), expected, rtol=1e-4)


def test_flips_of_other_axes_stay():
    x = sample((3, 50), "float32")
    mod = module((3, 50), "float32", lambda b, v: flipped(b, v, (0, 1, 1)))
    assert LegalizeScans()(mod).script().count("R.flip") == 2
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    expected = reference("cumsum", x[::-1], 1, exclusive=True)[:, ::-1]
    np.testing.assert_allclose(run(built, tvm.cpu(), x), expected, rtol=1e-4)


def test_a_flipped_input_with_another_reader_stays():
    def body(builder, x):
        inner = builder.emit(relax.op.flip(x, 1))
        scan = builder.emit(relax.op.cumsum(inner, 1))
        outer = builder.emit(relax.op.flip(scan, 1))
        return relax.op.add(relax.op.add(inner, scan), outer)

    x = sample((3, 50), "float32")
    built = compile_cached(
        module((3, 50), "float32", body), target=CPU, relax_pipeline=get_pipeline(CPU)
    )
    back = x[:, ::-1]
    scan = reference("cumsum", back, 1)
    np.testing.assert_allclose(run(built, tvm.cpu(), x), back + scan + scan[:, ::-1], rtol=1e-4)


def test_other_operators_are_left_to_tvm():
    mod = module((3, 50), "float32", lambda _, x: relax.op.sort(x, 1))
    tvm.ir.assert_structural_equal(LegalizeScans()(mod), mod)
    unknown = module(None, "float32", lambda _, x: relax.op.cumsum(x, 0))
    tvm.ir.assert_structural_equal(LegalizeScans()(unknown), unknown)


def weighted(name, shape, dtype, axis, exclusive, out=None):
    """sum(weights * cumulative(x)), whose gradient is what the weights pull back."""

    def body(builder, x):
        y = builder.emit(OPERATORS[name](x, axis, out, exclusive))
        weights = np.arange(1, np.prod(shape) + 1).reshape(-1 if axis is None else shape)
        scale = relax.const((weights % 7).astype(out or dtype), out or dtype)
        return relax.op.sum(builder.emit(relax.op.multiply(y, scale)))

    return module(shape, dtype, body)


def adjoint(name, x, axis, exclusive, out=None):
    """Gradient by the definition, in float64: no division, no cancellation."""
    shape = x.shape
    weights = (np.arange(1, x.size + 1) % 7).astype("float64")
    lanes = x.astype("float64").reshape(-1) if axis is None else x.astype("float64")
    weights = weights.reshape(lanes.shape)
    lanes, weights = (np.moveaxis(v, axis or 0, -1) for v in (lanes, weights))
    out = np.zeros_like(lanes)
    length = lanes.shape[-1]
    for t in range(length):
        for s in range(t + 1 if exclusive else t, length):
            end = s if exclusive else s + 1
            others = [i for i in range(end) if i != t] if name == "cumprod" else []
            out[..., t] += weights[..., s] * lanes[..., others].prod(-1)
    return np.moveaxis(out, -1, axis or 0).reshape(shape)


@pytest.mark.parametrize(
    ("name", "axis", "exclusive"), list(product(OPERATORS, (0, 1, None), (False, True)))
)
def test_gradients(name, axis, exclusive):
    mod = relax.transform.Gradient("main")(weighted(name, (4, 6), "float32", axis, exclusive))
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    x = np.random.default_rng(1).uniform(-2, 2, (4, 6)).astype("float32")
    x[1, 2] = x[3, 3] = x[3, 4] = 0  # a division by these would be no number
    machine = relax.VirtualMachine(built, tvm.cpu())
    (got,) = machine["main_adjoint"](tvm.runtime.tensor(x))[1]
    np.testing.assert_allclose(got.numpy(), adjoint(name, x, axis, exclusive), 1e-4, 1e-4)


#: What a new process does with the gradients: it takes one of a product, which TVM has none of.
FRESH = """
from tvm_scan._lean import leave_torch_out
leave_torch_out()
from tvm.ir import Op

def has_gradient():
    return Op.get("relax.cumprod").get_attr("FPrimalGradient") is not None

assert not has_gradient()
import tvm_scan.relax
assert has_gradient()
from tvm_scan.relax import register_gradients
register_gradients()
register_gradients()

from tvm import relax
from tests.relax.test_operators import weighted
assert "main_adjoint" in str(
    relax.transform.Gradient("main")(weighted("cumprod", (4, 6), "float32", 1, False))
)
print("registered once")
"""


def test_gradients_are_registered_once_however_often_it_is_asked_for():
    done = subprocess.run(
        [sys.executable, "-c", FRESH], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "registered once", done.stderr


def test_gradient_through_another_dtype():
    mod = relax.transform.Gradient("main")(
        weighted("cumprod", (4, 6), "float32", 1, False, "float64")
    )
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    x = np.random.default_rng(1).uniform(-2, 2, (4, 6)).astype("float32")
    (got,) = relax.VirtualMachine(built, tvm.cpu())["main_adjoint"](tvm.runtime.tensor(x))[1]
    assert got.dtype == "float32"
    np.testing.assert_allclose(got.numpy(), adjoint("cumprod", x, 1, False), 1e-5, 1e-5)


def test_the_gradient_of_a_sum_does_not_cancel():
    """A large first element of the gradient must not wipe out the small ones behind it."""
    shape = (1, 3)

    def body(builder, x):
        y = builder.emit(relax.op.cumsum(x, 1))
        scale = relax.const(np.array([[1e8, 1.0, 0.25]], "float32"))
        return relax.op.sum(builder.emit(relax.op.multiply(y, scale)))

    mod = relax.transform.Gradient("main")(module(shape, "float32", body))
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    x = np.ones(shape, "float32")
    (got,) = relax.VirtualMachine(built, tvm.cpu())["main_adjoint"](tvm.runtime.tensor(x))[1]
    np.testing.assert_array_equal(got.numpy()[0, 1:], [1.25, 0.25])
