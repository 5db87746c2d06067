"""Import from torch.export: cumulative operators, higher-order operators, custom operators."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, in_every_order
from tvm_scan import library
from tvm_scan.errors import ScanError
from tvm_scan.relax import FindScans, from_exported, get_pipeline, loop_converter

torch = pytest.importorskip("torch")
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402

# torch.export copies a tree spec in a way that it itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

CPU = Target.from_device("cpu")


class Model(torch.nn.Module):
    """A function as a module, with parameters where it needs some."""

    def __init__(self, function, *parameters):
        super().__init__()
        self.function = function
        self.weights = torch.nn.ParameterList(parameters)

    def forward(self, *args):
        return self.function(*args, *self.weights)


def exported(function, *args, parameters=(), strict=False, dynamic=None):
    model = Model(function, *parameters).eval()
    return torch.export.export(model, args, strict=strict, dynamic_shapes=dynamic)


def results(mod, *args, target=CPU, device=None):
    device = device or tvm.cpu()
    built = compile_cached(mod, target=target, relax_pipeline=get_pipeline(target), plainly=True)
    machine = relax.VirtualMachine(built, device)

    def run():
        given = machine["main"](*(tvm.runtime.tensor(a.detach().numpy(), device) for a in args))
        return [tensor.numpy() for tensor in given]

    return in_every_order(run, built) if target is CUDA_TARGET else run()


def families(mod):
    return [
        [algebra.name for recurrence in report.recurrences for algebra in recurrence.algebras]
        for report in FindScans(mod)
    ]


def check(function, *args, rtol=1e-5, atol=1e-5, **options):
    """The imported module gives what the model gives."""
    mod = from_exported(exported(function, *args, **options))
    expected = Model(function, *options.get("parameters", ()))(*args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    got = results(mod, *args)
    assert len(got) == len(expected)
    for value, want in zip(got, expected, strict=True):
        assert value.dtype == want.detach().numpy().dtype
        np.testing.assert_allclose(value, want.detach().numpy(), rtol, atol)
    return mod


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"])
def test_cumulative_operators(name, dim):
    operator = getattr(torch, name)
    check(
        lambda x: tuple(operator(x, dim)) if "m" in name[3:4] else operator(x, dim),
        torch.randn(4, 30, 3),
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.uint8])
def test_integers_are_summed_as_torch_sums_them(dtype):
    check(lambda x: torch.cumsum(x, 1), torch.randint(0, 2, (3, 40)).to(dtype))


def test_a_given_dtype():
    check(lambda x: torch.cumsum(x, 0, dtype=torch.float64), torch.randn(5, 3))


def test_ties_and_nan_of_running_extrema():
    x = torch.tensor([[1.0, 1.0, 0.0, float("nan"), 5.0, float("nan"), 2.0]])
    check(lambda x: (*torch.cummax(x, 1), *torch.cummin(x, 1)), x)
    check(lambda x: tuple(torch.cummax(x, 1)), torch.tensor([[3, 3, -1, 4, 4]]))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_infinities_of_logcumsumexp():
    inf, nan, top = float("inf"), float("nan"), torch.finfo(torch.float32).max
    rows = [
        [-inf, 1.0, -inf, 300.0, -300.0, 2.0],
        [0.0, 1.0, inf, 1.0, -inf, 2.0],
        [1.0, nan, inf, 1.0, -inf, 2.0],
        [inf, 1.0, nan, inf, 1.0, inf],
        [-inf, -inf, -inf, top, top, 1.0],
    ]
    x = torch.tensor(rows)
    check(lambda x: torch.logcumsumexp(x, 1), x)
    long = x.repeat(8, 1000)  # a plan of another kind
    check(lambda x: torch.logcumsumexp(x, 1), long)


def linear_step(h, inputs):
    a, x = inputs
    h = h * a + x
    return h, h * 2


def loop_model(a, x):
    h, y = scan(linear_step, torch.zeros(3), (a, x), dim=1)
    return y, h


def test_scan_is_an_affine_scan():
    mod = check(loop_model, torch.rand(3, 50), torch.rand(3, 50))
    assert families(mod) == [["affine"]]


def test_scan_backwards_along_another_axis():
    def model(a, x):
        h, y = scan(linear_step, torch.ones(3), (a, x), dim=0, reverse=True)
        return y, h

    mod = check(model, torch.rand(50, 3), torch.rand(50, 3))
    assert families(mod) == [["affine"]]


def test_scan_of_a_state_that_is_contracted():
    """What a selective scan does: the state has an axis that only the output sums over."""

    def model(a, b, c, x):
        def step(h, inputs):
            a, b, c, x = inputs
            h = h * a[:, None] + x[:, None] * b
            return h, h @ c

        h, y = scan(step, torch.zeros(6, 4), (a, b, c, x), dim=0)
        return y, h

    mod = check(model, torch.rand(20, 6), torch.rand(20, 4), torch.rand(20, 4), torch.rand(20, 6))
    assert families(mod) == [["affine"]]


def test_scan_with_two_carries_and_no_known_family_stays_a_loop():
    def model(x):
        def step(carry, x):
            largest, total = carry
            after = torch.maximum(largest, x)
            total = torch.exp(largest - after) * total + torch.exp(x - after)
            return (after, total), after + torch.log(total)

        start = (torch.full((3,), -1e30), torch.zeros(3))
        (m, s), y = scan(step, start, x, dim=0)
        return m, s, y

    check(model, torch.randn(20, 3))


def test_scan_with_a_matrix_product_of_the_state_stays_a_loop():
    def model(x, w):
        def step(h, x):
            h = torch.tanh(h @ w + x)
            return h, h.clone()

        h, y = scan(step, torch.zeros(2, 5), x, dim=0)
        return h, y

    check(model, torch.randn(12, 2, 5), torch.randn(5, 5) / 3, strict=True)


def test_scan_of_dynamic_length():
    length = torch.export.Dim("length", min=2, max=4096)
    args = torch.rand(3, 16), torch.rand(3, 16)
    dynamic = {"args": ({1: length}, {1: length})}
    mod = from_exported(exported(loop_model, *args, dynamic=dynamic))
    assert families(mod) == [["affine"]]
    a, x = torch.rand(3, 333), torch.rand(3, 333)
    for got, want in zip(results(mod, a, x), loop_model(a, x), strict=True):
        np.testing.assert_allclose(got, want.numpy(), 1e-5, 1e-5)


def test_scan_on_cuda():
    a, x = torch.rand(3, 200), torch.rand(3, 200)
    mod = from_exported(exported(loop_model, a, x))
    got = results(mod, a, x, target=CUDA_TARGET, device=tvm.cuda())
    for value, want in zip(got, loop_model(a, x), strict=True):
        np.testing.assert_allclose(value, want.numpy(), 1e-5, 1e-5)


def test_a_refused_loop_runs_on_cuda_all_the_same():
    def model(start, x):
        return scan(lambda h, x: (torch.sin(h) + x, h + x), start, x, dim=1)

    start, x = torch.randn(3), torch.randn(3, 40)
    mod = from_exported(exported(model, start, x))
    assert [len(report.refused) for report in FindScans(mod)] == [1]
    got = results(mod, start, x, target=CUDA_TARGET, device=tvm.cuda())
    for value, want in zip(got, model(start, x), strict=True):
        np.testing.assert_allclose(value, want.numpy(), 1e-4, 1e-4)


def affine_pair(a0, x0, a1, x1):
    return a0 * a1, a1 * x0 + x1


def test_associative_scan_as_an_operator():
    a, x = torch.rand(40, 3), torch.rand(40, 3)

    def model(a, x):
        return torch.ops.higher_order.associative_scan(affine_pair, [a, x], ())

    mod = from_exported(exported(model, a, x))
    assert sorted(families(mod)[0]) == ["affine", "reduce"]
    state, states = torch.zeros(3), []
    for at, xt in zip(a, x, strict=True):
        state = state * at + xt
        states.append(state)
    product, h = results(mod, a, x)
    np.testing.assert_allclose(product, torch.cumprod(a, 0).numpy(), 1e-5, 1e-5)
    np.testing.assert_allclose(h, torch.stack(states).numpy(), 1e-5, 1e-5)


def test_associative_scan_of_matrices():
    """An operator that is not elementwise: 2x2 matrix products, in the order of time."""
    x = torch.rand(9, 2, 2)

    def model(x):
        return torch.ops.higher_order.associative_scan(lambda p, q: (q @ p,), [x], ())

    (got,) = results(from_exported(exported(model, x)), x)
    product = torch.eye(2)
    for step, value in zip(x, got, strict=True):
        product = step @ product
        np.testing.assert_allclose(value, product.numpy(), 1e-5, 1e-5)


def test_generic_associative_scan():
    from torch._higher_order_ops.associative_scan import associative_scan

    def model(a, x):
        def combine(left, right):
            return left[0] * right[0], right[0] * left[1] + right[1]

        return associative_scan(combine, (a, x), dim=0, combine_mode="generic")

    check(model, torch.rand(37, 3), torch.rand(37, 3))


def counted(a, x, stop=16, weight=None):
    def step(i, h, y):
        at = i.reshape(1)
        a_t, x_t = a.index_select(1, at).squeeze(1), x.index_select(1, at).squeeze(1)
        h = h * a_t + x_t
        if weight is not None:
            h = h + i.to(torch.float32) * weight
        return i + 1, h, torch.index_copy(y, 1, at, h.unsqueeze(1))

    start = torch.tensor(0), torch.zeros(3), torch.zeros(3, 16)
    return while_loop(lambda i, h, y: i < stop, step, start)


@pytest.mark.parametrize("weight", [None, 0.5])
def test_a_while_loop_that_counts_is_a_scan(weight):
    mod = check(lambda a, x: counted(a, x, weight=weight), torch.rand(3, 16), torch.rand(3, 16))
    assert families(mod) == [["affine"]]


def test_a_while_loop_without_arrays():
    def model(h):
        start = torch.tensor(0), h
        return while_loop(lambda i, h: i < 8, lambda i, h: (i + 1, h * 0.5 + 1), start)

    assert families(check(model, torch.rand(3))) == [["affine"]]


def test_a_while_loop_on_a_part_of_a_dynamic_length():
    def model(h, x):
        def step(i, h):
            return i + 1, h * 0.5 + x.index_select(1, i.reshape(1)).squeeze(1)

        return while_loop(lambda i, h: i < 5, step, (torch.tensor(0), h))

    program = exported(
        model,
        torch.rand(3),
        torch.rand(3, 8),
        dynamic=((None, {1: torch.export.Dim("t", min=5, max=99)}),),
    )
    mod = from_exported(program)
    for length in (8, 20):
        h, x = torch.rand(3), torch.rand(3, length)
        np.testing.assert_allclose(results(mod, h, x)[1], model(h, x)[1].numpy(), 1e-5)


def test_a_while_loop_with_a_counter_that_is_not_plain_is_named():
    def model(x):
        def step(i, h):
            return torch.add(i, 1, alpha=2), h * 0.5 + x.index_select(0, i.reshape(1)).squeeze(0)

        return while_loop(lambda i, h: i < 8, step, (torch.tensor(0), torch.zeros(3)))

    with pytest.raises(ScanError, match="while_loop"):
        from_exported(exported(model, torch.rand(8, 3)))


def test_a_while_loop_that_writes_a_part_of_an_array():
    def model(x, y):
        def step(i, y):
            at = i.reshape(1)
            return i + 1, torch.index_copy(y, 1, at, x.index_select(1, at))

        return while_loop(lambda i, y: i < 8, step, (torch.tensor(0), y))

    # Of the trace's length it is all of the array; of another it is not.
    dynamic = (({1: torch.export.Dim("t", min=8, max=99)},) * 2,)
    with pytest.raises(ScanError, match="expected a step of operators that TVM lowers"):
        from_exported(exported(model, torch.rand(3, 8), torch.rand(3, 8), dynamic=dynamic))


def test_a_function_that_holds_a_tensor_of_its_own_is_named():
    def model(h, x):
        return scan(lambda h, x: (h * torch.tensor([0.1, 0.2, 0.3]) + x, h * 2), h, x)

    with pytest.raises(ScanError, match="function holds a tensor made outside of its arguments"):
        from_exported(exported(model, torch.rand(3), torch.rand(8, 3)))


def test_a_while_loop_that_depends_on_its_state_is_named():
    def model(x):
        return while_loop(lambda x: x.sum() < 10, lambda x: (x * 2,), (x,))

    with pytest.raises(ScanError, match="while_loop"):
        from_exported(exported(model, torch.rand(3)))


def test_a_custom_operator():
    @torch.library.custom_op("tvm_scan_tests::linrec", mutates_args=())
    def linrec(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        h = library.linear_recurrence_reference(a.numpy(), x.numpy())[0]
        return torch.from_numpy(h.astype("float32"))

    linrec.register_fake(lambda a, x: torch.empty_like(x))

    def make(a, _x):
        rows, length = (int(n) if isinstance(n, tvm.tirx.IntImm) else None for n in a.shape)
        return library.linear_recurrence(rows, length)

    a, x = torch.rand(3, 40), torch.rand(3, 40)
    for dynamic in (None, {"args": ({1: torch.export.Dim("t")}, {1: torch.export.Dim("t")})}):
        program = exported(lambda a, x: linrec(torch.sigmoid(a), x), a, x, dynamic=dynamic)
        mod = from_exported(program, custom_convert_map={"linrec.default": loop_converter(make)})
        assert families(mod) == [["affine"]]
        (got,) = results(mod, a, x)
        np.testing.assert_allclose(got, linrec(torch.sigmoid(a), x).numpy(), 1e-5, 1e-5)


def test_a_loop_that_does_not_fit_its_operator():
    @torch.library.custom_op("tvm_scan_tests::wide", mutates_args=())
    def wide(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    wide.register_fake(torch.empty_like)
    program = exported(lambda x: wide(x), torch.rand(3, 4, 5))
    convert = loop_converter(lambda _: library.cumsum(3, 4), "wide")
    with pytest.raises(ValueError, match="wide: expected X as float32 of 2 dimensions, got"):
        from_exported(program, custom_convert_map={"wide.default": convert})


def test_what_is_no_exported_program():
    with pytest.raises(TypeError, match=r"expected a torch.export.ExportedProgram, got Model"):
        from_exported(Model(torch.relu))


def test_unknown_operators_are_named():
    program = exported(lambda x: torch.special.bessel_j0(x), torch.rand(3))
    with pytest.raises(ScanError, match=r"got \['special_bessel_j0.default'\]; pass converters"):
        from_exported(program)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_integers_beside_floats_become_floats(name):
    """TVM's importer rounds the Python float to the integer's dtype."""
    operator = getattr(torch, name)

    def step(h, inputs):
        x, k = inputs
        h = h * 0.5 + operator(k, 0.25) + x
        return h, h.clone()

    def function(x, k):
        return scan(step, torch.zeros(3), (x, k), dim=0)[1]

    check(function, torch.randn(12, 3), torch.randint(-5, 6, (12, 3)))
    check(lambda k: operator(k, 0.25), torch.randint(-5, 6, (4,)))
