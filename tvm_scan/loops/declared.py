"""Loops of a step that is given as a function of expressions, each lane with local states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from tvm_scan import tir
from tvm_scan.loops.frame import Frame
from tvm_scan.loops.writer import Cells, Loop

Values = Sequence[Expr]


def step_loop(
    frame: Frame,
    step: Callable[[Values, Values], tuple[Values, Values]],
    states: Sequence[str],
    reads: Sequence[str],
    emits: Sequence[str],
) -> tirx.PrimFunc:
    """Build ``states, emits = step(states, reads)``, from initial states to last ones.

    Parameters
    ----------
    frame : Frame
        The axes of what is read and emitted; states are without time.
    step : callable
        From states and what is read, the new states and what is emitted.
    states, reads, emits : sequence of str
        Their dtypes.

    Returns
    -------
    tirx.PrimFunc
        ``(init0, .., x0, .., last0, .., y0, ..)``; the last two are written.
    """
    with Loop() as loop:
        inits = _arrays(loop, "init", frame.lanes, states)
        xs = _arrays(loop, "x", frame.shape, reads)
        lasts = _arrays(loop, "last", frame.lanes, states)
        ys = _arrays(loop, "y", frame.shape, emits)
        with loop.block("scan", [*inits, *xs], [*lasts, *ys]):
            held, fresh = _registers(loop, states)
            with loop.grid(frame.names, *frame.lanes) as lane:
                _store(held, [init[lane] for init in inits])
                with loop.over(frame.length, "t") as t:
                    here = frame.at(lane, t)
                    new, emitted = step([s[0] for s in held], [x[here] for x in xs])
                    for y, value in zip(ys, emitted, strict=True):
                        y[here] = value
                    _advance(held, fresh, new)
                for last, state in zip(lasts, held, strict=True):
                    last[lane] = state[0]
    return loop.func


def operator_loop(
    frame: Frame,
    combine: Callable[[tuple[Any, ...], tuple[Any, ...]], Values],
    dtypes: Sequence[str],
    *,
    initial: Sequence[float] | None = None,
    exclusive: bool = False,
    names: str = "xy",
) -> tirx.PrimFunc:
    """Build ``y[t] = combine(y[t - 1], x[t])``.

    Parameters
    ----------
    frame : Frame
        The axes.
    combine : callable
        From two operands, the earlier one first, to one.
    dtypes : sequence of str
        Dtypes of the parts of an operand.
    initial : sequence of float, optional
        The operand before the first element; without it `y` begins with the first `x`.
    exclusive : bool
        Emit before the update.
    names : str
        A letter for what is read and one for what is written.

    Returns
    -------
    tirx.PrimFunc
        ``(x0, .., y0, ..)``; the last are written.
    """
    with Loop() as loop:
        xs, ys = (_arrays(loop, name, frame.shape, dtypes) for name in names)
        with loop.block("scan", xs, ys):
            held, fresh = _registers(loop, dtypes)
            with loop.grid(frame.names, *frame.lanes) as lane:
                _store(held, [0] * len(held) if initial is None else initial)
                with loop.over(frame.length, "t") as t:
                    here = frame.at(lane, t)
                    read = tuple(x[here] for x in xs)
                    new = combine(tuple(s[0] for s in held), read)
                    if initial is None:
                        pairs = zip(read, new, strict=True)
                        new = [
                            tirx.op.if_then_else(tirx.EQ(t, tir.zero_like(t)), x, value)
                            for x, value in pairs
                        ]
                    if not exclusive:
                        _advance(held, fresh, new)
                    for y, state in zip(ys, held, strict=True):
                        y[here] = state[0]
                    if exclusive:
                        _advance(held, fresh, new)
    return loop.func


def _arrays(loop: Loop, name: str, shape: Sequence[Any], dtypes: Sequence[str]) -> list[Cells]:
    return [loop.array(f"{name}{i}", shape, dtype) for i, dtype in enumerate(dtypes)]


def _registers(loop: Loop, dtypes: Sequence[str]) -> tuple[list[Cells], list[Cells]]:
    """Allocate the states, and where a step leaves the new ones: it may read all old ones."""
    held, fresh = (
        [loop.cell(f"{name}{i}", dtype, scope="local") for i, dtype in enumerate(dtypes)]
        for name in ("state", "next")
    )
    return held, fresh


def _store(cells: Sequence[Cells], values: Sequence[Any]) -> None:
    for cell, value in zip(cells, values, strict=True):
        cell[0] = value


def _advance(held: Sequence[Cells], fresh: Sequence[Cells], new: Values) -> None:
    _store(fresh, new)
    _store(held, [cell[0] for cell in fresh])
