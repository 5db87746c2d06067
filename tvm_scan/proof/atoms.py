"""Parts that an expression does not compute: inputs, lanes and time, and functions of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import z3
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.literal import is_bool, is_float
from tvm_scan.proof.images import Fraction
from tvm_scan.proof.logic import Bool
from tvm_scan.proof.reals import Real


def unknown_value(name: str, dtype: str, arithmetic: Any, image: bool = False) -> tuple[Any, Bool]:
    """An unknown of a dtype, floats by their images if so asked, and what holds of its numbers."""
    if is_bool(dtype):
        return z3.Bool(name), True
    if is_float(dtype):
        return (Fraction if image else Real)(z3.Real(name)), True
    value = arithmetic.variable(name, dtype)
    return value, arithmetic.within(value, dtype)


class Atoms:
    """Unknowns of the solver for variables, loads and calls, the same for the same expression.

    Parameters
    ----------
    arithmetic : BitVectors or ExactIntegers
        What integers are.
    extents : VarMap
        Lanes, time and state axes, with their extents.
    tables : VarMap
        Buffers that the carry indexes, which are functions of their indices.
    moving : VarMap
        What differs from step to step: time, and carries of other groups.
    earlier : Atoms, optional
        Those of the step before: what does not move is the same in both.
    """

    def __init__(
        self,
        arithmetic: Any,
        extents: tir.VarMap,
        tables: tir.VarMap,
        moving: tir.VarMap,
        earlier: Atoms | None = None,
    ) -> None:
        self.arithmetic, self.extents, self.tables = arithmetic, extents, tables
        self.moving, self.earlier = moving, earlier
        self.facts: list[Bool] = []
        #: Name of an unknown -> its dtype and its term, in the order in which they were met.
        self.unknowns: dict[str, tuple[str, Any]] = {}
        self._names: set[str] = set() if earlier is None else earlier._names
        self._vars = tir.VarMap()
        self._loads = tir.ExprMap()
        self._images = tir.ExprMap()
        self._functions: dict[str, Any] = {} if earlier is None else earlier._functions

    def unknown(self, name: str, dtype: str) -> Any:
        """A number of which nothing is known but its dtype."""
        while name in self._names:
            name += "'"
        self._names.add(name)
        value, within = unknown_value(name, dtype, self.arithmetic)
        self.facts.append(within)
        self.unknowns[name] = (dtype, value.top if isinstance(value, Real) else value)
        return value

    def _moves(self, e: Any) -> bool:
        return tir.contains_var(e, self.moving.keys())

    def variable(self, var: Var) -> Any:
        """A variable: a lane, time, or a scalar parameter."""
        if self.earlier is not None and var not in self.moving:
            return self.earlier.variable(var)
        if var not in self._vars:
            dtype = tir.dtype_of(var)
            value = self.unknown(str(var.name), dtype)
            self._vars[var] = value
            extent = self.extents.get(var)
            if extent is not None:
                zero = self.arithmetic.const(0, dtype)
                self.facts.append(self.arithmetic.less(value, zero, dtype) == z3.BoolVal(False))
                if (count := tir.as_int(extent)) is not None:
                    top = self.arithmetic.const(count, dtype)
                    self.facts.append(self.arithmetic.less(value, top, dtype))
        return self._vars[var]

    def load(self, load: Any, indices: Callable[[], list[Any]]) -> Any:
        """A load; where the carry indexes the buffer, a function of its indices."""
        dtype = tir.dtype_of(load)
        if load.source in self.tables:
            return self.function(str(load.source.name), indices(), dtype)
        if self.earlier is not None and not self._moves(load):
            return self.earlier.load(load, indices)
        if load not in self._loads:
            self._loads[load] = self.unknown(str(load).replace("\n", " "), dtype)
        return self._loads[load]

    def image(self, e: Any) -> Fraction:
        """The image under ``exp`` of a finite float that no carry decides: a positive number."""
        if self.earlier is not None and not self._moves(e):
            return self.earlier.image(e)
        if e not in self._images:
            unknown = self.unknown(f"exp({e})".replace("\n", " "), "float64")
            self.facts.append(unknown.top > 0)
            self._images[e] = Fraction(unknown.top)
        image: Fraction = self._images[e]
        return image

    def function(self, name: str, arguments: list[Any], dtype: str) -> Any:
        """A function of which nothing is known but that it is one."""
        sorts = [argument.sort() for argument in arguments]
        if is_bool(dtype):
            result = z3.BoolSort()
        elif is_float(dtype):
            result = z3.RealSort()
        else:
            result = self.arithmetic.sort(dtype)
        key = f"{name}({', '.join(map(str, sorts))}) -> {dtype}"
        if key not in self._functions:
            self._functions[key] = z3.Function(name, *sorts, result)
        value = self._functions[key](*arguments)
        if is_float(dtype):
            return Real(value)
        if not is_bool(dtype):
            self.facts.append(self.arithmetic.within(value, dtype))
        return value

    @property
    def calls_unknown_functions(self) -> bool:
        """Return whether a counterexample may be one of functions that no machine has."""
        return any(
            key.partition("(")[0] not in {str(b.name) for b in self.tables.keys()}
            for key in self._functions
        )
