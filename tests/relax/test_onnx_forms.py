"""Import from ONNX: every form of the operators that their schemas allow, and what is refused."""

import numpy as np
import pytest

from tests.relax.test_onnx import check, families, helper, info, model, numpy_helper, onnx
from tvm_scan.errors import ScanError
from tvm_scan.relax import FindScans, LegalizeScans, from_onnx

ACCUMULATE = {"CumSum": np.add.accumulate, "CumProd": np.multiply.accumulate}


def typed(name, dtype, *shape):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def cumulative(operator, x, axis, shape=None, **attributes):
    """A model of one operator; `axis` is the initializer, or the node that makes it."""
    nodes = [helper.make_node(operator, ["x", "axis"], ["y"], **attributes)]
    is_node = isinstance(axis, onnx.NodeProto)
    value = typed("x", x.dtype, *(x.shape if shape is None else shape))
    return model(
        [axis, *nodes] if is_node else nodes,
        [value],
        [typed("y", x.dtype, *(None,) * x.ndim)],
        [] if is_node else [("axis", np.asarray(axis))],
        opset=26,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint64"])
@pytest.mark.parametrize("operator", ACCUMULATE)
def test_cumulative_dtypes_and_an_axis_from_the_end(operator, dtype):
    x = np.random.default_rng(0).integers(0, 3, (3, 7)).astype(dtype)
    for exclusive in (0, 1):
        check(cumulative(operator, x, -2, reverse=1, exclusive=exclusive), x=x)


@pytest.mark.parametrize("operator", ACCUMULATE)
@pytest.mark.parametrize(
    "axis",
    [
        np.int32(1),
        np.array([1]),
        helper.make_node("Constant", [], ["axis"], value_int=1),
        helper.make_node("Constant", [], ["axis"], value=numpy_helper.from_array(np.array(-1))),
    ],
    ids=["int32", "vector", "number", "tensor"],
)
def test_forms_of_the_axis(operator, axis):
    x = np.random.default_rng(0).random((3, 7), "float32")
    check(cumulative(operator, x, axis), [ACCUMULATE[operator](x, 1)], x=x)


@pytest.mark.parametrize("shape", [(0, 7), (3, 0), (1, 1)])
def test_cumulative_of_nothing(shape):
    x = np.ones(shape, "float32")
    check(cumulative("CumSum", x, 1, exclusive=1, reverse=1), x=x)


def test_extents_without_a_name_are_not_one_extent():
    x = np.random.default_rng(0).random((3, 7), "float32")
    assert families(check(cumulative("CumSum", x, 1, (None, None), reverse=1), x=x)) == ["reduce"]


def test_an_input_of_unknown_rank_needs_a_shape():
    x = np.random.default_rng(0).random((3, 7), "float32")
    made = cumulative("CumSum", x, 1)
    made.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ScanError, match=r"an input x of known rank, .* pass its shape"):
        from_onnx(made)
    assert len(FindScans(LegalizeScans()(from_onnx(made, {"x": [3, 7]})))) == 1


def ones(*shape):
    return np.ones(shape, "float32")


@pytest.mark.parametrize(
    ("x", "axis", "message"),
    [
        (ones(3, 7), 2, "CumSum along an axis of its input, got axis 2 of 2"),
        (ones(), 0, "CumSum along an axis of its input, got axis 0 of 0"),
        (ones(3), helper.make_node("Constant", [], ["axis"], value_string="0"), "value_string"),
        (ones(3), helper.make_node("Neg", ["x"], ["axis"]), "along a constant axis"),
    ],
)
def test_an_axis_that_does_not_fit(x, axis, message):
    with pytest.raises(ScanError, match=message):
        from_onnx(cumulative("CumSum", x, axis))


def test_an_operator_of_another_domain_of_that_name():
    node = helper.make_node("CumSum", ["x", "axis"], ["y"], domain="mine")
    with pytest.raises(ScanError, match="CumSum of ONNX's own domain, got one of mine"):
        from_onnx(model([node], [info("x", 3)], [info("y", 3)], [("axis", np.array(0))]))


def scanned(nodes, inputs, outputs, tensors=(), given=("h0", "X"), results=("hn", "Y"), **attrs):
    """A Scan whose body is `nodes`, with `tensors` as its initializers."""
    held = [numpy_helper.from_array(value, name) for name, value in tensors]
    body = helper.make_graph(nodes, "body", inputs, outputs, held)
    return helper.make_node(
        "Scan", list(given), list(results), body=body, num_scan_inputs=1, **attrs
    )


