"""Every recurrence of the library, compiled as the plain loop that it is, against its twin."""

import itertools
import re

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import tirx as T

from tests.support.compiled import compile_cached
from tests.support.exact_inputs import exact_case, time_axis
from tests.support.library_runs import error_bound, run_serial
from tvm_scan.library import LIBRARY, linear_recurrence, selective_scan
from tvm_scan.library.arguments import FUNC_ATTRS, NUMBER_DTYPES
from tvm_scan.library.selective_scan_loops import silu_expr, softplus_expr

SEED = 20231201
LENGTHS = (0, 1, 2, 31, 33)
CUMULATIVE = ("cumsum", "cumprod", "cummax", "cummin")
BOOLS = (False, True)
DTYPE = "float32"


def _cases():
    """(name, dtype, options): every option at least once, not their whole product."""
    for name in CUMULATIVE:
        for i, (axis, reverse, exclusive) in enumerate(itertools.product((-1, 0), BOOLS, BOOLS)):
            options = {"axis": axis, "reverse": reverse, "exclusive": exclusive}
            yield name, NUMBER_DTYPES[i % 4], options
            if i in (1, 2):
                yield name, NUMBER_DTYPES[(i + 2) % 4], options
    for alpha, initial, layout in itertools.product(
        (0.1, "lane"), ("zero", "first", "buffer"), ("dl", "ld")
    ):
        dtype = "float64" if initial == "first" and layout == "ld" else "float32"
        yield "ema", dtype, {"alpha": alpha, "initial": initial, "layout": layout}
    layouts = itertools.cycle(("dl", "ld", "bdl", "bld", "dl"))
    gates = itertools.cycle(("time", "lane", -1))
    for i, flags in enumerate(itertools.product(BOOLS, repeat=4)):
        names = ("initial_state", "final_state", "reverse", "exclusive")
        options = dict(zip(names, flags, strict=True))
        options |= {"layout": next(layouts), "gate": next(gates)}
        if options["layout"].startswith("b"):
            options["batch"] = 2
        yield "linear_recurrence", NUMBER_DTYPES[i % 3 if i % 2 else 0], options
    names = ("has_bias", "softplus", "has_D", "has_z", "initial_state", "final_state")
    for layout, form in itertools.product(("bdl", "bld"), ("blocks", "step")):
        shape = {"layout": layout, "form": form}
        yield "selective_scan", "float32", {**shape, "initial_state": True, "final_state": True}
        yield "selective_scan", "float64", shape
    yield "selective_scan", "float32", dict.fromkeys(names, False)
    for name in names[:4]:
        yield "selective_scan", "float32", {name: False}


CASES = list(_cases())
IDS = [
    f"{name}-{dtype}-" + "-".join(f"{k}={v}" for k, v in options.items())
    for name, dtype, options in CASES
]


def _sizes(name: str, length: int | None) -> tuple[int | None, ...]:
    known = {"rows": 3, "lanes": 3, "batch": 2, "channels": 3, "states": 4, "length": length}
    return tuple(known[size] for size in LIBRARY[name].size_names)


@pytest.mark.parametrize(("name", "dtype", "options"), CASES, ids=IDS)
def test_serial_loop_agrees_with_twin(name, dtype, options):
    """All sizes symbolic, one compilation, every length."""
    entry = LIBRARY[name]
    symbolic = dict(options)
    if "batch" in options:
        symbolic["batch"] = None
    func = entry.factory(*(None for _ in entry.size_names), dtype, **symbolic)
    assert all(func.attrs[key] == value for key, value in FUNC_ATTRS.items())
    executable = compile_cached(func, target="llvm", plainly=True)
    rng = np.random.default_rng(SEED)
    for length in LENGTHS:
        sizes = _sizes(name, length)
        inputs = entry.example_inputs(rng, *sizes, dtype=dtype, **options)
        want = entry.expected(inputs, **options)
        assert entry.parameters(func) == (list(inputs), list(want))
        got = run_serial(executable, func, inputs, want)
        if dtype.startswith("float"):
            bound = error_bound(name, inputs, options, length)
        for key in want:
            if dtype.startswith("int") or name in ("cummax", "cummin"):
                np.testing.assert_array_equal(got[key], want[key])
            else:
                excess = np.abs(got[key] - want[key]) - bound[key]
                assert (excess <= 0).all(), f"length {length}, {key}: over by {excess.max()}"


