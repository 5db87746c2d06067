"""Remainders of remainders: one normal form for what is equal modulo a constant.

Theorem. For ``m`` dividing ``k``, ``u mod k`` and ``u`` leave the same remainder modulo ``m``, and
sums and products of equal remainders have equal remainders. So below ``.. mod m`` every ``mod k``
may be left out, and coefficients reduced.
"""

from __future__ import annotations

from typing import Any

import z3

#: How many times longer a sum of monomials may be than the product that it was.
_LONGER = 5_000


def monomials(e: Any) -> Any:
    """``e`` simplified, polynomials as sums of monomials."""
    return z3.simplify(e, som=True, som_blowup=_LONGER)


def remainder(value: Any, modulus: int) -> Any:
    """``value mod modulus``, what lies below it without remainders of multiples."""
    return _bare(value, modulus) % modulus


def _is_remainder(e: Any, modulus: int) -> bool:
    if not (z3.is_mod(e) and z3.is_int_value(e.arg(1))):
        return False
    by: int = e.arg(1).as_long()
    return by > 0 and by % modulus == 0


def _bare(e: Any, modulus: int) -> Any:
    """A term that is equal to ``e`` modulo ``modulus``."""
    if _is_remainder(e, modulus):
        return _bare(e.arg(0), modulus)
    if z3.is_int_value(e):
        return z3.IntVal(e.as_long() % modulus)
    if z3.is_add(e) or z3.is_mul(e) or z3.is_sub(e):
        parts = [_bare(part, modulus) for part in e.children()]
        out = parts[0]
        for part in parts[1:]:
            out = out + part if z3.is_add(e) else out - part if z3.is_sub(e) else out * part
        return out
    if z3.is_app_of(e, z3.Z3_OP_UMINUS):
        return -_bare(e.arg(0), modulus)
    if z3.is_app_of(e, z3.Z3_OP_ITE):
        return z3.If(e.arg(0), _bare(e.arg(1), modulus), _bare(e.arg(2), modulus))
    return e


def normal_remainders(e: Any, known: dict[int, tuple[Any, Any]] | None = None) -> Any:
    """``e`` with the dividend of every remainder as a sum of monomials, coefficients reduced."""
    known = {} if known is None else known
    if not z3.is_app(e) or e.num_args() == 0:
        return e
    if e.get_id() in known:
        return known[e.get_id()][1]
    children = e.children()
    parts = [normal_remainders(part, known) for part in children]
    if z3.is_mod(e) and z3.is_int_value(e.arg(1)) and e.arg(1).as_long() > 0:
        modulus = e.arg(1).as_long()
        # Twice: a coefficient that is reduced to zero takes its monomial with it.
        dividend = monomials(_bare(parts[0], modulus))
        out = monomials(_bare(dividend, modulus)) % modulus
    elif all(part.eq(child) for part, child in zip(parts, children, strict=True)):
        out = e  # to make it anew takes longer than all of the above
    else:
        out = e.decl()(*parts)
    known[e.get_id()] = (e, out)
    return out