def running(operator, *more, other="x"):
    """``h' = h op other`` on vectors of 3, which is also emitted."""
    return [
        *more,
        helper.make_node(operator, ["h", other], ["next"]),
        helper.make_node("Identity", ["next"], ["y"]),
    ]


STATE = [info("h", 3), info("x", 3)], [info("next", 3), info("y", 3)]


def checked(nodes, *, length=20, tensors=(), **options):
    rng = np.random.default_rng(0)
    given = {
        name: rng.standard_normal((3,) if name == "h0" else (length, 3)) for name in ["h0", "X"]
    }
    given = {name: value.astype("float32") for name, value in given.items()}
    node = scanned(nodes, *STATE, tensors=tensors)
    inputs = [info("h0", 3), info("X", length, 3)]
    onnx_model = model([node], inputs, [info("hn", 3), info("Y", length, 3)], **options)
    return check(onnx_model, **given)


@pytest.mark.parametrize(
    ("axes", "directions", "out_axis", "prepend"),
    [([-1, -2], [0, 1], -1, 1), ([1, 0], [1, 0], 1, 0), ([0, -1], [1, 1], -2, 1)],
)
def test_axes_and_directions_of_every_array(axes, directions, out_axis, prepend):
    rng, length = np.random.default_rng(0), 9
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["h", "a"], ["ah"]),
            helper.make_node("Add", ["ah", "x"], ["next"]),
            helper.make_node("Sub", ["h", "x"], ["z"]),
            helper.make_node("Identity", ["next"], ["y"]),
        ],
        "body",
        [info("h", 3), info("a", 3), info("x", 3)],
        [info("next", 3), info("y", 3), info("z", 3)],
    )
    node = helper.make_node(
        "Scan", ["h0", "A", "X"], ["hn", "Y", "Z"], body=body, num_scan_inputs=2,
        scan_input_axes=axes, scan_input_directions=directions,
        scan_output_axes=[out_axis, 0], scan_output_directions=[0, prepend],
    )  # fmt: skip
    h = rng.random(3).astype("float32")
    arrays = [rng.random((length, 3) if k in (0, -2) else (3, length)) for k in axes]
    a, x = (v.astype("float32") for v in arrays)
    steps = [
        np.moveaxis(v, axis, 0)[:: -1 if back else 1]
        for v, axis, back in zip((a, x), axes, directions, strict=True)
    ]
    state, ys, zs = h, [], []
    for a_t, x_t in zip(*steps, strict=True):
        zs.append(state - x_t)
        state = state * a_t + x_t
        ys.append(state)
    want = [state, np.moveaxis(np.stack(ys), 0, out_axis), np.stack(zs)[:: -1 if prepend else 1]]
    shapes = [info("h0", 3), info("A", *a.shape), info("X", *x.shape)]
    outs = [info("hn", 3), info("Y", None, None), info("Z", None, None)]
    assert families(check(model([node], shapes, outs), want, h0=h, A=a, X=x)) == ["affine"]


WEIGHTS = np.linspace(0.1, 0.9, 3).astype("float32")
MATRIX = np.random.default_rng(1).standard_normal((3, 3)).astype("float32") / 3


def test_a_body_may_hold_tensors():
    gate = helper.make_node("Mul", ["x", "w"], ["wx"])
    assert families(checked(running("Add", gate, other="wx"), tensors=[("w", WEIGHTS)])) == [
        "reduce"
    ]
    node = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(WEIGHTS))
    checked(running("Add", node, gate, other="wx"))
    # A cell of a network, its weights in the body, as the standard's own example has it.
    cell = [
        helper.make_node("MatMul", ["h", "W"], ["t"]),
        helper.make_node("Add", ["t", "x"], ["u"]),
        helper.make_node("Tanh", ["u"], ["next"]),
        helper.make_node("Identity", ["next"], ["y"]),
    ]
    assert families(checked(cell, tensors=[("W", MATRIX)])) == []


@pytest.mark.parametrize("operator", ["Max", "Min", "Sum"])
def test_operators_of_many_operands_are_seen(operator):
    assert families(checked(running(operator))) == ["reduce"]


