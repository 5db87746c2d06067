"""Two steps by instructions that multiply and add pairs of float32, ``fma.rn.f32x2`` of sm_100.

Of two steps that do the same with registers, one after the other, a product of the one and that of
the other are made at once, and so are sums, wherever the second does not wait for the first. What
does wait, as the carry itself, is made as before. So the steps are in pairs, not the states: what
memory holds along time is loaded as pairs already, and the sums over the states keep their order.

Bits: each half of an instruction is an IEEE operation of its own. A product and the sum that takes
it are one rounding, the first product of two, as nvcc has it of the separate steps.

Theorem. Let the statements of two steps P and Q be the same in kind, one by one, and let them be
carried out as P1, Q1, P2, Q2, .. with P's writes in registers of their own (of those that Q writes
too). This is P, then Q, if no statement of P reads what an earlier one of Q has written, but P has
not, and no statement of Q reads what a later one of P writes. Both are checked.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_scan import tir
from tvm_scan.schedules.common.ir import int_const
from tvm_scan.schedules.machine.paired import Pair, keys_of

_STEP = "tvm_scan.step"
#: Statements of a step beyond which its text is left as it is.
_MOST = 1024


def step(body: Any) -> Any:
    """Mark the statements of a step, which work on registers; see ``in_pairs``."""
    mark = int_const(1, "int32")
    return tirx.AttrStmt(mark, _STEP, mark, body)


def in_pairs(nest: Any, *, has_pairs: bool) -> Any:
    """Steps that stand side by side in pairs, where a device has them; no marks.

    Parameters
    ----------
    nest : Stmt
        Whose steps are marked.
    has_pairs : bool
        Whether the device has such instructions.
    """
    if has_pairs:
        sequences = tir.nodes(nest, tirx.SeqStmt)
        changed = [(old, new) for old in sequences if (new := _side_by_side(old)) is not None]

        def on_sequence(seq: tirx.SeqStmt) -> Any:
            return next((new for old, new in changed if seq.same_as(old)), seq)

        nest = tvm_ffi.structural_map(nest, (tirx.SeqStmt, on_sequence))
    return tvm_ffi.structural_map(nest, (tirx.AttrStmt, lambda a: a.body if _is_step(a) else a))


def _side_by_side(seq: tirx.SeqStmt) -> Any:
    """A sequence with its steps in pairs; None if there are none."""
    stmts, at = list(seq.seq), 0
    stmts_in_pairs: list[Any] = []
    while at < len(stmts):
        both = [stmt for stmt in stmts[at : at + 2] if _is_step(stmt)]
        pair = _paired(both[0].body, both[1].body) if len(both) == 2 else None
        at += 1 if pair is None else 2
        if pair is None:
            now = stmts[at - 1]
            pair = _states_in_pairs(now.body) if _is_step(now) else now
        stmts_in_pairs.append(pair)
    return tir.seq(stmts_in_pairs) if any(map(_is_step, stmts)) else None


def _is_step(stmt: Any) -> bool:
    return isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == _STEP


def _paired(first: Any, second: Any) -> Any:
    """Two steps as one statement; None where that is not the same, or not shown to be."""
    stores, others = _stores(first), _stores(second)
    if stores is None or others is None or not 0 < len(others) == len(stores) <= _MOST:
        return None
    return Pair(stores, others).stmt()


def _states_in_pairs(body: Any) -> Any:
    """A step whose states are in pairs, in loops in which they can be."""

    def on_loop(loop: tirx.For) -> Any:
        extent = tir.as_int(loop.extent)
        if extent is None or extent % 2 or extent > _MOST:
            return loop
        parts = [_iteration(loop, i) for i in range(extent)]
        pairs = [_paired(*both) for both in zip(parts[::2], parts[1::2], strict=True)]
        return loop if any(pair is None for pair in pairs) else tir.seq(pairs)

    stmts = body.seq if isinstance(body, tirx.SeqStmt) else [body]
    return tir.seq([on_loop(s) if isinstance(s, tirx.For) else s for s in stmts])


def _iteration(loop: tirx.For, number: int) -> Any:
    value = loop.min + number
    return tir.substitute(loop.body, tir.VarMap([(loop.loop_var, value)]))


def _stores(stmt: Any) -> list[tirx.BufferStore] | None:
    """The stores to registers that a statement is, loops written out; None if it is more."""
    if isinstance(stmt, tirx.SeqStmt):
        parts = [_stores(part) for part in stmt.seq]
        return None if None in parts else [store for part in parts for store in part or []]
    if isinstance(stmt, tirx.For):
        extent = tir.as_int(stmt.extent)
        if extent is None or extent > _MOST:
            return None
        return _stores(tir.seq([_iteration(stmt, i) for i in range(extent)]))
    if isinstance(stmt, tirx.Evaluate) and tir.is_empty(stmt):
        return []
    return [stmt] if isinstance(stmt, tirx.BufferStore) and keys_of(stmt) else None
