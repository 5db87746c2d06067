"""torch's associative_scan as a scan: what is proven, what is declared, what is not believed."""

import logging

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, in_every_order
from tvm_scan.annotations import DECLARED
from tvm_scan.relax import FindScans, from_exported, get_pipeline, whole_scans

torch = pytest.importorskip("torch")
from torch._higher_order_ops.associative_scan import associative_scan  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
CPU = Target.from_device("cpu")


def affine(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]


def hypot(left, right):
    """Associative for positive numbers, and in no family."""
    return torch.sqrt(left * left + right * right)


def average(left, right):
    """Not associative."""
    return torch.sin(left) * 0.5 + right


class Model(torch.nn.Module):
    def __init__(self, combine, **options):
        super().__init__()
        self.combine, self.options = combine, options

    def forward(self, *xs):
        given = xs if len(xs) > 1 else xs[0]
        return associative_scan(self.combine, given, combine_mode="generic", **self.options)


def imported(model, *args):
    with whole_scans():
        program = torch.export.export(model, args)
    return from_exported(program)


def families(mod):
    return sorted(
        a.name for report in FindScans(mod) for r in report.recurrences for a in r.algebras
    )


def check(model, *args, target=CPU):
    mod = imported(model, *args)
    want = model(*args)
    want = want if isinstance(want, tuple | list) else [want]
    device = tvm.cpu() if target is CPU else tvm.cuda()
    built = compile_cached(mod, target=target, relax_pipeline=get_pipeline(target), plainly=True)
    machine = relax.VirtualMachine(built, device)

    def call():
        got = machine["main"](*(tvm.runtime.tensor(a.numpy(), device) for a in args))
        return [g.numpy() for g in got]

    got = call() if target is CPU else in_every_order(call, built)
    for value, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(value, expected.numpy(), 1e-4, 1e-5)
    return mod


@pytest.mark.parametrize("options", [{"dim": 0}, {"dim": 1}, {"dim": 1, "reverse": True}])
def test_generic_mode_is_one_loop(options):
    mod = check(Model(affine, **options), torch.rand(37, 5), torch.rand(37, 5))
    assert families(mod) == ["affine", "reduce"]
    assert DECLARED not in mod["associative_scan"].attrs


class Tree(torch.nn.Module):
    def forward(self, a, x):
        def combine(left, right):
            return {"a": left["a"] * right["a"], "x": [right["a"] * left["x"][0] + right["x"][0]]}

        out = associative_scan(combine, {"a": a, "x": [x]}, 0, combine_mode="generic")
        return out["a"], out["x"][0]


def test_operands_in_a_dict():
    mod = check(Tree(), torch.rand(37, 5), torch.rand(37, 5))
    assert families(mod) == ["affine", "reduce"]


def test_the_context_leaves_torch_as_it_was():
    model, x = Model(torch.add, dim=0), torch.rand(9)
    before = len(torch.export.export(model, (x,)).graph.nodes)
    with whole_scans():
        assert len(torch.export.export(model, (x,)).graph.nodes) < before
    assert len(torch.export.export(model, (x,)).graph.nodes) == before


def test_an_operator_of_no_family_is_declared():
    mod = check(Model(hypot, dim=0), 1 + torch.rand(600, 3))
    assert families(mod) == ["segmented"], "what is declared, begun anew by the first step"
    assert DECLARED in mod["associative_scan"].attrs


def test_a_declared_operator_on_a_gpu():
    check(Model(hypot, dim=0), 1 + torch.rand(70, 2), target=CUDA_TARGET)


def test_an_operator_that_is_not_associative_stays_a_loop(caplog):
    with caplog.at_level(logging.INFO, logger="tvm_scan"):
        mod = imported(Model(average, dim=0), torch.rand(20, 3))
    assert families(mod) == []
    assert "associative_scan stays a loop: expected an associative operator" in caplog.text
