"""Conditions that Python decides where it can: ``True``, ``False``, or a z3 term."""

from __future__ import annotations

from typing import Any

import z3

#: ``bool`` or ``z3.BoolRef``.
Bool = Any


def conj(*parts: Bool) -> Bool:
    """The condition that all parts hold."""
    left = [p for p in parts if p is not True]
    if any(p is False for p in left):
        return False
    return True if not left else left[0] if len(left) == 1 else z3.And(*left)


def disj(*parts: Bool) -> Bool:
    """The condition that any part holds."""
    left = [p for p in parts if p is not False]
    if any(p is True for p in left):
        return True
    return False if not left else left[0] if len(left) == 1 else z3.Or(*left)


def neg(part: Bool) -> Bool:
    """The condition that the part does not hold."""
    if isinstance(part, bool):
        return not part
    return part.arg(0) if z3.is_not(part) else z3.Not(part)


def implies(condition: Bool, then: Bool) -> Bool:
    """The condition that ``then`` holds where ``condition`` does."""
    return disj(neg(condition), then)


def equal(left: Bool, right: Bool) -> Bool:
    """The condition that both hold or neither does."""
    if isinstance(left, bool):
        left, right = right, left
    if isinstance(right, bool):
        return left if right else neg(left)
    return left == right


def choose(test: Bool, yes: Bool, no: Bool) -> Bool:
    """The condition ``yes`` where ``test``, else ``no``."""
    if isinstance(test, bool):
        return yes if test else no
    if isinstance(yes, bool) and isinstance(no, bool):
        return yes if yes == no else test if yes else neg(test)
    if not isinstance(yes, bool) and not isinstance(no, bool) and yes.eq(no):
        return yes
    return conj(implies(test, yes), implies(neg(test), no))


def pick(test: Bool, yes: Any, no: Any) -> Any:
    """The number ``yes`` where ``test``, else ``no``."""
    if isinstance(test, bool):
        return yes if test else no
    return yes if yes is no or yes.eq(no) else z3.If(test, yes, no)
