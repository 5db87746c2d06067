"""Exports that tests make faster (support/quick_export.py) are the programs that torch makes."""

import sys

import pytest

from tests import ROOT
from tests.support import forks

pytest.importorskip("torch")

#: In a process of its own, which has torch as it is.
PROGRAM = """
import torch
from tests.support import quick_export

class Model(torch.nn.Module):
    def forward(self, x, w):
        y = torch.nn.functional.layer_norm(torch.einsum("ij,jk->ik", x, w), (3,)).softmax(-1)
        return torch.nn.functional.linear(torch.cumsum(y, 0), w), torch.conj(y)

class Later(torch.nn.Module):
    def forward(self, x):
        return torch.ops.test_quick_export.twice(x)

def programs():
    program = torch.export.export(Model(), (torch.ones(2, 4), torch.ones(4, 3)))
    split = torch.export.default_decompositions()
    split[torch.ops.aten.linear.default] = lambda x, w, bias=None: (x @ w.t()) * 1
    yield program
    yield program.run_decompositions()
    yield program.run_decompositions({})
    yield program.run_decompositions(split)

def texts():
    return [str(program.graph) for program in programs()]

def rules():
    operators = (getattr(torch.ops.aten, name).default for name in ("linear", "einsum", "conj"))
    return [dict(operator.py_kernels) for operator in operators]

before, rules_before = texts(), rules()
assert len(set(before)) == 3, before  # without a table, nothing is decomposed
quick_export.install()
for _ in range(3):
    assert texts() == before
    assert rules() == rules_before
library = torch.library.Library("test_quick_export", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
program = torch.export.export(Later(), (torch.ones(2),))
assert "twice" in str(program.run_decompositions({}).graph)
assert "twice" not in str(program.run_decompositions().graph)
print("the same")
"""


def test_programs_are_what_they_are_without():
    words = [sys.executable, "-c", PROGRAM]
    done = forks.run(words, torch=True, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "the same\n", done.stderr
