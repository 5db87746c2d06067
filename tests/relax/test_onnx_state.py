"""LinearAttention and CausalConvWithState of ONNX 27 against onnx's reference evaluator."""

import warnings

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, in_every_order
from tvm_scan.errors import ScanError
from tvm_scan.relax import FindScans, from_onnx, get_pipeline

onnx = pytest.importorskip("onnx", reason="onnx is missing: the ONNX importer is not run")
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

if onnx.defs.onnx_opset_version() < 27:
    pytest.skip(f"onnx {onnx.__version__} has no LinearAttention", allow_module_level=True)

CPU = Target.from_device("cpu")
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
NAMES = {
    "LinearAttention": ["query", "key", "value", "past_state", "decay", "beta"],
    "CausalConvWithState": ["input", "weight", "bias", "past_state"],
}


def model(operator, arrays, outputs=2, **attrs):
    """A model of one node, on what of its inputs is there."""
    given = [name if name in arrays else "" for name in NAMES[operator]]
    results = ["output", "present_state"][:outputs]
    node = helper.make_node(operator, given, results, **attrs)
    inputs = [
        helper.make_tensor_value_info(n, TYPES[str(arrays[n].dtype)], arrays[n].shape)
        for n in given
        if n
    ]
    outs = [helper.make_tensor_value_info(n, TYPES["float32"], None) for n in results]
    graph = helper.make_graph([node], "g", inputs, outs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 27)])