@pytest.mark.parametrize("length", [1, 2])
def test_states_that_change_places(length):
    body = [helper.make_node("Mul", ["a", "x"], ["y"])]
    ins, outs = [info(n, 3) for n in "abx"], [info(n, 3) for n in "bay"]
    node = scanned(body, ins, outs, given=("a0", "b0", "X"), results=("an", "bn", "Y"))
    shapes = [info("a0", 3), info("b0", 3), info("X", length, 3)]
    onnx_model = model([node], shapes, [info("an", 3), info("bn", 3), info("Y", length, 3)])
    rng = np.random.default_rng(0)
    check(onnx_model, **{n: rng.random(s).astype("float32") for n, s in
                         (("a0", 3), ("b0", 3), ("X", (length, 3)))})  # fmt: skip


def test_no_states_no_outputs_and_no_steps():
    x = np.random.default_rng(0).standard_normal((8, 3)).astype("float32")
    relu = scanned(
        [helper.make_node("Relu", ["x"], ["y"])], [info("x", 3)], [info("y", 3)],
        given=("X",), results=("Y",), scan_input_directions=[1],
    )  # fmt: skip
    check(model([relu], [info("X", 8, 3)], [info("Y", 8, 3)]), [np.maximum(x, 0)[::-1]], X=x)
    # One output, and somebody reads it.
    total = scanned(running("Add")[:1], STATE[0], STATE[1][:1], results=("hn",))
    negative = helper.make_node("Neg", ["hn"], ["z"])
    inputs = [info("h0", 3), info("X", 8, 3)]
    check(model([total, negative], inputs, [info("z", 3)]), h0=x[0], X=x)
    node, shapes = scanned(running("Add"), *STATE), [info("h0", 3), info("X", "t", 3)]
    none = model([node], shapes, [info("hn", 3), info("Y", "t", 3)])
    check(none, [x[0], x[:0]], h0=x[0], X=x[:0])


def test_a_scan_in_a_scan_reads_values_of_both_graphs():
    inner = scanned(
        [
            helper.make_node("Mul", ["g", "w"], ["gw"]),
            helper.make_node("Sum", ["gw", "e", "h"], ["g2"]),
        ],
        [info("g"), info("e")], [info("g2")], given=("s", "x"), results=("q",),
    )  # fmt: skip
    outer = scanned(
        [inner, *running("Add", other="q")], [info("h"), info("x", 3)], [info("next"), info("y")]
    )
    onnx_model = model(
        [outer],
        [info("h0"), info("X", 4, 3), info("w"), info("s")],
        [info("hn"), info("Y", 4)],
    )
    rng = np.random.default_rng(0)
    given = {
        "h0": rng.random(()),
        "X": rng.random((4, 3)),
        "w": rng.random(()),
        "s": rng.random(()),
    }
    check(onnx_model, **{name: np.asarray(v, "float32") for name, v in given.items()})


def test_cumulative_operators_and_reshapes_in_a_body():
    # Their axis and their shape are constants of the enclosing graph, and stay that.
    cumsum = helper.make_node("CumSum", ["x", "axis"], ["c"], reverse=1)
    checked(running("Add", cumsum, other="c"), initializers=[("axis", np.array(0))])
    reshape = helper.make_node("Reshape", ["x", "shape"], ["c"])
    checked(running("Add", reshape, other="c"), initializers=[("shape", np.array([3]))])


def branching():
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["o"])], "b", [], [info("o", 3)])
    return helper.make_node("If", ["c"], ["next"], then_branch=branch, else_branch=branch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"opset": 8}, "Scan: expected opset 9 or later, got 8"),
        ({"h0": 1}, r"Scan: expected the state h to keep its shape and dtype, got"),
        ({"scan_input_axes": [2]}, "Scan: expected an axis from -2 to 1, got 2"),
        ({"scan_output_axes": [0, 1]}, "Scan: expected scan_output_axes of 1 elements"),
        ({"body": [branching(), helper.make_node("Identity", ["next"], ["y"])]}, "got If; compute"),
        ({"given": ("h0", "h0", "X")}, "Scan: expected a body with an input for each"),
    ],
    ids=["opset", "state", "axis", "axes", "branch", "inputs"],
)
def test_a_scan_that_does_not_fit(change, message):
    change = dict(change)
    opset, first = change.pop("opset", 21), change.pop("h0", 3)
    node = scanned(change.pop("body", running("Add")), *STATE, **change)
    inputs = [info("h0", first), info("X", 20, 3), info("c")]
    with pytest.raises(ScanError, match=message):
        from_onnx(model([node], inputs, [info("hn", 3), info("Y", 20, 3)], opset=opset))


