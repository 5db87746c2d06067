"""Arguments of an operator that belong together: a function takes a tuple, the operator its fields.

Operators of torch take tensors, numbers and text, no tuples with names. So a parameter whose type
is a ``NamedTuple`` stands for as many parameters of the operator, under the names of its fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, get_type_hints


def with_fields(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of the fields of its bundles.

    Parameters
    ----------
    function : callable
        With annotated parameters, bundles and others.

    Returns
    -------
    callable
        With a signature of its own; `function` itself where it takes no bundle.
    """
    hints = get_type_hints(function)
    kinds = [hints[name] for name in inspect.signature(function).parameters]
    bundles = [kind if hasattr(kind, "_fields") else None for kind in kinds]
    if not any(bundles):
        return function

    def call(*arguments: Any) -> Any:
        return function(*_gathered(bundles, arguments))

    fields: dict[str, Any] = {}
    for name, kind in zip(inspect.signature(function).parameters, kinds, strict=True):
        fields |= get_type_hints(kind) if hasattr(kind, "_fields") else {name: kind}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(n, kind, annotation=t) for n, t in fields.items()]
    signature = inspect.Signature(parameters, return_annotation=hints["return"])
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__name__, call.__doc__ = function.__name__, function.__doc__
    return call


def _gathered(bundles: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """The arguments of a function, those of a bundle as one."""
    rest = iter(arguments)
    return [next(rest) if b is None else b(*islice(rest, len(b._fields))) for b in bundles]
