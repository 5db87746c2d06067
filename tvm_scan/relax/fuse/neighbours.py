"""Elementwise calls next to a scan, and chains of them that permute, cut or reshape in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm import relax, tirx
from tvm.ir import GlobalVar, IRModule
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.annotations import IS_SCHEDULED
from tvm_scan.relax.calls import legalized
from tvm_scan.relax.fuse.dataflow import Dataflow
from tvm_scan.relax.fuse.pointwise import Pointwise, composed, pointwise
from tvm_scan.schedules.common.branches import branches

#: Elements of a scan's largest array for one of an array that may be read or written in another
#: order than the scan reads it: the copy that would transpose it costs about as much for each.
_SPREAD = 4
#: Stand-in for an extent that is not known until run time.
_UNKNOWN = 4096


@dataclass(frozen=True, eq=False)
class Neighbour:
    """Calls that together are one elementwise function.

    Attributes
    ----------
    names : tuple of str
        Of the functions that are called.
    part : Pointwise
        What they compute.
    args : tuple of relax.Expr
        One for each input of ``part``.
    removed : tuple of relax.Var
        What only they make and only they read.
    dropped : tuple of relax.Expr
        Arguments that more than one of them reads, once for each further one.
    """

    names: tuple[str, ...]
    part: Pointwise
    args: tuple[relax.Expr, ...]
    removed: tuple[relax.Var, ...] = field(default=())
    dropped: tuple[relax.Expr, ...] = field(default=())

    def large_strays(self, whole: relax.TensorType) -> list[int]:
        """Arguments in another order that are not small beside an array of type ``whole``."""
        return [i for i in self.part.strays if not is_small(self.args[i].ty, whole)]


class Neighbours:
    """The elementwise calls of a module.

    Parameters
    ----------
    mod : IRModule
        That holds the functions.
    fused : mapping of str to PrimFunc
        Functions that it does not hold yet, by name.
    """

    def __init__(self, mod: IRModule, fused: Mapping[str, tirx.PrimFunc]) -> None:
        self._mod, self._fused = mod, fused
        self._known: dict[int, tuple[Any, Neighbour | None]] = {}

    def function(self, call: relax.Call, mod: IRModule | None = None) -> tirx.PrimFunc | None:
        """The function that is called, in another module where one is given."""
        callee, mod = call.args[0], self._mod if mod is None else mod
        if not isinstance(callee, GlobalVar) or len(call.args) > 2:
            return None
        func = self._fused.get(str(callee.name_hint)) if mod.same_as(self._mod) else None
        func = func or mod[callee]
        return func if isinstance(func, tirx.PrimFunc) else None

    def of(self, call: Any) -> Neighbour | None:
        """An elementwise call of a function or an operator."""
        key = call.__hash__()  # by identity; the call is kept, so that it stays its own
        if key not in self._known:
            self._known[key] = (call, self._of(call))
        return self._known[key][1]

    def _of(self, call: Any) -> Neighbour | None:
        name, mod = tir.call_name(call), self._mod
        if name is None:
            return None
        if name != "relax.call_tir":
            legal = legalized(call)
            if legal is None:
                return None
            call, mod = legal
        callee, func = call.args[0], self.function(call, mod)
        if func is None:
            return None
        if isinstance(call.ty, relax.TupleType) or (func.attrs or {}).get(IS_SCHEDULED, False):
            return None
        part = pointwise(func)
        if part is None or branches(part.value):
            return None  # a choice would keep the time loop from being vectorised
        return Neighbour((str(callee.name_hint),), part, tuple(call.args[1].fields))

    def in_order(
        self, flow: Dataflow, neighbour: Neighbour, whole: relax.TensorType
    ) -> Neighbour | None:
        """Take what makes the inputs, too, until all that is read out of order is small.

        What only moves elements in front of that is taken as well: one question less for the
        caller, whether the scan is still one.

        Parameters
        ----------
        flow : Dataflow
            Where the inputs are bound.
        neighbour : Neighbour
            What computes an input of a scan.
        whole : relax.TensorType
            The largest array that the scan reads.

        Returns
        -------
        Neighbour or None
            None where a large array is left that would be read out of order: reading it along
            other strides would cost the scan more than the copy does.
        """
        while large := neighbour.large_strays(whole):
            taken = self._taken(flow, neighbour, large[0])
            if taken is None:
                return None
            neighbour = taken
        at = 0
        while at < len(neighbour.args):
            taken = self._taken(flow, neighbour, at, only_moved=True)
            if taken is None or taken.large_strays(whole):
                at += 1
            else:
                neighbour = taken
        return neighbour

    def _taken(
        self, flow: Dataflow, neighbour: Neighbour, at: int, *, only_moved: bool = False
    ) -> Neighbour | None:
        """Take in the producer of an input, which is then computed where it is read."""
        arg = neighbour.args[at]
        if not isinstance(arg, relax.Var) or flow.uses(arg) != 1:
            return None
        inner = self.of(flow.value(arg))
        if inner is None or (only_moved and not isinstance(inner.part.value, TensorLoad)):
            return None
        if inner.part.is_costly and not _reads_each_once(neighbour.part, at):
            return None
        others = [*neighbour.args[:at], *neighbour.args[at + 1 :]]
        shared = [position(other, neighbour.args) for other in inner.args]
        added = [a for a, k in zip(inner.args, shared, strict=True) if k is None]
        again = [a for a, k in zip(inner.args, shared, strict=True) if k is not None]
        return Neighbour(
            (*inner.names, *neighbour.names),
            composed(neighbour.part, inner.part, at, shared),
            (*others, *added),
            (*neighbour.removed, arg),
            (*neighbour.dropped, *again),
        )


def _reads_each_once(part: Pointwise, at: int) -> bool:
    """Return whether no element of an input is read at two indices."""
    source = part.inputs[at]
    reads = [load for load in tir.loads(part.value) if load.source.same_as(source)]
    if len(reads) != 1:
        return False
    return all(
        var is None or any(var.same_as(index) for index in reads[0].indices) for var in part.axes
    )


def _cells(kind: relax.TensorType) -> int:
    known = [tir.as_int(extent) for extent in kind.shape.values]
    return prod(_UNKNOWN if n is None else n for n in known)


def largest(types: Sequence[relax.TensorType]) -> relax.TensorType:
    """The type with the most elements."""
    return max(types, key=_cells)


def is_small(kind: relax.TensorType, whole: relax.TensorType) -> bool:
    """Return whether an array may be read out of order beside one of type ``whole``."""
    return _cells(kind) * _SPREAD <= _cells(whole)


def same_var(left: relax.Expr, right: relax.Expr) -> bool:
    """Return whether two expressions are one variable."""
    return isinstance(left, relax.Var) and isinstance(right, relax.Var) and left.same_as(right)


def position(arg: relax.Expr, args: Sequence[relax.Expr]) -> int | None:
    """Position of a variable among arguments; None if it is none of them."""
    return next((i for i, other in enumerate(args) if same_var(arg, other)), None)