def test_arrays_of_one_scan_have_one_length():
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "x"], ["y"])], "b", [info("a"), info("x")], [info("y")]
    )
    node = helper.make_node("Scan", ["A", "X"], ["Y"], body=body, num_scan_inputs=2)
    with pytest.raises(ScanError, match=r"Scan: expected arrays of one length, got \[7, 9\]"):
        from_onnx(model([node], [info("A", 7), info("X", 9)], [info("Y", 7)]))


@pytest.mark.parametrize("operator", ["Div", "Mul", "Sub", "Add", "Mod"])
@pytest.mark.parametrize("rows", [60, "n"])
def test_arithmetic_on_extents(operator, rows):
    """Extents are computed with, in the model, whether they are known or not."""
    nodes = [
        helper.make_node("CumSum", ["x", "zero"], ["sums"]),
        helper.make_node("Shape", ["sums"], ["extents"]),
        helper.make_node("Gather", ["extents", "one"], ["columns"]),
        helper.make_node(operator, ["columns", "number"], ["found"]),
        helper.make_node("Unsqueeze", ["found", "front"], ["last"]),
        helper.make_node("Concat", ["rest", "last"], ["to"], axis=0),
        helper.make_node("Reshape", ["sums", "to"], ["y"]),
    ]
    constants = {"zero": 0, "one": 1, "number": 5 if operator == "Mod" else 2}
    constants |= {"front": [0], "rest": [-1]}
    made = model(
        nodes,
        [typed("x", np.dtype("float32"), rows, 8)],
        [typed("y", np.dtype("float32"), None, None)],
        [(name, np.array(value)) for name, value in constants.items()],
        opset=18,
    )
    check(made, x=np.arange(480, dtype="float32").reshape(60, 8))


UNARY = ("Neg", "Abs", "Identity", "ReduceProd", "Sqrt")


@pytest.mark.parametrize("rows", [60, "n"])
def test_operators_on_a_whole_shape(rows):
    """TVM's importer refuses what is a shape in all but a few operators."""
    nodes = [
        helper.make_node("CumSum", ["x", "zero"], ["sums"]),
        helper.make_node("Shape", ["sums"], ["extents"]),
    ]
    results = []
    for operator in ("Div", "Mul", "Sub", "Add", "Mod", "Min", "Max", *UNARY):
        given, found = ["extents"], "extents"
        if operator == "Sqrt":
            nodes.append(helper.make_node("Cast", [found], ["real"], to=onnx.TensorProto.FLOAT))
            given = ["real"]
        elif operator not in UNARY:
            given.append("number")
        nodes.append(helper.make_node(operator, given, [operator]))
        nodes.append(
            helper.make_node("Cast", [operator], [f"{operator} r"], to=onnx.TensorProto.FLOAT)
        )
        results.append(f"{operator} r")
    nodes += [
        helper.make_node("Mul", ["Div", "number"], ["even"]),
        helper.make_node("Reshape", ["sums", "even"], ["same"]),
    ]
    for at, name in enumerate(results):
        nodes.append(helper.make_node("Add", ["same", name], [f"y{at}"]))
    made = model(
        nodes,
        [typed("x", np.dtype("float32"), rows, 2)],
        [typed(f"y{at}", np.dtype("float32"), None, None) for at in range(len(results))],
        [("zero", np.array(0)), ("number", np.array([2]))],
        opset=18,
    )
    check(made, x=np.arange(120, dtype="float32").reshape(60, 2))


def test_extents_divided_by_zero_and_operators_that_fail():
    shape = helper.make_node("Shape", ["x"], ["extents"])
    for operator, number, said in (
        ("Div", [0], "Div of extents by what is not zero"),
        ("Equal", [1, 2, 3], "got Equal 'last': "),
    ):
        last = helper.make_node(operator, ["extents", "number"], ["y"], name="last")
        made = model([shape, last], [info("x", 4, 6)], [], [("number", np.array(number))])
        with pytest.raises(ScanError, match=said):
            from_onnx(made)
