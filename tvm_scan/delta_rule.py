"""The frozen value of a delta rule: a matrix state with a transition of diagonal plus low rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import PrimFunc, Stmt

from tvm_scan import tir
from tvm_scan.recurrence import Axis, Group, Recurrence


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

    noun: ClassVar[str] = "delta rule"

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

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Lanes, rows, columns and time."""
        return (*self.lanes, self.rows, self.columns, self.time)

    @cached_property
    def reading(self) -> tuple[int, ...]:
        """Numbers of the terms that read the state."""
        return tuple(n for n, term in enumerate(self.terms) if term.source is not None)

    @property
    def written_last(self) -> tuple[Var, ...]:
        """Buffers with the state after time, and with what is made of it."""
        states = (self.state,) if self.is_kept else ()
        return (*states, *(store.buffer for store in self.finish))

    @property
    def groups(self) -> tuple[Group, ...]:
        """No group: its step multiplies the state by a matrix, which has a form of its own."""
        return ()

    def state_axes(self, group: Group) -> tuple[Axis, ...]:
        """State axes of a group, of which there is none."""
        raise KeyError(group)

    @property
    def algebras(self) -> tuple[Any, ...]:
        """No algebra; see ``groups``."""
        return ()

    @property
    def roundings(self) -> int:
        """Roundings that one step adds to a cell: one for each row of each term."""
        return (tir.as_int(self.rows.extent) or 1) * max(1, len(self.terms))

    @property
    def families(self) -> list[tuple[Any, ...]]:
        """The family, and what of it is in no statement: extents, and what reads what."""
        sizes = [tir.as_int(axis.extent) for axis in (self.rows, self.columns)]
        terms = [term.added for term in self.terms]
        return [(0, "delta", *sizes, terms, [read.after for read in self.reads])]

    @property
    def carries_halves(self) -> bool:
        """Return whether the loop rounds what it carries to a half at every step."""
        return tir.is_half(self.dtype)

    @cached_property
    def step(self) -> Stmt:
        """One step as statements: a name for every factor and read, and the stores."""
        named = [("gate", self.gate), ("column_gate", self.column_gate)]
        for term in self.terms:
            named += [("into", term.into), ("source", term.source)]
            named += [("rate", term.rate), ("drive", term.drive)]
        reads = [tirx.Bind(read.value, read.weight) for read in self.reads]
        return tir.seq([*_bound(named), *reads, *map(_stored, self.stores)])

    @cached_property
    def parts(self) -> tuple[Any, ...]:
        """All that it computes, as statements in a fixed order; None for what it has not."""
        first = tir.seq(_bound([("first", self.initial)])) if self.initial is not None else None
        last = tirx.Bind(self.final, tirx.const(0, tir.dtype_of(self.final)))
        finish = tir.seq([last, *map(_stored, self.finish)]) if self.finish else None
        return (first, self.step, finish)


#: A nest that is proven to be something that plans are made for.
TimeLoop = Recurrence | DeltaRule


def _bound(named: list[tuple[str, Any]]) -> list[Stmt]:
    """Names for the expressions that there are."""
    there = [(name, value) for name, value in named if value is not None]
    return [tirx.Bind(Var(name, tir.prim_type(tir.dtype_of(v))), v) for name, v in there]


def _stored(store: Written) -> Stmt:
    return tirx.BufferStore(store.buffer, store.value, list(store.index))
