"""Sizes as data: integer expressions that Python and JavaScript evaluate alike.

A number is an integer, the name of one, or a list of an operator and its operands. Values are
those of the integers; what is evaluated here, sizes and launches, overflows no dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.errors import ScanError
from tvm_scan.text import as_text

#: int, str or a list of an operator and numbers; JSON holds it as it is.
Number = Any


def _quotient(a: int, b: int) -> int:
    """Divide as C does: towards zero."""
    size = abs(a) // abs(b)
    return size if (a < 0) == (b < 0) else -size


#: Kind of node -> the operator's name, and what it computes.
_BINARY: dict[Any, tuple[str, Callable[[int, int], int]]] = {
    tirx.Add: ("+", lambda a, b: a + b),
    tirx.Sub: ("-", lambda a, b: a - b),
    tirx.Mul: ("*", lambda a, b: a * b),
    tirx.FloorDiv: ("//", lambda a, b: a // b),
    tirx.FloorMod: ("%", lambda a, b: a % b),
    tirx.Div: ("quotient", _quotient),
    tirx.Mod: ("remainder", lambda a, b: a - b * _quotient(a, b)),
    tirx.Min: ("min", min),
    tirx.Max: ("max", max),
    tirx.LShift: ("<<", lambda a, b: a * 2**b),
    tirx.RShift: (">>", lambda a, b: a // 2**b),
    tirx.EQ: ("==", lambda a, b: int(a == b)),
    tirx.NE: ("!=", lambda a, b: int(a != b)),
    tirx.LT: ("<", lambda a, b: int(a < b)),
    tirx.LE: ("<=", lambda a, b: int(a <= b)),
    tirx.And: ("and", lambda a, b: int(bool(a and b))),
    tirx.Or: ("or", lambda a, b: int(bool(a or b))),
}
_RUN = dict(_BINARY.values())


def operation(operator: str, *operands: Number) -> Number:
    """Apply an operator, to a number if all operands are integers.

    Parameters
    ----------
    operator : str
        Of two numbers, or ``not`` of one, or ``if`` of three.
    operands : Number
        Its operands.
    """
    whole = [operator, *operands]
    return evaluate(whole, {}) if all(isinstance(operand, int) for operand in operands) else whole


def ceil_divided(number: Number, by: int) -> Number:
    """Divide, rounding up.

    Parameters
    ----------
    number : Number
        Not negative.
    by : int
        Positive.
    """
    return operation("//", operation("+", number, by - 1), by)


def evaluate(number: Number, names: Mapping[str, int]) -> int:
    """Compute a number.

    Parameters
    ----------
    number : Number
        What to compute.
    names : mapping of str to int
        Values of its names.

    Returns
    -------
    int
        Conditions are 0 and 1.
    """
    if isinstance(number, int):
        return number
    if isinstance(number, str):
        return names[number]
    operator, *operands = number
    if operator == "if":
        return evaluate(operands[1 if evaluate(operands[0], names) else 2], names)
    values = [evaluate(operand, names) for operand in operands]
    return int(not values[0]) if operator == "not" else _RUN[operator](*values)


def number_of(expr: Any, names: tir.VarMap) -> Number:
    """Write an integer expression as data.

    Parameters
    ----------
    expr : Expr
        Of integers and conditions.
    names : VarMap
        Name of each of its variables.

    Raises
    ------
    ScanError
        If it has a variable without a name, or another operation.
    """
    constant = tir.as_int(expr)
    if constant is not None:
        return constant
    if isinstance(expr, tirx.Var) and expr in names:
        return names[expr]
    if isinstance(expr, tirx.Cast):
        return number_of(expr.value, names)
    if type(expr) in _BINARY:
        operator, _ = _BINARY[type(expr)]
        return operation(operator, number_of(expr.a, names), number_of(expr.b, names))
    if isinstance(expr, tirx.GE | tirx.GT):
        swapped = "<=" if isinstance(expr, tirx.GE) else "<"
        return operation(swapped, number_of(expr.b, names), number_of(expr.a, names))
    if isinstance(expr, tirx.Not):
        return operation("not", number_of(expr.a, names))
    if isinstance(expr, tirx.Select):
        parts = (expr.condition, expr.true_value, expr.false_value)
        return operation("if", *(number_of(part, names) for part in parts))
    word = (tir.call_name(expr) or "").rpartition(".")[2]
    if word == "likely":
        return number_of(expr.args[0], names)
    if word == "if_then_else":
        return operation("if", *(number_of(part, names) for part in expr.args))
    raise ScanError(
        f"expected sizes that are computed from the extents of the inputs, got {as_text(expr)}; "
        "write the extents as parameters of the buffers' shapes"
    )
