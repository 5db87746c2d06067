"""Every function beside every property that torch's own functions have; holes are listed.

Options and values have tests of their own. Here each function runs once for each property, on
small inputs, so that what is missing shows as an entry of `HOLES`.
"""

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.support.derivatives import check_derivatives  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


def pair(p, q):
    return q[0] * p[0], q[0] * p[1] + q[1]


def step(c, ax):
    return (ax[0] * c + ax[1],) * 2


def scanned(a, x):
    return ts.scan(step, torch.zeros(2, dtype=x.dtype), (a, x))[1]


KEYS, VALUES = (1, None, 1, 3), (1, None, 1, 4)

#: Name -> shapes of the inputs with time marked by None, signs, and the call.
FUNCTIONS = {
    "cumsum": ([(2, None)], "+", lambda x: ts.cumsum(x, -1)),
    "cumprod": ([(2, None)], "+", lambda x: ts.cumprod(x, -1)),
    "cummax": ([(2, None)], "+", lambda x: ts.cummax(x, -1).values),
    "cummin": ([(2, None)], "+", lambda x: ts.cummin(x, -1).values),
    "logcumsumexp": ([(2, None)], "+", lambda x: ts.logcumsumexp(x, -1)),
    "linear_recurrence": ([(2, None), (2, None)], "++", ts.linear_recurrence),
    "lfilter": ([(2, None), (2,), (2,)], "+++", lambda x, a, b: ts.lfilter(x, 2 + a, b)),
    "causal_conv1d": ([(2, 3, None), (3, 2), (3,)], "+++", ts.causal_conv1d),
    "rglru": ([(1, None, 2)] * 3 + [(2,)], "++++", ts.rglru),
    "hgrn": ([(1, None, 2)] * 2, "++", ts.hgrn),
    # Keys, values and states are as many as in the files of these functions: kernels are shared.
    "gla": ([KEYS, KEYS, VALUES, KEYS], "+++-", ts.gla),
    "rwkv6": ([KEYS, KEYS, VALUES, KEYS, (1, 3)], "+++-+", ts.rwkv6),
    "delta_rule": ([KEYS, KEYS, VALUES, KEYS[:3]], "++++", lambda *t: ts.delta_rule(*t)[0]),
    "gated_delta_rule": (
        [KEYS, KEYS, (1, None, 2, 4), (1, None, 2), (1, None, 2)],
        "+++-+",
        lambda *t: ts.gated_delta_rule(*t)[0],
    ),
    "kda": ([KEYS, KEYS, VALUES, KEYS, KEYS[:3]], "+++-+", lambda *t: ts.kda(*t)[0]),
    "rwkv7": (
        [KEYS, KEYS, KEYS, VALUES, KEYS, KEYS],
        "+-++-+",
        lambda *t: ts.rwkv7(*t)[0],
    ),
    "ssd": (
        [(1, None, 2, 3), (1, None, 2), (2,), (1, None, 1, 2), (1, None, 1, 2)],
        "++-++",
        ts.ssd,
    ),
    "selective_scan_fn": (
        [(1, 2, None), (1, 2, None), (2, 3), (1, 3, None), (1, 3, None)],
        "++-++",
        ts.compat.selective_scan_fn,
    ),
    "associative_scan": (
        [(None, 2), (None, 2)],
        "++",
        lambda a, x: ts.associative_scan(pair, (a, x))[1],
    ),
    "scan": ([(None, 2), (None, 2)], "++", scanned),
}

#: What does not hold, and what the error says.
HOLES = {}

pytest_names = pytest.mark.parametrize("name", FUNCTIONS)


def inputs_of(name, dtype=torch.float64, length=4, grad=True, times=()):
    shapes, signs, _ = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(0)
    made = []
    for shape, sign in zip(shapes, signs, strict=True):
        sizes = [*times, *(length if n is None else n for n in shape)]
        tensor = 0.2 + 0.7 * torch.rand(sizes, generator=generator, dtype=torch.float64)
        made.append((-tensor if sign == "-" else tensor).to(dtype).requires_grad_(grad))
    return made


def call_of(name):
    return FUNCTIONS[name][2]


def holds(name, holding):
    """Run a property; where it is a hole, the error must be the one that is listed."""
    prop = holding.__name__
    if (name, prop) in HOLES:
        with pytest.raises(Exception, match=HOLES[name, prop]):
            holding()
    else:
        holding()


@pytest_names
def test_derivatives(name):
    def derivatives():
        inputs, call = inputs_of(name), call_of(name)
        # Along one random direction: the files of the functions check every entry.
        check_derivatives(call, inputs)

    holds(name, derivatives)


@pytest_names
def test_transforms(name):
    call = call_of(name)

    def grad():
        inputs = inputs_of(name)
        places = tuple(range(len(inputs)))
        got = torch.func.grad(lambda *t: call(*t).square().sum(), places)(*inputs)
        torch.testing.assert_close(got, torch.autograd.grad(call(*inputs).square().sum(), inputs))

    def vmap():
        inputs = inputs_of(name, grad=False, times=(3,))
        got = torch.func.vmap(call)(*inputs)
        wanted = torch.stack([call(*(t[i] for t in inputs)) for i in range(3)])
        torch.testing.assert_close(got, wanted)

    holds(name, grad)
    holds(name, vmap)


@pytest_names
def test_compile_and_export(name):
    call, inputs = call_of(name), inputs_of(name, grad=False)

    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return call(*tensors)

    def fullgraph():
        torch._dynamo.reset()
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*inputs), call(*inputs))

    def export():
        program = torch.export.export(Module(), tuple(inputs))
        torch.testing.assert_close(program.module()(*inputs), call(*inputs))

    holds(name, fullgraph)
    holds(name, export)


@pytest_names
def test_layouts_and_sizes(name):
    call = call_of(name)

    def layouts():
        inputs = inputs_of(name, grad=False)
        wanted = call(*inputs)
        turned = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in inputs]
        shifted = [torch.cat((t.flatten()[:1], t.flatten()))[1:].view(t.shape) for t in inputs]
        for others in (turned, shifted):
            torch.testing.assert_close(call(*others), wanted, rtol=1e-12, atol=1e-12)
        wide = [t[..., :1].expand(t.shape) for t in inputs]
        compact = [t.contiguous() for t in wide]
        torch.testing.assert_close(call(*wide), call(*compact), rtol=1e-12, atol=1e-12)

    def nothing():
        inputs = inputs_of(name, length=0)
        out = call(*inputs)
        assert not out.numel()
        torch.autograd.grad(out.sum(), inputs, allow_unused=True)
        inputs = inputs_of(name, length=1)
        torch.autograd.grad(call(*inputs).sum(), inputs)

    holds(name, layouts)
    holds(name, nothing)


@pytest_names
def test_halves_and_repetition(name):
    call = call_of(name)

    def halves():
        inputs = inputs_of(name, torch.bfloat16, grad=False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = call(*inputs)
        assert got.dtype == torch.bfloat16
        wanted = call(*(t.double() for t in inputs))
        # One rounding of the result; the carries are wider.
        torch.testing.assert_close(got.double(), wanted, rtol=2**-7, atol=2**-7)

    def deterministic():
        inputs = inputs_of(name, length=40)
        torch.use_deterministic_algorithms(True)
        try:
            runs = [(y := call(*inputs), *torch.autograd.grad(y.sum(), inputs)) for _ in range(2)]
        finally:
            torch.use_deterministic_algorithms(False)
        for first, second in zip(*runs, strict=True):
            assert torch.equal(first, second)

    holds(name, halves)
    holds(name, deterministic)
