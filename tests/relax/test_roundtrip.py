"""From ``tvm_scan.torch`` through torch.export to Relax and back to numbers: every function."""

import pytest
import tvm
from tvm import relax
from tvm.target import Target

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.relax.test_torch import Model, families  # noqa: E402
from tests.support.compiled import compile_cached  # noqa: E402
from tests.support.tiers import SEED, longer  # noqa: E402
from tests.torch.test_properties import FUNCTIONS, inputs_of  # noqa: E402
from tvm_scan.errors import ScanError  # noqa: E402
from tvm_scan.relax import from_exported, get_pipeline  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
CPU = Target.from_device("cpu")
LENGTH = torch.export.Dim("length", min=2)
#: The families of the recurrences in the modules; what is not here has one, an affine one.
FAMILIES = {
    **{name: [["reduce"]] for name in ("cumsum", "cumprod")},
    **{name: [["reduce", "affine"]] for name in ("cummax", "cummin")},  # values and positions
    "logcumsumexp": [["reduce"], ["affine"]],  # the running maximum, then the sum
    "associative_scan": [["segmented", "segmented"]],
    # The columns of states with 3 rows; with more than 4 rows they are no scan, but run in chunks.
    **{n: [["matrix affine"]] for n in ("delta_rule", "gated_delta_rule", "kda", "rwkv7")},
    "causal_conv1d": [],
}


def imported(function, inputs, dynamic):
    """A module of Relax."""
    with torch.no_grad():
        shapes = {"args": tuple(dynamic)}
        program = torch.export.export(Model(function), tuple(inputs), dynamic_shapes=shapes)
    return from_exported(program)


def runner(mod):
    """The module, compiled, as a function on tensors of torch."""
    machine = relax.VirtualMachine(
        compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True), tvm.cpu()
    )

    def run(*inputs):
        given = machine["main"](*(tvm.runtime.tensor(t.numpy()) for t in inputs))
        return [torch.from_numpy(t.numpy()) for t in given]

    return run


# One length of each is test_same_bits.py's.
@pytest.mark.parametrize("name", longer(list(FUNCTIONS)[SEED % 3 :: 3], list(FUNCTIONS)))
def test_every_function_with_a_dynamic_length(name):
    shapes, _, call = FUNCTIONS[name]
    dynamic = [{shape.index(None): LENGTH} if None in shape else None for shape in shapes]
    mod = imported(call, inputs_of(name, torch.float32, 6, grad=False), dynamic)
    assert families(mod) == FAMILIES.get(name, [["affine"]])
    run = runner(mod)
    for length in (6, 37):
        inputs = inputs_of(name, torch.float32, length, grad=False)
        (got,) = run(*inputs)
        torch.testing.assert_close(got, call(*inputs), rtol=1e-4, atol=1e-5)


def everything(u, delta, A, B, C, D, z, bias, h0, reset):
    return ts.selective_scan(
        *(u, delta, A, B, C, D, z, bias),
        delta_softplus=True,
        h0=h0,
        reset=reset,
        reverse=True,
        return_last=True,
    )


def several(a, x, h0):
    """Time in the middle, and every way to emit."""
    h, last = ts.linear_recurrence(a, x, h0, dim=1, exclusive=True, return_last=True)
    top = ts.cummax(h.double(), 1, reverse=True)
    return h, last, top.values, top.indices, ts.cummin(x, 1).indices


def test_options():
    rand = lambda *shape: torch.rand(*shape)  # noqa: E731
    u, delta, z = rand(2, 4, 9), rand(2, 4, 9), rand(2, 4, 9)
    reset = torch.zeros(2, 9, dtype=torch.bool)
    reset[:, 5] = True
    B, C = rand(2, 2, 3, 9), rand(2, 3, 9)
    selective = [u, delta, -rand(4, 3), B, C, rand(4), z, rand(4), rand(2, 4, 3), reset]
    linear = [rand(2, 9, 3), rand(2, 9, 3), rand(2, 3)]

    def both(*inputs):
        return *everything(*inputs[:10]), *several(*inputs[10:])

    inputs = [*selective, *linear]
    mod = imported(both, inputs, [None] * len(inputs))
    for got, want in zip(runner(mod)(*inputs), both(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_step_that_mixes_elements():
    inputs = [0.3 * torch.rand(9, 3, 3)]

    def products(m):
        return ts.associative_scan(lambda p, q: q @ p, m, reverse=True)

    mod = imported(products, inputs, [{0: LENGTH}])
    torch.testing.assert_close(runner(mod)(*inputs)[0], products(*inputs))


def test_what_a_gradient_needs_is_left_out():
    """A model that is exported with its parameters keeps states for a gradient; none is read."""
    A = torch.nn.Parameter(-torch.rand(2, 3))
    inputs = (torch.rand(1, 2, 9), torch.rand(1, 3, 9))

    def call(u, B, A):
        return ts.compat.selective_scan_fn(u, u, A, B, B)

    program = torch.export.export(Model(call, A), inputs)
    got = runner(from_exported(program))(*inputs)[0]
    torch.testing.assert_close(got, call(*inputs, A.detach()))

    def kept(u, B, A):
        arrays = (u[:, None], u[:, None], A[None], B[:, None], B[:, None])
        rest = (None, None, None, None, None, False, False, True)
        return torch.ops.tvm_scan.selective_scan_grouped(*arrays, *rest)[2]

    with pytest.raises(ScanError, match="found a use of what is kept for its gradient"):
        from_exported(torch.export.export(Model(kept, A), inputs))
