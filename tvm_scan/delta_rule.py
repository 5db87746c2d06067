"""The frozen value of a delta rule: a matrix state with a transition of diagonal plus low rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.ir import Var
from tvm.tirx import PrimFunc, Stmt

from tvm_scan.recurrence import Axis

__all__ = ["DeltaRule", "Read", "Term", "Written"]


@dataclass(frozen=True, eq=False)
class Read:
    """``value = sum over rows of weight * S``, one number for each column and step.

    Attributes
    ----------
    value : Var
        What the stores of a step call it.
    weight : Expr
        Over lanes, time and the row.
    after : bool
        Whether the state after the step is read; else the one before it.
    """

    value: Var
    weight: Any
    after: bool


@dataclass(frozen=True, eq=False)
class Term:
    """``into u``, with ``u = drive + rate (source . S)`` for every column of S.

    Attributes
    ----------
    into : Expr
        Over lanes, time and the row.
    source : Expr or None
        As ``into``; None where nothing is read, and ``u`` is the drive.
    rate, drive : Expr
        Over lanes, time and the column.
    added : int
        Terms of the same step, its first ones, that are in the S that is read, through the gates
        then. With none, that is the state before the step.
    """

    into: Any
    source: Any
    rate: Any
    drive: Any
    added: int = 0


@dataclass(frozen=True, eq=False)
class Written:
    """``buffer[index] = value``: of a step over its reads, or of a final state over that."""

    buffer: Var
    index: tuple[Any, ...]
    value: Any


@dataclass(frozen=True, eq=False)
class DeltaRule:
    """``S' = diag(gate) S diag(column_gate)`` and some terms, each of which may read S.

    The (gated) delta rule ``S' = g S (I - b k k^T) + b v k^T`` is the case of one term with
    ``into = k``, ``source = g k``, ``rate = -b``, ``drive = b v``; that of RWKV-7 has two, ``S' =
    diag(w) S + k v^T + b (a . S)``, and a step of DeltaProduct has several of which each reads the
    state with those before it. The gate of the rows, vectors and the weights of the reads do not
    depend on the column, so that many columns share what a chunk of steps does.

    Attributes
    ----------
    func : PrimFunc
        The function that the nest belongs to.
    nest : Stmt
        The loop nest.
    lanes : tuple of Axis
        Independent matrices, without the column.
    rows, columns, time : Axis
        The cells that a step couples, those that it does not, and the steps.
    state : Var
        The buffer of the state.
    indices : tuple of Expr
        Its index, over lanes, row and column.
    initial : Expr or None
        The state before time; None where it is in memory.
    is_kept : bool
        Whether something outside of the nest sees the state, so that it is written back.
    gate : Expr
        Over lanes, time and the row.
    column_gate : Expr or None
        Over lanes, time and the column; None for 1.
    terms : tuple of Term
        What is added, one after another.
    reads : tuple of Read
        What the stores of a step read of the state.
    stores : tuple of Written
        Stores of one step; ``value`` is over the reads, lanes, time and the column.
    final : Var
        A cell of the state after time, in the values of ``finish``.
    finish : tuple of Written
        Stores after time.
    inputs, outputs : tuple of Var
        Buffers that are read, and that are written and seen outside.
    """

    func: PrimFunc
    nest: Stmt
    lanes: tuple[Axis, ...]
    rows: Axis
    columns: Axis
    time: Axis
    state: Var
    indices: tuple[Any, ...]
    initial: Any
    is_kept: bool
    gate: Any
    column_gate: Any
    terms: tuple[Term, ...]
    reads: tuple[Read, ...]
    stores: tuple[Written, ...]
    final: Var
    finish: tuple[Written, ...]
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]

    @property
    def dtype(self) -> str:
        """Dtype of the state."""
        return str(self.state.ty.dtype)