@pytest.mark.parametrize("name", LIBRARY)
@pytest.mark.parametrize("length", [0, 1, 33])
def test_constant_extents(name, length):
    entry = LIBRARY[name]
    sizes = _sizes(name, length)
    func = entry.factory(*sizes)
    for param in func.params:
        extents = param.ty.shape
        assert all(extent.ty.dtype == "int64" for extent in extents)
    inputs = entry.example_inputs(np.random.default_rng(SEED), *sizes)
    want = entry.expected(inputs)
    got = run_serial(compile_cached(func, target="llvm", plainly=True), func, inputs, want)
    for key, bound in error_bound(name, inputs, {}, length).items():
        assert (np.abs(got[key] - want[key]) <= bound).all()


@pytest.mark.parametrize("name", LIBRARY)
def test_exact_inputs_are_exact(name):
    """In float32 the loop gives the float64 twin's values, bit for bit."""
    options = {"initial_state": True} if name in ("linear_recurrence", "selective_scan") else {}
    if name == "ema":
        options = {"alpha": "lane", "initial": "buffer"}
    sizes = _sizes(name, 1025)
    case = exact_case(name, np.random.default_rng(SEED), *sizes, **options)
    entry = LIBRARY[name]
    func = entry.factory(*sizes, **case.options)
    want = entry.expected(case.inputs, **case.options)
    got = run_serial(compile_cached(func, target="llvm", plainly=True), func, case.inputs, want)
    for key in want:
        assert np.abs(want[key]).max() < 2**24
        np.testing.assert_array_equal(got[key], want[key])


@pytest.mark.parametrize("name", sorted(set(LIBRARY) - {"cummax", "cummin"}))
def test_exact_inputs_reach_the_end(name):
    """A change of the first input changes the last output: nothing decays."""
    sizes = _sizes(name, 1025)
    case = exact_case(name, np.random.default_rng(SEED), *sizes)
    entry = LIBRARY[name]
    key = "u" if name == "selective_scan" else "X"
    first = [slice(None)] * case.inputs[key].ndim
    first[time_axis(name, case.options)] = 0
    changed = {k: v.copy() for k, v in case.inputs.items()}
    changed[key][tuple(first)] = -1 if name == "cumprod" else 3
    case.inputs[key][tuple(first)] = 1
    if name == "selective_scan":
        for inputs in (case.inputs, changed):
            inputs["delta_bias"][:] = 1
            inputs["B"][..., 0] = inputs["C"][..., -1] = 1
    out = entry.output_names[0]
    last = [slice(None)] * case.inputs[key].ndim
    last[time_axis(name, case.options)] = -1
    before = entry.expected(case.inputs, **case.options)[out][tuple(last)]
    after = entry.expected(changed, **case.options)[out][tuple(last)]
    assert (before != after).all()


def test_nan_on_the_cpu_follows_the_twin():
    """The rule that `cummax` documents holds in the compiled loop too."""
    x = np.array([[1, np.nan, 3, 2, np.nan, np.nan, -1]], "float32")
    for name in ("cummax", "cummin", "cumsum", "cumprod"):
        entry = LIBRARY[name]
        func = entry.factory(1, 7)
        want = entry.expected({"X": x})
        got = run_serial(compile_cached(func, target="llvm", plainly=True), func, {"X": x}, want)
        np.testing.assert_array_equal(got["Y"], want["Y"])


