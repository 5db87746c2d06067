"""Parts that the loops share: the order of the axes, the direction of time, the carry's dtype."""

from dataclasses import dataclass

from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.library.arguments import FUNC_ATTRS, Expr

HALVES = ("float16", "bfloat16")
ATTRS = {**FUNC_ATTRS, "global_symbol": "main"}

__all__ = ["ATTRS", "HALVES", "Frame", "bind_steps", "carry_dtype", "cast", "const", "unless"]


def carry_dtype(dtype: str) -> str:
    """Halves carry in float32; everything else in its own dtype."""
    return "float32" if dtype in HALVES else dtype


def cast(value: Expr, source: str, dtype: str) -> Expr:
    """Convert between dtypes, without a node where they are the same."""
    return value if source == dtype else T.Cast(dtype, value)


def const(value: float, dtype: str) -> Expr:
    """Make a constant."""
    return tirx.const(value, dtype)


def unless(reset: tirx.Var, where: tuple[Expr, ...], value: Expr, dtype: str, given: bool) -> Expr:
    """Return `value`, or 0 where there is a reset; without resets (not `given`) `value` as it is.

    A choice, not a product with zero, which a NaN or an infinity would survive.
    """
    if not given:
        return value
    return T.Select(reset[where] != T.int8(0), const(0, dtype), value)


def bind_steps(func: tirx.PrimFunc, steps: Expr) -> tirx.PrimFunc:
    """Make a symbolic number of steps the second parameter, since no buffer's shape says it."""
    if not isinstance(steps, tirx.Var):
        return func
    params = [func.params[0], steps, *func.params[1:]]
    return tirx.PrimFunc(params, func.body, func.ret_type, attrs=func.attrs)


@dataclass(frozen=True)
class Frame:
    """The axes of arrays (outer, length, inner), or (1, inner, length) where time is last.

    Plans put the inner axis into vectors, or interleave it where time is contiguous.
    """

    outer: Expr
    inner: Expr
    length: Expr
    time_last: bool
    reverse: bool

    @property
    def shape(self) -> tuple[Expr, ...]:
        """The shape of the arrays."""
        if self.time_last:
            return (self.outer, self.inner, self.length)
        return (self.outer, self.length, self.inner)

    @property
    def state_shape(self) -> tuple[Expr, ...]:
        """The shape of the carried state: the arrays without time."""
        return (self.outer, self.inner)

    def time(self, step: Expr) -> Expr:
        """Return the index in time that the loop reaches at `step`."""
        return self.length - 1 - step if self.reverse else step

    def at(self, outer: Expr, inner: Expr, step: Expr) -> tuple[Expr, ...]:
        """Return the indices of the element that a recurrence reaches at `step`."""
        time = self.time(step)
        return (outer, inner, time) if self.time_last else (outer, time, inner)
