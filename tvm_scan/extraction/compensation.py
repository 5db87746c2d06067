"""Steps that mean their roundings: compensated sums, splits of a number, rounding to a grid.

``(a + b) - a`` is ``b`` for real numbers, and for floats what is left of ``b`` in ``a + b``. An
author who writes it wants the difference; an algebra over the reals loses it. So a step is refused
in which a sum that reads a carry has a term of which the loop's own arithmetic cancels half of the
bits or more. A masked or restarted sum writes the same with choices: in each branch of those that
read a carry, no sum may lose a carry and keep something beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_scan import tir
from tvm_scan.algebra.choices import choices_in, decided
from tvm_scan.algebra.literal import is_float
from tvm_scan.extraction.coupling import Draft
from tvm_scan.extraction.rewrite import BodyWriter
from tvm_scan.extraction.symbolic import StepState
from tvm_scan.extraction.wording import in_own_words
from tvm_scan.recurrence import Refusal, RefusalKind

#: Bits of a significand.
_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
#: Terms of a sum that is written out; a longer one stands as it is in those around it.
_MOST_TERMS = 256
#: Choices that are decided one within the other; what lies deeper stands as it is.
_MOST_CHOICES = 4

#: From products of factors, as sorted positions, to their coefficients.
_Sum = dict[tuple[int, ...], float]


def rounded_on_purpose(
    drafts: Sequence[Draft], state: StepState, writer: BodyWriter
) -> Refusal | None:
    """Refuse the carries of which a step needs its own roundings.

    Parameters
    ----------
    drafts : sequence of Draft
        The steps of all carries: of a compensated sum the compensation may be a later level.
    state : StepState
        One executed step.
    writer : BodyWriter
        Writes memory into registers.
    """
    cells = state.cells.values()
    carried = tir.VarMap((var, True) for cell in cells for var in (cell.old, cell.before))
    for draft in drafts:
        if is_float(tir.dtype_of(draft.step)):
            cancelled = _Sums(carried).first_cancelled(draft.step)
            if cancelled is None:
                cancelled = _first_lost(draft.step, carried)
            if cancelled is not None:
                return _refusal(draft, in_own_words(cancelled, state, writer))
    return None


def _refusal(draft: Draft, shown: str) -> Refusal:
    return Refusal(
        RefusalKind.UNSUPPORTED_STEP,
        draft.origin,
        f"expected a step of {draft.cell.buffer.name} that means the same without the roundings "
        f"of its sums, found {shown}, in which terms cancel: what is left are roundings of the "
        "loop, which a scan, that adds in another order, does not make",
        "carry the plain sum in float64, as T.Cast('float64', x), or keep the loop, whose lanes "
        "run in parallel",
    )


def _first_lost(step: Any, carried: tir.VarMap) -> Any:
    """The first sum that loses a carry in a branch of the choices it is made of, or None."""
    lost: list[Any] = []

    def on_sum(e: Any) -> Any:
        if lost or not is_float(tir.dtype_of(e)):
            return tvm_ffi.WalkResult.SKIP
        if not (_reads(e.a, carried) and _reads(e.b, carried)):
            return tvm_ffi.WalkResult.ADVANCE
        for branch in _branches(e, carried):
            cancelled = _Sums(carried, losing=True).first_cancelled(branch)
            if cancelled is not None:
                lost.append(cancelled)
                break
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(step, [(tirx.Add, on_sum), (tirx.Sub, on_sum)], order="pre")
    return lost[0] if lost else None


def _branches(e: Any, carried: tir.VarMap, depth: int = _MOST_CHOICES) -> Iterator[Any]:
    """The sum with each choice between values that read a carry made, one way and the other."""
    condition = next(
        (
            choice[0]
            for choice in (choices_in(e) if depth else ())
            if any(_reads(value, carried) for value in choice[1:])
        ),
        None,
    )
    if condition is not None:
        for value in (True, False):
            yield from _branches(decided(e, condition, value), carried, depth - 1)
    elif depth < _MOST_CHOICES:
        yield e


def _reads(e: Any, carried: tir.VarMap) -> bool:
    return any(var in carried for var in tir.variables(e).keys())


class _Sums:
    """Expressions as sums of products of what is no sum and no product.

    Where `losing`, a sum counts that loses a product with a carry, unless its two sides are the
    same: of these nothing is left, in the loop neither.
    """

    def __init__(self, carried: tir.VarMap, *, losing: bool = False) -> None:
        self.carried, self.losing = carried, losing
        self.factors: dict[tuple[Any, bool], list[tuple[Any, int]]] = {}
        self.with_carry: list[bool] = []
        #: Of expressions that were looked at: a part is met again in all that it is a part of.
        self.known = tir.VarMap()
        self.cancelled: Any = None

    def first_cancelled(self, expr: Any) -> Any:
        """The innermost sum that reads a carry and cancels, or None."""
        self._of(expr)
        return self.cancelled

    def _of(self, e: Any) -> _Sum:
        if isinstance(e, tirx.FloatImm):
            return {(): float(e.value)}
        known: _Sum | None = self.known.get(e)
        if known is None:
            self.known[e] = known = self._written_out(e)
        return known

    def _written_out(self, e: Any) -> _Sum:
        if isinstance(e, tirx.Add | tirx.Sub):
            left, right = self._of(e.a), self._of(e.b)
            if isinstance(e, tirx.Sub):
                right = {key: -value for key, value in right.items()}
            return self._added(left, right, e)
        if isinstance(e, tirx.Mul):
            return self._multiplied(self._of(e.a), self._of(e.b), e)
        if isinstance(e, tirx.Div):
            by = self._of(e.b)
            number = by.get((), 0.0) if len(by) == 1 else 0.0
            factor: _Sum = {(): 1 / number} if number else self._factor(e.b, True)
            return self._multiplied(self._of(e.a), factor, e)
        if isinstance(e, tirx.Cast) and is_float(tir.dtype_of(e.value)):
            return self._of(e.value)  # a carry of halves is kept in float32
        return self._factor(e)

    def _factor(self, e: Any, inverse: bool = False) -> _Sum:
        alike = self.factors.setdefault((tvm_ffi.structural_hash(e), inverse), [])
        for known, at in alike:
            if tir.structurally_equal(known, e):
                return {(at,): 1.0}
        at = len(self.with_carry)
        alike.append((e, at))
        self.with_carry.append(_reads(e, self.carried))
        if self.with_carry[at] and not tir.is_leaf(e):  # no other sum inside loses a carry
            handlers = [(tirx.Add, self._of_floats), (tirx.Sub, self._of_floats)]
            tvm_ffi.structural_walk(e, handlers, order="pre")
        return {(at,): 1.0}

    def _of_floats(self, e: Any) -> Any:
        if not is_float(tir.dtype_of(e)):
            return tvm_ffi.WalkResult.ADVANCE
        self._of(e)  # and all sums that it is made of
        return tvm_ffi.WalkResult.SKIP

    def _multiplied(self, left: _Sum, right: _Sum, e: Any) -> _Sum:
        if len(left) * len(right) > _MOST_TERMS:
            return self._factor(e)
        out: _Sum = {}
        for a, x in left.items():
            for b, y in right.items():
                key = tuple(sorted(a + b))
                out[key] = out.get(key, 0.0) + x * y
        return out

    def _added(self, left: _Sum, right: _Sum, e: Any) -> _Sum:
        if len(left) + len(right) > _MOST_TERMS:
            return self._factor(e)
        reads = any(self._carries(key) for key in (*left, *right))
        least = 2.0 ** (-_BITS.get(tir.dtype_of(e), 24) / 2)
        out = dict(left)
        for key, value in right.items():
            before = left.get(key, 0.0)
            total = before + value
            lost = abs(total) < least * (abs(before) + abs(value))
            if self.losing:
                lost = lost and self._carries(key) and not tir.structurally_equal(e.a, e.b)
            if reads and lost:
                self.cancelled = e if self.cancelled is None else self.cancelled
            out[key] = total
        return {key: value for key, value in out.items() if value}

    def _carries(self, key: tuple[int, ...]) -> bool:
        return any(self.with_carry[at] for at in key)