def imported(onnx_model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return from_onnx(onnx_model)


def check(onnx_model, arrays, rtol=1e-5, target=CPU):
    given = {i.name: arrays[i.name] for i in onnx_model.graph.input}
    want = ReferenceEvaluator(onnx_model).run(None, given)
    mod = imported(onnx_model)
    built = compile_cached(mod, target=target, relax_pipeline=get_pipeline(target), plainly=True)
    device = tvm.cpu() if target is CPU else tvm.cuda()
    machine = relax.VirtualMachine(built, device)

    def call():
        got = machine["main"](*(tvm.runtime.tensor(a, device) for a in given.values()))
        return [g.numpy() for g in got]

    got = call() if target is CPU else in_every_order(call, built)
    for value, expected in zip(got, want, strict=True):
        assert value.dtype == expected.dtype
        np.testing.assert_allclose(value, expected, rtol, rtol)
    return mod


def attention(
    length, rule="gated", *, heads=2, group=2, each=True, past=True, keys=6, dtype="float32"
):
    rng = np.random.default_rng(0)
    batch, values = 2, 16
    arrays = {
        "query": rng.standard_normal((batch, length, heads * group * keys)),
        "key": rng.standard_normal((batch, length, heads * keys)) / keys,
        "value": rng.standard_normal((batch, length, heads * values)),
    }
    if past:
        arrays["past_state"] = rng.standard_normal((batch, heads, keys, values))
    if "gated" in rule:
        width = heads * (keys if each else 1)
        arrays["decay"] = -rng.random((batch, length, width))
    if "delta" in rule:
        arrays["beta"] = rng.random((batch, length, heads if each else 1))
    arrays = {name: value.astype(dtype) for name, value in arrays.items()}
    attrs = {"update_rule": rule, "q_num_heads": heads * group, "kv_num_heads": heads}
    return model("LinearAttention", arrays, **attrs), arrays


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention(rule, each):
    for length in (1, 37):
        mod = check(*attention(length, rule, each=each))
    (report,) = FindScans(mod)
    assert bool(report.recurrences) == ("delta" not in rule)
    assert bool(report.deltas) == ("delta" in rule)
    assert not report.refused


def shared_keys(length, domain):
    """As onnxruntime has them: 2 heads of queries and keys, 4 of values and states."""
    rng = np.random.default_rng(0)
    arrays = {
        "query": rng.standard_normal((2, length, 2 * 6)),
        "key": rng.standard_normal((2, length, 2 * 6)) / 6,
        "value": rng.standard_normal((2, length, 4 * 5)),
        "past_state": rng.standard_normal((2, 4, 6, 5)),
        "decay": -rng.random((2, length, 4)),
        "beta": rng.random((2, length, 4)),
    }
    arrays = {name: value.astype("float32") for name, value in arrays.items()}
    attrs = {"update_rule": "gated_delta", "q_num_heads": 2, "kv_num_heads": 4, "domain": domain}
    onnx_model = model("LinearAttention", arrays, **attrs)
    if domain:
        onnx_model.opset_import.append(helper.make_opsetid(domain, 1))
    return onnx_model, arrays


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_values_that_share_a_key(domain):
    onnx_model, arrays = shared_keys(23, domain)
    mod = imported(onnx_model)
    (report,) = FindScans(mod)
    assert report.deltas
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    machine = relax.VirtualMachine(built, tvm.cpu())
    got, last = machine["main"](*(tvm.runtime.tensor(a) for a in arrays.values()))
    q, k, v = (arrays[n].reshape(2, 23, h, -1) for n, h in (("query", 2), ("key", 2), ("value", 4)))
    q, k = (np.repeat(t, 2, 2).astype("float64") for t in (q, k))
    state, out = arrays["past_state"].astype("float64"), np.zeros(v.shape)
    for t in range(23):
        state = state * np.exp(arrays["decay"][:, t, :, None, None])
        missing = v[:, t] - np.einsum("bhkv,bhk->bhv", state, k[:, t])
        update = arrays["beta"][:, t, :, None] * missing
        state = state + np.einsum("bhk,bhv->bhkv", k[:, t], update)
        out[:, t] = np.einsum("bhkv,bhk->bhv", state, q[:, t]) * 6**-0.5
    np.testing.assert_allclose(got.numpy(), out.reshape(2, 23, -1), 1e-5, 1e-5)
    np.testing.assert_allclose(last.numpy(), state, 1e-5, 1e-5)


def test_small_matrices_scan_by_the_delta_rule_too():
    (report,) = FindScans(check(*attention(37, "gated_delta", keys=3)))
    assert len(report.recurrences) == 1


def test_linear_attention_without_a_past():
    check(*attention(20, "gated", past=False, group=1))


def test_linear_attention_on_halves():
    onnx_model, arrays = attention(20, "gated", dtype="float16")
    check(onnx_model, arrays, 4e-3)


@pytest.mark.parametrize("rule", ["gated", "gated_delta"])
def test_linear_attention_on_a_gpu(rule):
    check(*attention(11, rule), target=CUDA_TARGET)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize(
    ("length", "bias", "past"), [(1, True, True), (30, False, False), (2, True, False)]
)
def test_causal_conv(activation, length, bias, past):
    rng = np.random.default_rng(0)
    arrays = {"input": rng.standard_normal((2, 6, length)), "weight": rng.random((6, 1, 4))}
    if bias:
        arrays["bias"] = rng.random(6)
    if past:
        arrays["past_state"] = rng.standard_normal((2, 6, 3))
    arrays = {name: value.astype("float32") for name, value in arrays.items()}
    check(model("CausalConvWithState", arrays, activation=activation), arrays)


@pytest.mark.parametrize(
    ("change", "drop", "message"),
    [
        ({"update_rule": "else"}, None, "expected an update_rule of linear, gated"),
        ({"kv_num_heads": 3}, None, "q_num_heads and kv_num_heads of which one"),
        ({}, "decay", "expected a decay with update_rule gated, got none"),
        ({"update_rule": "linear"}, None, "expected no decay with update_rule linear"),
    ],
)
def test_linear_attention_that_does_not_fit(change, drop, message):
    _, arrays = attention(4)
    arrays.pop(drop, None)
    attrs = {"update_rule": "gated", "q_num_heads": 4, "kv_num_heads": 2, **change}
    with pytest.raises(ScanError, match=message):
        imported(model("LinearAttention", arrays, **attrs))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("key", (1, 5, 4), r"LinearAttention: expected key as float32 of"),
        ("decay", (1, 5, 2), r"LinearAttention: expected decay as float32 of"),
        ("past_state", (1, 2, 3, 2), r"LinearAttention: expected past_state as float32 of"),
        ("query", (1, 4), r"LinearAttention: expected query of three known extents"),
    ],
)
def test_linear_attention_on_tokens_of_another_number(name, shape, message):
    # Their memory would be read askew, and no size would be wrong.
    arrays = {n: np.zeros((1, 4, 4), "float32") for n in ("query", "key", "value")}
    arrays["decay"] = np.zeros((1, 4, 2), "float32")
    arrays |= {"past_state": np.zeros((1, 2, 2, 2), "float32"), name: np.zeros(shape, "float32")}
    attrs = {"update_rule": "gated", "q_num_heads": 2, "kv_num_heads": 2}
    with pytest.raises(ScanError, match=message):
        imported(model("LinearAttention", arrays, **attrs))


@pytest.mark.parametrize("rule", ["linear", "gated_delta"])
@pytest.mark.parametrize("length", [0, 5])
def test_linear_attention_with_a_rate_and_a_scale(rule, length):
    onnx_model, arrays = attention(length, rule, heads=3, group=1)
    onnx_model.graph.node[0].attribute.append(helper.make_attribute("scale", -2.5))
    check(onnx_model, arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": (5, 1, 4)}, "CausalConvWithState: expected weight as float32 of"),
        ({"past_state": (2, 6, 4)}, "CausalConvWithState: expected past_state as float32 of"),
        ({"bias": (1,)}, "CausalConvWithState: expected bias as float32 of"),
        ({"input": (2, 6)}, "CausalConvWithState: expected input of three known extents"),
    ],
)
def test_causal_conv_that_does_not_fit(change, message):
    shapes = {"input": (2, 6, 5), "weight": (6, 1, 4), "bias": (6,), "past_state": (2, 6, 3)}
    arrays = {n: np.zeros(s, "float32") for n, s in (shapes | change).items()}
    with pytest.raises(ScanError, match=message):
        imported(model("CausalConvWithState", arrays))
