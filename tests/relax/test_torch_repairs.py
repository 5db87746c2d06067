"""Operators that TVM takes, and then cannot lower or computes otherwise."""

import numpy as np
import pytest
import tvm
from tvm import relax

torch = pytest.importorskip("torch")

from tests.programs.suite.running import CPU  # noqa: E402
from tests.relax.test_torch import check, exported  # noqa: E402
from tests.support.compiled import compile_cached  # noqa: E402
from tvm_scan.errors import ScanError  # noqa: E402
from tvm_scan.relax import from_exported, get_pipeline  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
#: Functions of numbers above 1, of those from -1 to 1, and of any.
ABOVE = ["log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt", "acosh"]
BETWEEN = ["acos", "asin", "atanh"]
ANY = [
    "atan",
    "asinh",
    "cos",
    "cosh",
    "erf",
    "exp",
    "expm1",
    "sigmoid",
    "sin",
    "sinh",
    "tan",
    "tanh",
]
DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_real_numbers(dtype):
    kind = getattr(torch, dtype)
    x, small = torch.tensor([[2.0, 1.0, 3.0], [5.0, 4.0, 2.0]]), torch.tensor([0.5, -0.25, 0.0])

    def functions(x, small):
        x, small = x.to(kind), small.to(kind)
        made = [getattr(torch, name)(x) for name in ABOVE]
        made += [getattr(torch, name)(small) for name in (*BETWEEN, *ANY)]
        return tuple(value.double() for value in made)

    tolerance = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-6)
    check(functions, x, small, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [*DTYPES, "uint8"])
def test_bounds_questions_and_divisions(dtype):
    kind = getattr(torch, dtype)
    x = torch.tensor([[2, 1, 3, 0], [5, 4, 2, 9]])

    def functions(x, y):
        x, y = x.to(kind), y.to(kind)
        return (
            x.clamp(min=2).double(),
            x.clamp(max=4).double(),
            x.clamp(1, 3).double(),
            torch.clamp(x, min=y).double(),
            torch.clamp_min(x, 2).double(),
            x.argmax(1),
            torch.any(x > 4, 1),
            torch.any(x.bool()),
            torch.div(x, 2, rounding_mode="floor").double(),
            (x // 3).double(),
            torch.where(x > 2, x, 1).double(),
            x == 2,
            x != 2.5,
            x >= y,
            x < 3,
        )

    check(functions, x, x.flip(0))


def test_comparisons_with_nan():
    x = torch.tensor([1.0, float("nan"), float("inf")])
    check(lambda x: (x != x, x == x, x > 0, torch.isnan(x), torch.isinf(x), torch.isfinite(x)), x)


def test_integers_below_and_above():
    """Bounds of int64 are exact: TVM writes a missing one as an infinity of a float."""
    x = torch.tensor([-(2**62) - 1, -1, 0, 2**62 + 1])
    check(lambda x: (x.clamp(min=0), x.clamp(max=-1), torch.relu(x)), x)


def test_log_add_exp():
    check(torch.logaddexp, torch.randn(3, 5), torch.randn(3, 5))


STARTS = {
    "chunk": lambda x: x[:, 0].chunk(2, -1),
    "the last axis": lambda x: (x[:, 0, 0::2], x[:, 0, 1::2]),
    "selected": lambda x: (x[:, 0, :2], x[:, 1, :2]),
    "one tensor twice": lambda x: (x[:, 0, :2], x[:, 0, :2]),
}


@pytest.mark.parametrize("name", STARTS)
def test_states_that_begin_as_views_of_one_tensor(name):
    def model(x):
        a, b = STARTS[name](x)
        out = []
        for t in range(1, x.shape[1]):
            a = 0.5 * a + x[:, t, :2]
            b = 0.25 * b + x[:, t, 2:]
            out.append(a + b)
        return torch.stack(out, 1)

    check(model, torch.rand(3, 9, 4))


def test_parts_of_a_symbolic_axis_have_the_extents_that_torch_knows():
    """Differences of neighbours, by which transformers finds packed sequences."""

    class Differences(torch.nn.Module):
        def forward(self, x):
            return torch.diff(x, prepend=x[:, :1] - 1, dim=-1), x[:, -2:] + x[:, :2], x[:, 1:]

    length = {"x": {1: torch.export.Dim("length", min=3, max=64)}}
    x = torch.rand(2, 7)
    program = torch.export.export(Differences(), (x,), dynamic_shapes=length, strict=False)
    built = compile_cached(
        from_exported(program), CPU, relax_pipeline=get_pipeline(CPU), plainly=True
    )
    run = relax.VirtualMachine(built, tvm.cpu())["main"]
    for x in (torch.rand(2, 7), torch.rand(2, 3)):
        got = run(tvm.runtime.tensor(x.numpy()))
        for part, want in zip(got, Differences()(x), strict=True):
            np.testing.assert_allclose(part.numpy(), want.numpy(), 1e-6)


def test_an_operator_that_is_not_imported_is_named():
    program = exported(lambda x: torch.linalg.svdvals(x), torch.rand(3, 3))
    with pytest.raises(ScanError, match=r"expected operators that .*import.*svd"):
        from_exported(program)


def test_an_operator_that_is_not_lowered_is_named():
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 4), "bool"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(relax.op.negative(x)))
        builder.emit_func_output(out)
    target = tvm.target.Target.from_device("cpu")
    with pytest.raises(ScanError, match=r"(?s)expected operators that TVM lowers, got.*negative"):
        compile_cached(builder.get(), target, relax_pipeline=get_pipeline(target), plainly=True)
