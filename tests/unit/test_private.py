"""Which buffers every run of a body overwrites before it reads them, and that the proof ends."""

import pytest
from tvm.script import tirx as T

from tvm_scan.extraction.accesses import is_private
from tvm_scan.extraction.assemble import root_nests
from tvm_scan.extraction.flatten import flatten
from tvm_scan.extraction.statements import stores_in


@T.prim_func(s_tir=True)
def only_later(X: T.Buffer((4, 8), "float32"), S: T.Buffer((8,), "float32")):
    for i in range(4):
        for t in range(8):
            if t > 0:
                S[t] = X[i, t]


@T.prim_func(s_tir=True)
def one_step(X: T.Buffer((4, 8), "float32"), S: T.Buffer((8,), "float32")):
    for i in range(4):
        for step in range(1):
            for t in range(8):
                if t + step > 0:
                    S[t] = X[i, t]


@T.prim_func(s_tir=True)
def other_steps(X: T.Buffer((4, 8), "float32"), S: T.Buffer((8,), "float32")):
    for i in range(4):
        for t in range(8):
            if t == 3:
                for k in range(8):
                    S[k] = X[i, k]


@T.prim_func(s_tir=True)
def part_of_a_row(X: T.Buffer((4, 8), "float32"), S: T.Buffer((8,), "float32")):
    for i in range(4):
        for t in range(8):
            if t == 0:
                for k in range(7):
                    S[k] = X[i, k]
            S[t] = S[t] + X[i, t]


@T.prim_func(s_tir=True)
def first_step(X: T.Buffer((4, 8), "float32"), S: T.Buffer((8,), "float32")):
    for i in range(4):
        for t in range(8):
            if t == 0:
                for k in range(8):
                    S[k] = X[i, k]
            S[t] = S[t] + X[i, t]


@T.prim_func(s_tir=True)
def every_cell(X: T.Buffer((4, 8), "float32"), S: T.Buffer((8,), "float32")):
    for i in range(4):
        for t in range(8):
            S[t] = X[i, t]


@pytest.mark.parametrize(
    ("func", "expected"),
    [
        (only_later, False),
        (one_step, False),
        (other_steps, False),
        (part_of_a_row, False),
        (first_step, True),
        (every_cell, True),
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_a_buffer_of_an_iteration(func, expected):
    (nest,) = root_nests(func)
    (lane,) = flatten(func, nest).body
    state = stores_in(lane.body)[0].buffer
    assert is_private(state, lane.body) is expected
