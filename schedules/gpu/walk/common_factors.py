"""Products of what all states of a step share, made once for the step.

``(dt * B[n]) * u`` is two products for every state; ``B[n] * (dt * u)`` is one, and one for the
step, which its owner makes and sends in the place of ``u``. mamba-ssm's kernel has the same order.

Rounding differs by an ulp of the product; an overflow or underflow of ``dt * u`` where ``dt * B``
has none, the other way round as well, is the price of any order. Products that hold a cell of the
state are left as they are: their order is that of the gates.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.invariants import register_of
from tvm_scan.schedules.common.ir import local
from tvm_scan.schedules.common.state_split import NoSplit, StateSplit, split_of
from tvm_scan.schedules.gpu.thread.registers import cell_of, set_cell


@lru_cache(maxsize=64)
def with_common_factors(recurrence: Recurrence) -> Recurrence:
    """Make the products of factors that are the same for all states before the loops over them.

    Parameters
    ----------
    recurrence : Recurrence
        What is walked.

    Returns
    -------
    Recurrence
        With a register for each such product; the same object if there is none, or if the states
        of a step are not independent.
    """
    split = split_of(recurrence)
    if isinstance(split, NoSplit):
        return recurrence
    products = _Products(split)
    loops = [products.taken_out_of(part) for part in split.loops]
    if not products.stores:
        return recurrence
    body = tir.seq([*split.before, *products.stores, *loops, *split.after])
    registers = [register_of(store.buffer) for store in products.stores]
    return replace(recurrence, body=body, registers=(*recurrence.registers, *registers))


class _Products:
    """The products that loops over the states share; a register for each."""

    def __init__(self, split: StateSplit) -> None:
        self.split = split
        self.stores: list[Any] = []

    def taken_out_of(self, part: tirx.For) -> tirx.For:
        """The loop, reading the registers."""
        body = tvm_ffi.structural_map(part.body, (tirx.BufferStore, self._in(part.loop_var)))
        return tirx.For(part.loop_var, part.min, part.extent, part.kind, body)

    def _in(self, state: Var) -> Any:
        def on_store(store: tirx.BufferStore) -> Any:
            value = self._value(store.value, state)
            return tirx.BufferStore(store.buffer, value, list(store.indices))

        return on_store

    def _value(self, expr: Any, state: Var) -> Any:
        """A sum with the products among its terms; other expressions stay."""
        if isinstance(expr, tirx.Add):
            return self._value(expr.a, state) + self._value(expr.b, state)
        if isinstance(expr, tirx.Mul) and tir.dtype_of(expr).startswith("float"):
            return self._product(expr, state)
        return expr

    def _product(self, product: tirx.Mul, state: Var) -> Any:
        factors = _factors(product)
        of_state = [factor for factor in factors if self._is_own(factor, state)]
        shared = [factor for factor in factors if not self._is_own(factor, state)]
        if len(shared) < 2 or not of_state or any(self._is_state(factor) for factor in of_state):
            return product
        return _multiplied([*of_state, self._register(_multiplied(shared))])

    def _is_own(self, factor: Any, state: Var) -> bool:
        return tir.contains_var(factor, [state])

    def _is_state(self, factor: Any) -> bool:
        return any(buffer in self.split.dims for buffer in tir.variables(factor).keys())

    def _register(self, value: Any) -> Any:
        """The register that holds ``value``; one for all products that are alike."""
        for store in self.stores:
            if tir.structurally_equal(store.value, value):
                return cell_of(store.buffer)
        register = local(f"factor{len(self.stores)}", [1], tir.dtype_of(value))
        self.stores.append(set_cell(register, value))
        return cell_of(register)


def _factors(expr: Any) -> list[Any]:
    if isinstance(expr, tirx.Mul):
        return [*_factors(expr.a), *_factors(expr.b)]
    return [expr]


def _multiplied(factors: list[Any]) -> Any:
    value = factors[0]
    for factor in factors[1:]:
        value = value * factor
    return value
