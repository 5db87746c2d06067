"""The states after sequences that are packed into one row."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

from tvm_scan.loops.writer import Loop, cast, const


def states_of_sequences(
    length: Expr,
    heads: Expr,
    features: Expr,
    groups: Expr,
    states: Expr,
    ends: Expr,
    *,
    dtype: str,
    offsets_dtype: str,
    has_first: bool,
    has_reset: bool,
) -> tirx.PrimFunc:
    """Build ``states_of_sequences(gates, drive, B, [first, reset,] offsets, last)``.

    ``h = exp(gates) h + drive B'`` over the steps from one of the `ends` offsets to the next; over
    the others the state stays. So each sequence takes the whole row, and each is a lane of one
    affine recurrence. Only the sequence that begins with the row begins with `first`, if it has
    steps.
    """
    one, zero, none = const(1, dtype), const(0, dtype), const(0, offsets_dtype)
    with Loop() as loop:
        gates = loop.array("gates", (1, length, heads), dtype)
        drive = loop.array("drive", (1, length, heads, features), dtype)
        B = loop.array("B", (1, length, groups, states), dtype)
        lanes = (heads, features, states)
        first = loop.array("first", (1, *lanes), dtype) if has_first else None
        reset = loop.array("reset", (1, length), "int8") if has_reset else None
        offsets = loop.array("offsets", (ends,), offsets_dtype)
        last = loop.array("last", (ends - 1, *lanes), dtype)
        with loop.lanes("shdn", ends - 1, *lanes):
            with loop.begin() as (s, h, d, n):
                begins = tirx.And(offsets[s] == none, offsets[s + 1] > none)
                start = None if first is None else first[0, h, d, n]
                last[s, h, d, n] = 0 if start is None else tirx.Select(begins, start, zero)
            with loop.steps(length, "step") as ((s, h, d, n), t):
                now = cast(t, offsets_dtype)
                inside = tirx.And(offsets[s] <= now, now < offsets[s + 1])
                gate = tirx.Select(inside, tirx.exp(gates[0, t, h]), one)
                passed = gate * last[s, h, d, n]
                if reset is not None:
                    anew = tirx.And(inside, reset[0, t] != const(0, "int8"))
                    passed = tirx.Select(anew, zero, passed)
                added = drive[0, t, h, d] * B[0, t, h // (heads // groups), n]
                last[s, h, d, n] = passed + tirx.Select(inside, added, zero)
    return loop.func
