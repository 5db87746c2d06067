"""Checks that the factories share: arguments, extents and optional parameters.

Every factory answers a bad argument with ``ValueError`` in one form: what was expected, what was
found, and what to pass instead.
"""

from collections.abc import Collection
from typing import TypeAlias

from tvm import ir, tirx
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder

Expr: TypeAlias = ir.Expr
"""An expression of the script, a variable or a constant."""

FLOAT_DTYPES = ("float32", "float64")
"""The floating-point dtypes of the library."""

NUMBER_DTYPES = (*FLOAT_DTYPES, "int32", "int64")
"""All dtypes of the library. Integers wrap around, as the hardware does."""

FUNC_ATTRS = {"tirx.noalias": True, "op_pattern": 8}
"""``op_pattern`` 8 is opaque: Relax must not fuse a loop that carries a value through time."""


def check_choice(owner: str, name: str, value: object, choices: Collection[object]) -> None:
    """Raise ``ValueError`` unless `value` is one of `choices`."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(
            f"{owner}: expected {name} to be one of {listed}, got {value!r}; "
            f"pass one of the listed values"
        )


def check_flags(owner: str, **flags: object) -> None:
    """Raise ``ValueError`` unless every flag is a plain bool."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(
                f"{owner}: expected {name} to be True or False, got {value!r}; "
                f"pass {name}=True or {name}=False"
            )


def make_extent(owner: str, name: str, value: int | None) -> tirx.Var | tirx.IntImm:
    """Return an int64 extent: a constant, or a variable called `name` when `value` is None.

    Relax shapes are int64, and an index may pass 2^31, so no extent is ever int32.
    """
    if value is None:
        return tirx.Var(name, "int64")
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(
            f"{owner}: expected {name} to be an int >= 0 or None (symbolic), got {value!r}; "
            f"pass the number of elements, or None to bind it when the function is called"
        )
    return tirx.IntImm("int64", value)


def keep_parameters(func: tirx.PrimFunc, names: Collection[str]) -> tirx.PrimFunc:
    """Return `func` without the parameters that are not in `names`.

    One loop nest serves all combinations of options: it declares every parameter, a branch on a
    Python bool leaves the code of an absent option out, and this function then drops the
    parameter itself.
    """
    params = [param for param in func.params if param.name in names]
    return tirx.PrimFunc(params, func.body, func.ret_type, attrs=func.attrs)


def alloc_state(shape: tuple[Expr, ...], dtype: str) -> tirx.Var:
    """Allocate the intermediate buffer ``state``; to be called while a script is parsed.

    A loop whose state may live either in an output or in an intermediate buffer chooses between
    them in one expression, in which the script parser cannot name the new buffer.
    """
    buffer = T.sblock_alloc_buffer(shape, dtype)
    IRBuilder.name("state", buffer)
    return buffer
