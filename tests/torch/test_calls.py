"""What a call does beside its kernel, counted: calls of functions, which no load disturbs.

``python -m bench.torch_overhead`` has the microseconds.
"""

import sys

import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402

A, X = torch.rand(2, 2, 8).unbind(0)
LEAF = X.clone().requires_grad_()


def operand(p, q):
    return q[0] * p[0], q[0] * p[1] + q[1]


#: By name: the call, and of how many functions it may consist, Python's and C's.
CALLS = {
    "cumsum": (lambda: ts.cumsum(X, 1), 36),
    "cummax": (lambda: ts.cummax(X, 1), 100),
    "logcumsumexp": (lambda: ts.logcumsumexp(X, 1), 130),
    "linear_recurrence": (lambda: ts.linear_recurrence(A, X), 44),
    "with the last state": (lambda: ts.linear_recurrence(A, X, return_last=True), 88),
    "recorded": (lambda: ts.linear_recurrence(A, LEAF), 170),
    "associative_scan": (lambda: ts.associative_scan(operand, (A, X), 1), 292),
    "hgrn": (lambda: ts.hgrn(X[None], A[None]), 90),
}


def count_of(call) -> int:
    """Functions that a call consists of, where its kernels are built."""
    call()
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", CALLS)
def test_a_call_consists_of_few_functions(name):
    call, most = CALLS[name]
    assert count_of(call) <= most
