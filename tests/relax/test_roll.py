"""Unrolled loops are rolled up again where their steps are exactly alike, and only there."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tests.support.compiled import compile_cached
from tvm_scan.relax import FindScans, from_exported, get_pipeline

torch = pytest.importorskip("torch")
from tvm_scan.relax.import_torch.roll import roll_loops  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
CPU = Target.from_device("cpu")
B, L = 3, 12


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def exported(function, *args):
    return torch.export.export(Model(function), args)


def rolled(function, *args):
    """Reports of the loops of a function, which must still compute the same."""
    program = exported(function, *args)
    check(function, *args, program=program)
    module = torch.fx.GraphModule(program.graph_module, program.graph)
    before = len(module.graph.nodes)
    reports = roll_loops(module)
    if reports:
        assert len(module.graph.nodes) < before
    return reports


def check(function, *args, program=None):
    mod = from_exported(program or exported(function, *args))
    built = compile_cached(mod, target=CPU, relax_pipeline=get_pipeline(CPU), plainly=True)
    got = relax.VirtualMachine(built, tvm.cpu())["main"](
        *(tvm.runtime.tensor(a.numpy()) for a in args)
    )
    want = function(*args)
    want = want if isinstance(want, tuple) else (want,)
    assert len(got) == len(want)
    for value, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(value.numpy(), expected.numpy(), 1e-5, 1e-5)
    return mod


@pytest.fixture
def arrays():
    torch.manual_seed(0)
    return torch.rand(B, L), torch.rand(B, L)


def stacked(a, x):
    h, out = torch.zeros(B), []
    for t in range(L):
        h = h * a[:, t] + x[:, t]
        out.append(h)
    return torch.stack(out, 1)


def backwards(a, x):
    h, out = torch.zeros(B), []
    for t in reversed(range(L)):
        h = h * a[:, t] + x[:, t]
        out.append(h)
    return torch.stack(out, 0)


def every_other_step(a, x):
    h, out = torch.zeros(B), []
    for t in range(1, L, 2):
        h = h * a[:, t] + x[:, t]
        out.append(h * 3)
    return torch.stack(out, -1), h


def exclusive(a, x):
    h, out = torch.zeros(B), []
    for t in range(L):
        out.append(h * 2)
        h = h * a[:, t] + x[:, t]
    return torch.stack(out, 1)


def two_carries(a, x):
    total, largest, out = torch.zeros(B), torch.full((B,), -1.0), []
    for t in range(L):
        total = total + x[:, t]
        largest = torch.maximum(largest, a[:, t])
        out.append(total * largest)
    return torch.stack(out, 1), total, largest


def test_an_initial_state_among_the_inputs(arrays):
    def function(h, a, x, unused):
        out = []
        for t in range(L):
            h = h * a[:, t] + x[:, t]
            out.append(h)
        return torch.stack(out, 1), h, unused * 2

    assert len(rolled(function, torch.rand(B), *arrays, torch.rand(2))) == 1


def test_random_numbers_stay_where_they_are_drawn(arrays):
    def function(a, x):
        h, out = torch.zeros(B), []
        for t in range(L):
            h = h * a[:, t] + torch.rand(B)
            out.append(h)
        return torch.stack(out, 1)

    program = exported(function, *arrays)
    assert roll_loops(torch.fx.GraphModule(program.graph_module, program.graph)) == []


def second_order(a, x):
    older = newer = torch.zeros(B)
    out = []
    for t in range(L):
        older, newer = newer, a[:, t] * older - 0.5 * newer + x[:, t]
        out.append(newer * 2)
    return torch.stack(out, 1), older, newer


def second_order_exclusive(a, x):
    older, newer, out = torch.zeros(B), torch.ones(B), []
    for t in range(L):
        out.append(older)
        older, newer = newer, a[:, t] * older - 0.5 * newer + x[:, t]
    return torch.stack(out, 1), newer


def unbound(a, x):
    h, out = torch.zeros(B, 1), []
    for gate, value in zip(a.unbind(1), x.split(1, 1), strict=True):
        h = h * gate[:, None] + value
        out.append(h)
    return torch.cat(out, 1), out[3] * 2


def sliced(a, x):
    h, out = torch.zeros(B, 1), []
    for t in range(L):
        h = h * a[:, t : t + 1] + x[:, t : t + 1]
        out.append(h)
    return torch.cat(out, 1)


def first_step_apart(a, x):
    h = x[:, 0]
    out = [h]
    for t in range(1, L):
        h = h * a[:, t] + x[:, t]
        out.append(h)
    return torch.stack(out, 1), h


def two_steps_apart(a, x):
    out = [x[:, 0], x[:, 1] * 2]
    for t in range(2, L):
        out.append(out[-1] * a[:, t] - 0.5 * out[-2] + x[:, t])
    return torch.stack(out, 1), out[-1], out[5]


def filled_from_the_end(a, x):
    h = x[:, L - 1]
    out = [h]
    for t in range(L - 2, -1, -1):
        h = h * a[:, t] + x[:, t]
        out.insert(0, h)
    return torch.stack(out, 1)


@pytest.mark.parametrize(
    ("function", "carries"),
    [
        (stacked, 1),
        (backwards, 1),
        (every_other_step, 1),
        (exclusive, 1),
        (two_carries, 2),
        (second_order, 2),
        (second_order_exclusive, 2),
        (unbound, 1),
        (sliced, 1),
        (first_step_apart, 1),
        (two_steps_apart, 2),
        (filled_from_the_end, 1),
    ],
)
def test_a_loop_is_rolled(function, carries, arrays):
    (report,) = rolled(function, *arrays)
    assert report.carries == carries
    assert report.slices == 2
    assert report.steps in (L, L - 1, L - 2, L // 2)
    assert "operators rolled into one loop" in str(report)


def test_a_rolled_loop_is_a_scan(arrays):
    (report,) = FindScans(check(stacked, *arrays))
    assert [a.name for r in report.recurrences for a in r.algebras] == ["affine"]


def written(a, x):
    h, out = torch.zeros(B), torch.zeros(B, L)
    for t in range(L):
        h = h * a[:, t] + x[:, t]
        out[:, t] = h
    return out


def written_from_the_end(a, x):
    h, out = torch.zeros(B), torch.zeros(B, L)
    for t in range(L - 1, -1, -1):
        h = h * a[:, t] + x[:, t]
        out[:, t] = h
    return out


def read_back(a, x):
    out = torch.zeros(B, L)
    out[:, 0] = x[:, 0]
    for t in range(1, L):
        out[:, t] = out[:, t - 1] * a[:, t] + x[:, t]
    return out


def read_back_from_the_end(a, x):
    out = torch.zeros(L + 1, B)
    for t in reversed(range(L)):
        out[t] = out[t + 1] * a[:, t] + x[:, t]
    return out[:-1], out


def every_other_place(a, x):
    h, out = torch.zeros(B), torch.ones(B, L)
    for t in range(0, L - 2, 2):
        h = h * a[:, t] + x[:, t]
        out[:, t + 1] = h
    return out


@pytest.mark.parametrize(
    ("function", "steps"),
    [
        (written, L),
        (written_from_the_end, L),
        (read_back, L - 1),
        (read_back_from_the_end, L),
        (every_other_place, L // 2 - 1),
    ],
)
def test_writes_into_an_array_are_rolled(function, steps, arrays, caplog):
    with caplog.at_level("INFO", logger="tvm_scan"):
        check(function, *arrays)
    assert f"{steps} steps of 2 operators rolled into one loop with 1 carries" in caplog.text


def test_a_place_that_is_written_twice_stays(arrays):
    def function(a, x):
        h, out = torch.zeros(B), torch.ones(B, L)
        for t in range(L):
            h = h * a[:, t] + x[:, t]
            out[:, t // 2] = h
        return out, out[:, 1]

    check(function, *arrays)


def almost(change):
    """`stacked`, with one step unlike the others."""

    def function(a, x):
        h, out = torch.zeros(B), []
        for t in range(L):
            h = change(t, h, a[:, t], x[:, t], a, x)
            out.append(h)
        return torch.stack(out, 1)

    return function


@pytest.mark.parametrize(
    "change",
    [
        lambda t, h, a, x, *_: h * a + x * (2.0 if t == 7 else 1.0),
        lambda t, h, a, x, *_: h * a - x if t == L - 1 else h * a + x,
        lambda t, h, a, x, whole, _: h * (whole[:, 0] if t == 3 else a) + x,
        lambda t, h, a, x, _, whole: h * a + whole[:, t * t % L],
        lambda t, h, a, x, *_: (a if t == 6 else h) * a + x,
        lambda t, h, a, x, *_: x * h + a if t % 2 else h * a + x,
        lambda t, h, a, x, *_: a + x,  # no step reads another
    ],
    ids=["constant", "operator", "input", "indices", "carry", "alternating", "no carry"],
)
def test_a_loop_with_an_odd_step_stays(change, arrays):
    assert rolled(almost(change), *arrays) == []


@pytest.mark.parametrize(
    "initial",
    [
        torch.zeros(()),
        torch.zeros(1),
        torch.zeros(B, dtype=torch.int64),
        torch.zeros(B, dtype=torch.float16),
    ],
    ids=["scalar", "one", "integers", "halves"],
)
def test_a_state_that_changes_its_kind_at_the_first_step_has_that_step_apart(initial, arrays):
    def function(a, x):
        h, out = initial + 0, []
        for t in range(L):
            h = h * a[:, t] + x[:, t]
            out.append(h)
        return torch.stack(out, 1)

    assert [loop.steps for loop in rolled(function, *arrays)] == [L - 1]


def test_constants_of_another_sign_stay(arrays):
    change = almost(lambda t, h, a, x, *_: torch.where(h > 9, h, -0.0 if t == 3 else 0.0) * x)
    assert rolled(change, *arrays) == []


def test_steps_in_another_order_stay(arrays):
    def function(a, x):
        h, out = torch.zeros(B), []
        for t in range(L):
            h = h * a[:, t] + x[:, t]
            out.append(h)
        out[2], out[3] = out[3], out[2]
        return torch.stack(out, 1)

    assert rolled(function, *arrays) == []


def test_a_loop_in_a_loop(arrays):
    def function(a, x):
        h, rows = torch.zeros(B), []
        for t in range(2):
            row = []
            for s in range(L):
                h = h * 0.5 + a[:, t] * x[:, s]
                row.append(h)
            rows.append(torch.stack(row, 1))
        return torch.stack(rows, 1)

    assert [loop.steps for loop in rolled(function, *arrays)] == [L, L]


def test_few_steps_stay(arrays):
    def function(a, x):
        h, out = torch.zeros(B), []
        for t in range(3):
            h = h * a[:, t] + x[:, t]
            out.append(h)
        return torch.stack(out, 1)

    assert rolled(function, *arrays) == []


def test_rolling_can_be_switched_off(arrays):
    mod = from_exported(exported(stacked, *arrays), roll=False)
    assert FindScans(mod) == []
