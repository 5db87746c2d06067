"""``lfilter``: against scipy, through its derivatives, and through torch.export into Relax."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, in_every_order
from tests.support.derivatives import check_derivatives
from tvm_scan.errors import ScanError
from tvm_scan.relax import FindScans, from_exported, get_pipeline

torch = pytest.importorskip("torch")
signal = pytest.importorskip("scipy.signal")
from tvm_scan.torch import lfilter  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
CPU = Target.from_device("cpu")


def coefficients(order, channels=None):
    """Low-pass filters that ring for a while: (b, a) of one, or of several channels."""
    cuts = [0.2] if channels is None else np.linspace(0.1, 0.4, channels)
    made = [signal.butter(order, cut) for cut in cuts]
    b, a = (np.stack([pair[i] for pair in made]) * 1.5 for i in range(2))
    return (b[0], a[0]) if channels is None else (b, a)


def noise(*shape):
    return 0.3 * np.random.default_rng(0).standard_normal(shape)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_one_filter_is_scipys(order):
    b, a = coefficients(order)
    for length in (0, 1, 2, 33, 4000):
        x = noise(2, length)
        got = lfilter(*(torch.tensor(v) for v in (x, a, b)), clamp=False)
        np.testing.assert_allclose(got.numpy(), signal.lfilter(b, a, x), 1e-9, 1e-9)


def test_a_filter_for_each_channel():
    b, a = coefficients(2, channels=3)
    x = noise(4, 3, 500).astype("float32")
    got = lfilter(*(torch.tensor(v.astype("float32")) for v in (x, a, b)))
    want = np.stack([signal.lfilter(b[c], a[c], x[:, c].astype("f8")) for c in range(3)], 1)
    np.testing.assert_allclose(got.numpy(), np.clip(want, -1, 1), 1e-4, 1e-5)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_derivatives(order):
    rng = np.random.default_rng(1)
    a = np.concatenate([np.full((2, 1), 1.3), 0.2 * rng.standard_normal((2, order))], 1)
    tensors = (noise(2, 2, 6), a, rng.standard_normal((2, order + 1)))
    inputs = tuple(torch.tensor(t, requires_grad=True) for t in tensors)
    check_derivatives(lambda *t: lfilter(*t, clamp=False), inputs)


def test_the_operator_is_a_good_citizen():
    x, a, b = (
        torch.tensor(v, requires_grad=True)
        for v in (noise(2, 1, 9), *(np.atleast_2d(c) for c in reversed(coefficients(2))))
    )
    torch.library.opcheck(torch.ops.tvm_scan.lfilter.default, (x, a, b))
    mapped = torch.vmap(lambda x, b: lfilter(x, a[0].detach(), b), (0, None))(x, b[0])
    torch.testing.assert_close(mapped, lfilter(x, a[0], b[0]))


class Filter(torch.nn.Module):
    def __init__(self, order, channels=None):
        super().__init__()
        for name, value in zip("ba", coefficients(order, channels), strict=True):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))

    def forward(self, x):
        return lfilter(x, self.a, self.b)


def compiled(model, x, target=CPU, dynamic=None):
    program = torch.export.export(model, (x,), dynamic_shapes=dynamic)
    mod = from_exported(program)
    families = [a.name for report in FindScans(mod) for r in report.recurrences for a in r.algebras]
    return families, compile_cached(mod, target=target, relax_pipeline=get_pipeline(target))


@pytest.mark.parametrize(("order", "channels"), [(1, None), (2, 2), (4, None)])
def test_through_export(order, channels):
    model = Filter(order, channels)
    families, built = compiled(model, torch.rand(2, 50), dynamic=({1: torch.export.Dim("t")},))
    assert families == ["affine" if order == 1 else "matrix affine"]
    machine = relax.VirtualMachine(built, tvm.cpu())
    for length in (50, 1, 777):
        x = noise(2, length).astype("float32")
        (got,) = machine["main"](tvm.runtime.tensor(x))
        np.testing.assert_allclose(got.numpy(), model(torch.tensor(x)).numpy(), 1e-4, 1e-5)


def test_through_export_on_a_gpu():
    model, x = Filter(2, 2), torch.tensor(noise(2, 70).astype("float32"))
    _, built = compiled(model, x, CUDA_TARGET)
    machine = relax.VirtualMachine(built, tvm.cuda())
    device_x = tvm.runtime.tensor(x.numpy(), tvm.cuda())
    (got,) = in_every_order(lambda: [machine["main"](device_x)[0].numpy()], built)
    np.testing.assert_allclose(got, model(x).numpy(), 1e-4, 1e-5)


def test_an_exported_operator_of_a_higher_order_stays_a_loop():
    """The operator itself takes any order in a graph; what cannot be scanned is not lost."""
    b, a = (torch.tensor(v, dtype=torch.float32)[None] for v in coefficients(6))

    class Raw(torch.nn.Module):
        def forward(self, x, a, b):
            return torch.ops.tvm_scan.lfilter(x, a, b)

    x = torch.tensor(noise(1, 1, 60).astype("float32"))
    mod = from_exported(torch.export.export(Raw(), (x, a, b)))
    (report,) = FindScans(mod)
    assert [r.kind.value for r in report.refused] == ["unsupported-lag"]
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU))
    (got,) = relax.VirtualMachine(built, tvm.cpu())["main"](
        *(tvm.runtime.tensor(t.numpy()) for t in (x, a, b))
    )
    want = signal.lfilter(b[0].double(), a[0].double(), x.double())
    np.testing.assert_allclose(got.numpy(), want, 1e-3, 1e-4)


@pytest.mark.parametrize(
    ("shapes", "dtype", "error", "message"),
    [
        (((9,), (7,), (7,)), "float32", ValueError, "expected 1 to 5 coefficients, got 7"),
        (((9,), (3,), (2,)), "float32", ValueError, "of one shape, .* got .3,. and .2,."),
        (((2, 9), (3, 2), (3, 2)), "float32", ValueError, "expected a waveform of .*, 3, time"),
        (((9,), (2,), (2,)), "int64", ValueError, "floats in waveform, got torch.int64"),
    ],
)
def test_what_does_not_fit(shapes, dtype, error, message):
    with pytest.raises(error, match=message):
        lfilter(*(torch.ones(s, dtype=getattr(torch, dtype)) for s in shapes))


WRONG = {
    "expected one number of taps, got 3 and 2; .* pad": ((1, 2, 9), (2, 3), (2, 2)),
    "expected one number of channels, got 1 and 1 and 2; give": ((1, 2, 9), (1, 3), (1, 3)),
    "expected at least one coefficient, got 0; pass": ((1, 2, 9), (2, 0), (2, 0)),
    "expected a waveform .*, got 2 axes with 2 and 2; add": ((2, 9), (2, 3), (2, 3)),
    "expected one dtype of float32 and float64, got float16, .* convert": (
        (1, 2, 9),
        (2, 3),
        (2, 3),
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_both_faces_of_the_operator_refuse_what_does_not_fit(message):
    """The operator itself, to which the checks of the function do not belong."""
    dtype = torch.float16 if "dtype" in message else torch.float32
    given = tuple(torch.ones(shape, dtype=dtype) for shape in WRONG[message])

    class Raw(torch.nn.Module):
        def forward(self, x, a, b):
            return torch.ops.tvm_scan.lfilter(x, a, b)

    with pytest.raises(ValueError, match=f"^lfilter: {message}"):
        torch.ops.tvm_scan.lfilter(*given)
    program = torch.export.export(Raw(), given)
    with pytest.raises(ScanError, match=f"^lfilter: {message}"):
        from_exported(program)
