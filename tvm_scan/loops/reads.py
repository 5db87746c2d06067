"""Chains of `tvm_scan.reads` as expressions of a loop, and their way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import tirx
from tvm.ir import Expr

from tvm_scan.library.selective_scan_loops import softplus_expr
from tvm_scan.loops.writer import Cells, const
from tvm_scan.reads import Chain, Link

#: A parameter by its name, where the cell stands that is read.
Parameter = Callable[[str], Expr]


def value_of(chain: Chain, x: Expr, parameter: Parameter, dtype: str) -> Expr:
    """Return what a chain makes of a cell; of a ``unit``, given the cell of a row so divided."""
    for link in chain:
        x = _value(link, x, parameter, dtype)
    return x


def _value(link: Link, x: Expr, parameter: Parameter, dtype: str) -> Expr:
    if link.name == "times":
        return x * _operand(link, parameter, dtype)
    if link.name == "plus":
        return x + _operand(link, parameter, dtype)
    if link.name == "rate":
        return tirx.exp(_operand(link, parameter, dtype)) * x
    if link.name == "exp":
        return tirx.exp(x)
    if link.name == "sigmoid":
        return tirx.sigmoid(x)
    if link.name == "softplus":
        return softplus_expr(x, dtype)
    assert link.name == "unit", link
    return x


def _operand(link: Link, parameter: Parameter, dtype: str) -> Expr:
    if isinstance(link.by, str):
        return parameter(link.by)
    assert link.by is not None, link
    return const(link.by, dtype)


def pulled(
    chain: Chain, x: Expr, gradient: Cells, at: Expr, parameter: Parameter, saved: list[Cells]
) -> Mapping[str, Cells]:
    """Write the gradient of a cell in the place of that of what a chain makes of it.

    Parameters
    ----------
    chain : Chain
        Without a ``unit``.
    x : Expr
        The cell.
    gradient : Cells
        Of the result, at `at`; then that of the cell.
    at : Expr
        Where that stands, and what is saved.
    parameter : callable
        Parameters by their names.
    saved : list of Cells
        For each function cells for its argument, and for the gradient of its parameter.

    Returns
    -------
    mapping of str to Cells
        The gradients of parameters, by their names.
    """
    dtype, of_parameters = gradient.dtype, {}
    for link, cells in zip(chain, saved, strict=True):
        cells[at] = x
        x = _value(link, cells[at], parameter, dtype)
    one = const(1, dtype)
    for link, cells in reversed(list(zip(chain, saved, strict=True))):
        x, g = cells[at], gradient[at]
        if link.name == "times":
            assert link.parameter in (None, "scale"), "of other numbers there is no gradient"
            gradient[at] = g * _operand(link, parameter, dtype)
        elif link.name == "plus":
            if link.parameter is not None:
                cells[at] = g
                of_parameters[link.parameter] = cells
        elif link.name == "rate":
            gradient[at] = g * tirx.exp(_operand(link, parameter, dtype))
            if link.parameter is not None:
                cells[at] = gradient[at] * x
                of_parameters[link.parameter] = cells
        elif link.name == "exp":
            gradient[at] = g * tirx.exp(x)
        elif link.name == "sigmoid":
            cells[at] = tirx.sigmoid(x)
            gradient[at] = g * cells[at] * (one - cells[at])
        elif link.name == "softplus":
            gradient[at] = g * tirx.sigmoid(x)
    return of_parameters
