"""Hand-written Relax: operators that TVM lowers and then has no code for, or has it wrong."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support.compiled import compile_cached
from tvm_scan.errors import ScanError
from tvm_scan.relax import get_pipeline

op = relax.op


def compiled(makes, *kinds):
    """A module whose results are those of every function of `makes`, each on all inputs."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(*kind)) for i, kind in enumerate(kinds)]
    with builder.function("main", inputs):
        with builder.dataflow():
            made = [builder.emit(make(*inputs)) for make in makes]
            out = builder.emit_output(builder.emit(relax.Tuple(made)))
        builder.emit_func_output(out)
    target = tvm.target.Target("llvm")
    return compile_cached(builder.get(), target, relax_pipeline=get_pipeline(target), plainly=True)


def results(makes, *arrays):
    built = compiled(makes, *((a.shape, str(a.dtype)) for a in arrays))
    machine = relax.VirtualMachine(built, tvm.cpu())
    return [host(out) for out in machine["main"](*(tvm.runtime.tensor(a) for a in arrays))]


def host(value):
    return value.numpy() if hasattr(value, "numpy") else [host(part) for part in value]


def accumulated(ufunc, x, exclusive=False):
    out = ufunc.accumulate(x, axis=1)
    if not exclusive:
        return out
    first = np.full((len(x), 1), ufunc is np.logical_and)
    return np.concatenate([first, out[:, :-1]], 1)


#: Name -> as Relax has it, and as numpy has it, of two arrays of bool.
BOOLS = {
    **{
        name: (getattr(op, name), twin)
        for name, twin in {
            "add": np.add,
            "multiply": np.multiply,
            "maximum": np.maximum,
            "minimum": np.minimum,
            "equal": np.equal,
            "not_equal": np.not_equal,
            "less": np.less,
            "less_equal": np.less_equal,
            "greater": np.greater,
            "greater_equal": np.greater_equal,
            "bitwise_xor": np.bitwise_xor,
        }.items()
    },
    "square": (lambda x, y: op.square(x), lambda x, y: x),
    "relu": (lambda x, y: op.nn.relu(x), lambda x, y: x),
    "clip": (lambda x, y: op.clip(x, 0, 1), lambda x, y: x),
    "sum": (lambda x, y: op.sum(x, 1), lambda x, y: x.any(1)),
    "sum of all": (lambda x, y: op.sum(x), lambda x, y: x.any()),
    "prod": (lambda x, y: op.prod(x, 1, True), lambda x, y: x.all(1, keepdims=True)),
    "max": (lambda x, y: op.max(x, 0), lambda x, y: x.max(0)),
    "min": (lambda x, y: op.min(x, 1), lambda x, y: x.min(1)),
    "argmax": (lambda x, y: op.argmax(x, 1), lambda x, y: x.argmax(1)),
    "argmin": (lambda x, y: op.argmin(x, 1), lambda x, y: x.argmin(1)),
    "cumsum": (lambda x, y: op.cumsum(x, 1), lambda x, y: accumulated(np.logical_or, x)),
    "cumprod": (lambda x, y: op.cumprod(x, 1), lambda x, y: accumulated(np.logical_and, x)),
    "exclusive": (
        lambda x, y: op.cumsum(x, 1, exclusive=True),
        lambda x, y: accumulated(np.logical_or, x, exclusive=True),
    ),
    "counted": (
        lambda x, y: op.cumsum(x, 1, dtype="int32"),
        lambda x, y: x.cumsum(1, dtype="int32"),
    ),
    "sort": (lambda x, y: op.sort(x, 1), lambda x, y: np.sort(x, 1)),
    "matmul": (lambda x, y: op.matmul(x, op.permute_dims(y)), lambda x, y: x @ y.T),
    "einsum": (
        lambda x, y: op.einsum([x, y], "ij,kj->ik"),
        lambda x, y: np.einsum("ij,kj->ik", x, y),
    ),
}


@pytest.mark.parametrize("density", [0.0, 0.01, 0.5, 1.0])
def test_truth_values_are_no_numbers(density):
    """As numpy has them; 300 ones, of which no word of 8 bits is the count."""
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 3, 300)) < density
    found = results([make for make, _ in BOOLS.values()], x, y)
    for (name, (_, twin)), got in zip(BOOLS.items(), found, strict=True):
        want = twin(x, y)
        assert got.dtype.kind == want.dtype.kind and got.shape == want.shape, name
        np.testing.assert_array_equal(got, want, err_msg=name)


HALVES = {
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "asinh": np.arcsinh,
    "cosh": np.cosh,
    "sinh": np.sinh,
}


def test_functions_of_halves():
    x = np.linspace(-0.9, 0.9, 12, dtype="float16").reshape(3, 4)
    makes = [getattr(op, name) for name in HALVES]
    makes += [lambda x: op.acosh(op.add(op.abs(x), op.ones_like(x))), lambda x: op.atan2(x, x)]
    twins = [*HALVES.values(), lambda x: np.arccosh(np.abs(x) + 1), lambda x: np.arctan2(x, x)]
    for got, twin in zip(results(makes, x), twins, strict=True):
        assert got.dtype == np.float16
        # acosh is steep at 1, to which the sum is rounded as a half.
        want = twin(x.astype("float32") if twin is not twins[-2] else x)
        np.testing.assert_allclose(got, want, rtol=2e-3)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32"])
def test_sorts_of_narrow_integers(dtype):
    ends = np.iinfo(dtype)
    x = np.array([[3, ends.max, ends.min, 1], [ends.min, 0, ends.max, 2]], dtype)
    sorts = [
        op.sort,
        op.argsort,
        lambda x: op.topk(x, 2, ret_type="values"),
        lambda x: op.topk(x, 2),
    ]
    ordered, order, top, both = results(sorts, x)
    assert ordered.dtype == top.dtype == both[0].dtype == dtype
    np.testing.assert_array_equal(ordered, np.sort(x))
    np.testing.assert_array_equal(order, np.argsort(x, kind="stable"))
    np.testing.assert_array_equal(top, np.sort(x)[:, :-3:-1])
    np.testing.assert_array_equal(both[0], top)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "bool") for name in ("subtract", "divide", "floor_divide", "floor_mod", "mod")),
        ("atan2", "bool"),
        ("atan2", "int32"),
        ("sort", "uint64"),
    ],
)
def test_what_has_no_meaning_is_named(name, dtype):
    def make(x, y):
        return getattr(op, name)(*((x,) if name == "sort" else (x, y)))

    with pytest.raises(ScanError, match=rf"expected operators .*\n.*relax\.{name}\(.*{dtype}"):
        compiled([make], *[((3, 4), dtype)] * 2)
