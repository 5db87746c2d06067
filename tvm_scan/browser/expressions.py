"""Expressions of TensorIR in JavaScript, whose numbers are all of 64 bits.

Floats are computed as they are, and rounded where an array of 32 bits takes them. Integers of 32
bits and less wrap after each operation, but in indices, whose values a correct program keeps inside
of its arrays. Integers of 64 bits are exact below 2^53, which indices and what WebGPU takes of them
never reach.
"""

from __future__ import annotations

import json
import re
from math import isinf, isnan
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float
from tvm_scan.errors import ScanError
from tvm_scan.schedules.launch.program import Names
from tvm_scan.text import as_text

_ARITHMETIC = {tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*"}
_COMPARISONS = {
    tirx.EQ: "==",  # a condition may be a number, too
    tirx.NE: "!=",
    tirx.LT: "<",
    tirx.LE: "<=",
    tirx.GT: ">",
    tirx.GE: ">=",
    tirx.And: "&&",
    tirx.Or: "||",
}
_BITS = {
    tirx.BitwiseAnd: "&",
    tirx.BitwiseOr: "|",
    tirx.BitwiseXor: "^",
    tirx.LShift: "<<",
    tirx.RShift: ">>",
}
#: Functions of one number that ``Math`` has by the same name.
_SAME = re.compile(
    "abs|a?(?:sin|cos|tan)h?|ceil|exp|expm1|floor|log|log1p|log2|log10|sign|sqrt|trunc"
)
#: By the last part of an operator's name, ``{word}``; ``{0}`` is the first argument.
_CALLS = {
    **dict.fromkeys(("atan2", "hypot", "pow"), "Math.{word}({0}, {1})"),
    "fabs": "Math.abs({0})",
    "power": "Math.pow({0}, {1})",
    "exp2": "(2 ** {0})",
    "exp10": "(10 ** {0})",
    "sigmoid": "(1 / (1 + Math.exp(-{0})))",
    "rsqrt": "(1 / Math.sqrt({0}))",
    "round": "(Math.sign({0}) * Math.round(Math.abs({0})))",
    "isnan": "Number.isNaN({0})",
    "isfinite": "Number.isFinite({0})",
    "isinf": "(Math.abs({0}) === Infinity)",
    "fmod": "({0} % {1})",
    "fma": "({0} * {1} + {2})",
    "likely": "{0}",
    "if_then_else": "({0} ? {1} : {2})",
}
#: How a sum becomes a number of a dtype again.
_WRAPS = {
    "int32": "({0} | 0)",
    "uint32": "({0} >>> 0)",
    "int16": "({0} << 16 >> 16)",
    "uint16": "({0} & 65535)",
    "int8": "({0} << 24 >> 24)",
    "uint8": "({0} & 255)",
}
_RESERVED = re.compile(
    "abstract|arguments|await|boolean|break|byte|case|catch|char|class|const|continue|debugger|"
    "default|delete|do|double|else|enum|eval|export|extends|false|final|finally|float|for|function|"
    "goto|if|implements|import|in|instanceof|int|interface|let|long|native|new|null|package|"
    "private|protected|public|return|short|static|super|switch|synchronized|this|throw|transient|"
    "true|try|typeof|var|void|volatile|while|with|yield|"
    # What the text itself uses.
    "floats|Infinity|Math|NaN|Number"
)


class Identifiers(Names):
    """Names that JavaScript takes, no two alike."""

    def add(self, var: Any) -> str:
        """Name a variable after itself, as far as that is an identifier."""
        base = re.sub(r"\W", "_", str(var.name), flags=re.ASCII) or "_"
        base = (
            f"{base}_" if _RESERVED.fullmatch(base) else f"_{base}" if base[0].isdigit() else base
        )
        return self.add_as(var, base)


class Expressions:
    """Expressions over named variables.

    Attributes
    ----------
    names : Identifiers
        Of variables and buffers.
    bound : list of str
        Names that expressions themselves bind, to be declared in front of them.
    """

    def __init__(self) -> None:
        self.names = Identifiers()
        self.bound: list[str] = []

    def index(self, expr: Any) -> str:
        """Write an index or an extent."""
        return self._text(expr, False)

    def value(self, expr: Any) -> str:
        """Write a value, which wraps as in TensorIR."""
        return self._text(expr, True)

    def cell(self, buffer: Any, indices: Any) -> str:
        """Write a cell of a buffer, which lies row after row."""
        if len(getattr(buffer.ty, "strides", None) or ()):
            raise _unknown(buffer, "arrays without strides", "copy it into one of its own")
        where = ""
        for axis, (index, extent) in enumerate(zip(indices, tir.shape_of(buffer), strict=True)):
            row = f"({where})" if axis > 1 else where
            term = self.index(index)
            where = f"{row} * {self.index(extent)} + {term}" if axis else term
        return f"{self.names.table[buffer]}[{where or '0'}]"

    def _text(self, e: Any, wraps: bool) -> str:
        if isinstance(e, tirx.IntImm):
            return str(int(e.value))
        if isinstance(e, tirx.FloatImm):
            return _float(float(e.value), tir.dtype_of(e))
        if isinstance(e, tirx.Var):
            return str(self.names.table[e])
        if isinstance(e, TensorLoad):
            return self.cell(e.source, e.indices)
        if isinstance(e, tirx.Cast):
            return self._cast(e, wraps)
        if isinstance(e, tirx.Let):
            name = self.names.add(e.var)
            self.bound.append(name)
            return f"({name} = {self._text(e.value, wraps)}, {self._text(e.body, wraps)})"
        if isinstance(e, tirx.Not):
            return f"!{self._text(e.a, wraps)}"
        if isinstance(e, tirx.BitwiseNot):
            return _wrapped(f"(~{self._text(e.a, wraps)})", tir.dtype_of(e))
        if isinstance(e, tirx.Select):
            parts = (e.condition, e.true_value, e.false_value)
            return "({} ? {} : {})".format(*(self._text(part, wraps) for part in parts))
        if hasattr(e, "a") and hasattr(e, "b"):
            a, b = self._text(e.a, wraps), self._text(e.b, wraps)
            written = self._binary(type(e), a, b, tir.dtype_of(e), wraps)
            if written is not None:
                return written
        word = (tir.call_name(e) or "").rpartition(".")[2]
        arguments = [self._text(argument, wraps) for argument in e.args] if word else []
        if word in _CALLS:
            return _CALLS[word].format(*arguments, word=word)
        if _SAME.fullmatch(word):
            return f"Math.{word}({arguments[0]})"
        raise _unknown(e, "operations that JavaScript has", "write it by others, such as exp")

    def _binary(self, kind: Any, a: str, b: str, dtype: str, wraps: bool) -> str | None:
        if kind in _ARITHMETIC:
            if not wraps or dtype not in _WRAPS:
                return f"({a} {_ARITHMETIC[kind]} {b})"
            product = f"Math.imul({a}, {b})"
            return _wrapped(product if kind is tirx.Mul else f"{a} {_ARITHMETIC[kind]} {b}", dtype)
        if kind in _COMPARISONS:
            return f"({a} {_COMPARISONS[kind]} {b})"
        if kind in (tirx.Min, tirx.Max):
            # As TVM has it: a comparison, which a NaN passes through for one step.
            return f"({a} {'<' if kind is tirx.Min else '>'} {b} ? {a} : {b})"
        if kind is tirx.Div:
            return f"({a} / {b})" if is_float(dtype) else f"Math.trunc({a} / {b})"
        if kind is tirx.Mod:
            return f"({a} % {b})"
        if kind is tirx.FloorDiv:
            return f"Math.floor({a} / {b})"
        if kind is tirx.FloorMod:
            return f"({a} - {b} * Math.floor({a} / {b}))"
        return _bits(_BITS[kind], a, b, dtype) if kind in _BITS else None

    def _cast(self, e: Any, wraps: bool) -> str:
        value, to, source = self._text(e.value, wraps), tir.dtype_of(e), tir.dtype_of(e.value)
        if to == "bool":
            return f"({value} != 0)"
        if is_float(to):
            return f"Number({value})" if source == "bool" else value
        whole = f"Math.trunc({value})" if is_float(source) else value
        whole = f"Number({whole})" if source == "bool" else whole
        return _wrapped(whole, to) if wraps and to != source else whole


def _wrapped(text: str, dtype: str) -> str:
    return _WRAPS[dtype].format(text) if dtype in _WRAPS else f"({text})"


def _bits(operator: str, a: str, b: str, dtype: str) -> str:
    if operator == ">>" and dtype.startswith("uint"):
        operator = ">>>"
    return _wrapped(f"({a} {operator} {b})", dtype)


def _float(value: float, dtype: str) -> str:
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "Infinity" if value > 0 else "(-Infinity)"
    text = json.dumps(float(np.float32(value)) if dtype == "float32" else value)
    return f"({text})" if text.startswith("-") else text


def _unknown(node: Any, expected: str, fix: str) -> ScanError:
    return ScanError(f"a page: expected {expected}, got {as_text(node)}; {fix}")
