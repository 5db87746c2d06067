"""Import from ONNX: CumSum, CumProd and Scan against onnx's reference evaluator."""

import warnings

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tests.support.compiled import compile_cached
from tvm_scan.errors import ScanError
from tvm_scan.relax import FindScans, LegalizeScans, from_onnx, get_pipeline

onnx = pytest.importorskip("onnx", reason="onnx is missing: the ONNX importer is not run")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

CPU = Target.from_device("cpu")
F32 = TensorProto.FLOAT


def info(name, *shape):
    return helper.make_tensor_value_info(name, F32, shape)


def model(nodes, inputs, outputs, initializers=(), opset=21):
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(v, k) for k, v in initializers]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def check(onnx_model, want=None, **arrays):
    want = want or ReferenceEvaluator(onnx_model).run(None, arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        mod = from_onnx(onnx_model)
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    got = relax.VirtualMachine(built, tvm.cpu())["main"](
        *(tvm.runtime.tensor(a) for a in arrays.values())
    )
    got = [got] if isinstance(got, tvm.runtime.Tensor) else list(got)
    assert len(got) == len(want)
    for value, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(value.numpy(), expected, 1e-5, 1e-5)
    return mod


def families(mod):
    reports = FindScans(LegalizeScans()(mod))
    return [a.name for report in reports for r in report.recurrences for a in r.algebras]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_cumsum(rng, reverse, exclusive):
    node = helper.make_node("CumSum", ["x", "axis"], ["y"], reverse=reverse, exclusive=exclusive)
    cumsum = model([node], [info("x", 3, 40)], [info("y", 3, 40)], [("axis", np.array(1))])
    mod = check(cumsum, x=rng.random((3, 40)).astype("float32"))
    assert families(mod) == ["reduce"]
    assert "R.flip" not in LegalizeScans()(mod).script()


def linear_scan(**attributes):
    """h = a h + x; emits h * w, where w is a value of the enclosing graph."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["h", "a"], ["ah"]),
            helper.make_node("Add", ["ah", "x"], ["next"]),
            helper.make_node("Mul", ["next", "w"], ["y"]),
        ],
        "body",
        [info("h", 3), info("a", 3), info("x", 3)],
        [info("next", 3), info("y", 3)],
    )
    return helper.make_node(
        "Scan", ["h0", "A", "X"], ["hn", "Y"], body=body, num_scan_inputs=2, **attributes
    )


def sequential(
    h0,
    A,
    X,
    w,
    scan_input_axes=(0, 0),
    scan_output_axes=(0,),
    scan_input_directions=(0, 0),
    scan_output_directions=(0,),
):
    """`linear_scan` step after step, in float64."""
    steps = [
        np.moveaxis(v, axis, 0)[:: -1 if back else 1]
        for v, axis, back in zip((A, X), scan_input_axes, scan_input_directions, strict=True)
    ]
    h, out = h0, []
    for a, x in zip(*steps, strict=True):
        h = a * h + x
        out.append(h * w)
    y = np.stack(out)[:: -1 if scan_output_directions[0] else 1]
    return [h, np.moveaxis(y, 0, scan_output_axes[0])]


@pytest.mark.parametrize(
    ("attributes", "inside", "outside"),
    [
        ({}, (20, 3), (20, 3)),
        ({"scan_input_axes": [1, 1], "scan_output_axes": [1]}, (3, 20), (3, 20)),
        ({"scan_input_directions": [1, 1]}, (20, 3), (20, 3)),
        ({"scan_input_directions": [0, 1], "scan_output_directions": [1]}, (20, 3), (20, 3)),
    ],
)
def test_scan(rng, attributes, inside, outside):
    scan = model(
        [linear_scan(**attributes)],
        [info("h0", 3), info("A", *inside), info("X", *inside), info("w", 3)],
        [info("hn", 3), info("Y", *outside)],
    )
    arrays = {
        "h0": rng.random(3),
        "A": rng.random(inside),
        "X": rng.random(inside),
        "w": rng.random(3),
    }
    # onnx's own evaluator knows neither axes nor directions; without them it is asked, too.
    want = sequential(**arrays, **attributes) if attributes else None
    given = {key: value.astype("float32") for key, value in arrays.items()}
    assert families(check(scan, want, **given)) == ["affine"]


def test_scan_with_a_constant_of_the_enclosing_graph(rng):
    weights = rng.random(3).astype("float32")
    scan = model(
        [linear_scan()],
        [info("h0", 3), info("A", 20, 3), info("X", 20, 3)],
        [info("hn", 3), info("Y", 20, 3)],
        [("w", weights)],
    )
    h0, a, x = (rng.random(s).astype("float32") for s in ((3,), (20, 3), (20, 3)))
    assert families(check(scan, h0=h0, A=a, X=x)) == ["affine"]


def test_unknown_operators_are_named():
    node = helper.make_node("StringNormalizer", ["x"], ["y"])
    graph = model([node], [info("x", 3)], [info("y", 3)])
    with pytest.raises(ScanError, match="StringNormalizer"):
        from_onnx(graph)
    with pytest.raises(ScanError, match=r"expected an onnx.ModelProto, got str; pass onnx.load"):
        from_onnx("model.onnx")
