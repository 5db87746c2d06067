"""Values of a model as people read them."""

from __future__ import annotations

from typing import Any

import z3

from tvm_scan.algebra.literal import is_bool, is_float
from tvm_scan.proof.images import Image
from tvm_scan.proof.problem import Theory
from tvm_scan.proof.reals import Real

_DIGITS = 6


def shown_values(
    model: Any, shown: list[tuple[str, str, Any]], theory: Theory
) -> list[tuple[str, str]]:
    """Name and value of every term; images under ``exp`` are named so."""
    out: dict[str, str] = {}
    for name, dtype, term in shown:
        is_image = theory.images and is_float(dtype) and not name.startswith("exp(")
        label = f"exp({name})" if is_image else name
        text = _text(model, dtype, term, theory)
        out[label] = f"{out[label]}, {text}" if label in out else text
    return list(out.items())


def _text(model: Any, dtype: str, term: Any, theory: Theory) -> str:
    if isinstance(term, bool):
        return str(term)
    if isinstance(term, Real):
        for flag, text in ((term.nan, "nan"), (term.up, "inf"), (term.down, "-inf")):
            if flag is True or (flag is not False and z3.is_true(_value(model, flag))):
                return text
    if isinstance(term, Real | Image):
        term = term.value
    value = _value(model, term)
    if is_bool(dtype):
        return str(z3.is_true(value))
    if z3.is_rational_value(value) and not z3.is_int_value(value):
        return str(value)
    if z3.is_algebraic_value(value):
        return str(value.approx(_DIGITS))
    if z3.is_int_value(value) or z3.is_bv_value(value):
        return str(theory.arithmetic.read(value, dtype))
    return str(value)


def _value(model: Any, term: Any) -> Any:
    return model.eval(term, model_completion=True)
