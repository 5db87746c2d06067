"""Conditions that a nest must meet before its accesses are looked at."""

from __future__ import annotations

from tvm import tirx

from tvm_scan import tir
from tvm_scan.extraction.accesses import accesses_of, rename
from tvm_scan.extraction.nest import Nest
from tvm_scan.extraction.statements import Let, stores_in
from tvm_scan.recurrence import Refusal, RefusalKind
from tvm_scan.text import as_text


def check_preconditions(func: tirx.PrimFunc, nest: Nest) -> Refusal | None:
    """Write out the bindings of a nest, and check its extents and its buffers."""
    return _inline_bindings(nest) or _check_rectangular(nest) or _check_aliasing(func, nest)


def _inline_bindings(nest: Nest) -> Refusal | None:
    """Write out bindings before the time loop, so that every chunk of time knows them.

    A binding of what the nest only reads has the same value wherever it is evaluated.
    """
    everything = [*nest.before, nest.time, *nest.after]
    written = tir.VarMap((store.buffer, True) for store in stores_in(everything))
    for let in [stmt for stmt in nest.before if isinstance(stmt, Let)]:
        if any(load.source in written for load in tir.loads(let.value)):
            return Refusal(
                RefusalKind.UNSUPPORTED_BODY,
                let.origin,
                f"expected {let.var.name}, bound before the time loop, to depend on inputs only, "
                "found that it reads a buffer that the nest writes",
                "store the value in a buffer of its own, in a loop nest of its own",
            )
        table = tir.VarMap([(let.var, let.value)])
        nest.before = rename([stmt for stmt in nest.before if stmt is not let], table)
        nest.time.body = rename(nest.time.body, table)
        nest.after = rename(nest.after, table)
    return None


def _check_rectangular(nest: Nest) -> Refusal | None:
    """Lanes and time must form a box: no extent may depend on another of them, or on data."""
    loops = [*nest.lanes, nest.time]
    for loop in loops:
        if tir.loads(loop.extent) or tir.contains_var(loop.extent, [l.var for l in loops]):
            return Refusal(
                RefusalKind.UNSUPPORTED_BODY,
                loop.origin,
                f"expected lanes and time with extents of their own, found {loop.var.name} with "
                f"the extent {as_text(loop.extent)}",
                "loop over the largest extent and guard the body",
            )
    return None


def _check_aliasing(func: tirx.PrimFunc, nest: Nest) -> Refusal | None:
    """A store to one of two buffers on one allocation may be a read of the other."""
    views = tir.VarMap((view.buffer, True) for view in tir.nodes(func.body, tirx.DeclBuffer))
    for access in accesses_of([*nest.before, nest.time, *nest.after]):
        if access.buffer in views:
            return Refusal(
                RefusalKind.ALIASING,
                access.origin,
                f"expected buffers with storage of their own, found {access.buffer.name}, which "
                "is declared on the data of another",
                "index the original buffer instead of a declared view of its data",
            )
    noalias = None if func.attrs is None else func.attrs.get("tirx.noalias")
    if noalias is not None and not bool(noalias):
        return Refusal(
            RefusalKind.ALIASING,
            nest.time.origin,
            "expected parameters that do not overlap, found tirx.noalias set to False",
            'declare T.func_attr({"tirx.noalias": True}) if they do not overlap',
        )
    return None
