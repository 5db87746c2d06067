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


_BINARY: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "quotient": _quotient,
    "remainder": lambda a, b: a - b * _quotient(a, b),
    "min": min,
    "max": max,
    "<<": lambda a, b: a * 2**b,
    ">>": lambda a, b: a // 2**b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    "and": lambda a, b: int(bool(a and b)),
    "or": lambda a, b: int(bool(a or b)),
}
_NODES = {
    tirx.Add: "+",
    tirx.Sub: "-",
    tirx.Mul: "*",
    tirx.FloorDiv: "//",
    tirx.FloorMod: "%",
    tirx.Div: "quotient",
    tirx.Mod: "remainder",
    tirx.Min: "min",
    tirx.Max: "max",
    tirx.LShift: "<<",
    tirx.RShift: ">>",
    tirx.EQ: "==",
    tirx.NE: "!=",
    tirx.LT: "<",
    tirx.LE: "<=",
    tirx.And: "and",
    tirx.Or: "or",
}
_CALLS = {"shift_left": "<<", "shift_right": ">>"}


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
    return int(not values[0]) if operator == "not" else _BINARY[operator](*values)


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
    operator = _NODES.get(type(expr))
    if operator is not None:
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
    if word in _CALLS:
        return operation(_CALLS[word], *(number_of(part, names) for part in expr.args))
    raise ScanError(
        f"expected sizes that are computed from the extents of the inputs, got {as_text(expr)}; "
        "write the extents as parameters of the buffers' shapes"
    )