def test_softplus_and_silu_lower_to_cuda():
    """Without a GPU or nvcc: the generated source calls log1p, whose small values survive."""
    target = tvm.target.Target(
        {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024}, host={"kind": "llvm"}
    )

    @T.prim_func(s_tir=True)
    def pointwise(X: T.Buffer((32,), DTYPE), Y: T.Buffer((32,), DTYPE)):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        for i in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("pointwise"):
                vi = T.axis.spatial(32, i)
                Y[vi] = softplus_expr(X[vi], DTYPE) + silu_expr(X[vi], DTYPE)

    source = tvm.compile(pointwise, target=target).mod.imports[0].inspect_source()
    assert "log1pf(" in source
    assert "fabsf(" in source


def test_called_from_relax():
    """A symbolic factory as it is, through call_tir and the stock CPU pipeline."""
    builder = relax.BlockBuilder()
    rows, length = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType([rows, length], "float32"))
    with builder.function("main", [x]):
        func = builder.add_func(LIBRARY["cumsum"].factory(None, None), "cumsum")
        out = relax.TensorType([rows, length], "float32")
        builder.emit_func_output(builder.emit(relax.call_tir(func, [x], out)))
    machine = relax.VirtualMachine(tvm.compile(builder.get(), target="llvm"), tvm.cpu())
    data = np.arange(15, dtype="float32").reshape(3, 5)
    got = machine["main"](tvm.runtime.tensor(data)).numpy()
    np.testing.assert_array_equal(got, np.cumsum(data, axis=1))


BAD_ARGUMENTS = [
    (lambda: LIBRARY["cumsum"].factory(3, 4, "float8"), "cumsum: expected dtype to be one of"),
    (lambda: LIBRARY["cumsum"].factory(-1, 4), "expected rows to be an int >= 0 or None"),
    (lambda: LIBRARY["cumsum"].factory(3, 4.0), "expected length to be an int >= 0 or None"),
    (lambda: LIBRARY["cummax"].factory(3, True), "expected length to be an int >= 0 or None"),
    (lambda: LIBRARY["cumsum"].factory(3, 4, axis=2), "expected axis to be one of -1, 0, 1"),
    (lambda: LIBRARY["cumsum"].factory(3, 4, reverse=1), "expected reverse to be True or False"),
    (lambda: LIBRARY["ema"].factory(3, 4, "int32"), "ema: expected dtype to be one of"),
    (lambda: LIBRARY["ema"].factory(3, 4, alpha="time"), "expected alpha to be a finite number"),
    (lambda: LIBRARY["ema"].factory(3, 4, alpha=float("nan")), "finite number or 'lane', got nan"),
    (lambda: LIBRARY["ema"].factory(3, 4, initial="h0"), "expected initial to be one of"),
    (lambda: linear_recurrence(3, 4, layout="lb"), "expected layout to be one of"),
    (lambda: linear_recurrence(3, 4, batch=2), "expected batch=1 with layout 'dl', got batch=2"),
    (lambda: linear_recurrence(3, 4, "int32", gate=0.5), "a finite int32 number, got 0.5"),
    (lambda: linear_recurrence(3, 4, gate="row"), "expected gate to be 'time', 'lane' or"),
    (lambda: selective_scan(1, 3, 4, layout="ldb"), "expected layout to be one of 'bdl', 'bld'"),
    (lambda: selective_scan(1, 3, 4, form="one"), "expected form to be one of 'blocks', 'step'"),
    (lambda: selective_scan(1, 3, 4, -2), "expected states to be an int >= 0 or None"),
    (lambda: selective_scan(1, 3, 4, has_z="no"), "expected has_z to be True or False"),
    (
        lambda: LIBRARY["ema"].reference(np.ones((1, 2)), initial="buffer"),
        "expected h0 exactly when initial is 'buffer'",
    ),
]


@pytest.mark.parametrize(("build", "message"), BAD_ARGUMENTS, ids=[m for _, m in BAD_ARGUMENTS])
def test_bad_arguments(build, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


def test_factories_are_cached():
    for name, entry in LIBRARY.items():
        sizes = _sizes(name, 7)
        assert entry.factory(*sizes).same_as(entry.factory(*sizes)), name
