"""Calls that are one kernel on their own arguments, without what leads there.

What a function does before its kernel runs takes tens of microseconds: checks, promotion, the
kernel's name. A step of decoding or of training is called again and again with tensors that differ
in their values alone. So where a call was a single kernel on the tensors of the call as they are,
the next one alike is that kernel at once; where autograd recorded that, so it does then. A way is
known by a key of all that it relies on; those that were last taken are asked first, which is
quicker than to make a key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, is_grad_enabled

from tvm_scan.torch.declare.ways import Way, pick, way_of
from tvm_scan.torch.kernels.cache import runs_of_kernels
from tvm_scan.torch.kernels.runtime import ALIGNMENT
from tvm_scan.torch.private import (
    dual_level_is_open,
    function_modes,
    is_watched,
    tensor_check,
    transforms_active,
)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Shortcut:
    """A way, and what the values of a call are compared with before it is taken.

    The values of one signature differ in the cells and the addresses of tensors alone.
    """

    #: Arguments that are passed by name, and the types of all values.
    names: tuple[str, ...]
    types: tuple[type, ...]
    #: What is no tensor, and the function that picks it.
    constants_of: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    constants: tuple[Any, ...]
    #: The tensors, and whether they are like those of the signature.
    tensors_of: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    alike: Callable[..., bool]
    #: Where one of them has a gradient, whether gradients were enabled; None where none has.
    enabled: bool | None
    way: Way


#: What is no tensor and may stand in a signature.
_NUMBERS = (bool, int, float, str)
#: Signatures that are remembered, and those that are asked first.
_MOST, _RECENT = 1024, 4


def repeated(
    when: Callable[[Mapping[str, object]], bool],
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Make a function remember the kernels of its signatures.

    Parameters
    ----------
    when : callable
        Given what is passed by name: whether the call may be remembered. What it does must follow
        from shapes, dtypes, strides and from what is no tensor, not from the values of tensors,
        and its result must be a tuple or a list, of new tensors that a kernel writes alone.

    Returns
    -------
    callable
        A decorator.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        ways: dict[Any, Way | None] = {}
        #: The last ones.
        recent: list[_Shortcut] = []

        @functools.wraps(function)
        def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
            # `is_compiling` first: what comes after it is not traced.
            if torch.compiler.is_compiling():
                return function(*arguments, **named)
            values, names = (*arguments, *named.values()), tuple(named)
            # What sees operators, or transforms them, `alike` answers for.
            if recent and not function_modes() and not dual_level_is_open():
                types = tuple(map(type, values))
                for short in recent:
                    # The types first: a tensor would compare its cells with a constant.
                    if (
                        types == short.types
                        and names == short.names
                        and short.constants_of(values) == short.constants
                        and short.alike(*(tensors := short.tensors_of(values)))
                        and (short.enabled is None or short.enabled is is_grad_enabled())
                    ):
                        bits = 0
                        for tensor in tensors:
                            bits |= tensor.data_ptr()
                        if not bits % ALIGNMENT:
                            return short.way(values)  # type: ignore[no-any-return]
            # Of a transform or a mode tensors may have no data to ask for.
            if not when(named) or transforms_active() or is_watched():
                return function(*arguments, **named)
            key = _signature(values, names)
            if key is None:
                return function(*arguments, **named)
            way = ways.get(key, ways)
            if way is ways:
                if len(ways) >= _MOST:
                    ways.clear()
                with runs_of_kernels() as gathered:
                    result = function(*arguments, **named)
                ways[key] = way_of(gathered, values, result)
                return result
            if not callable(way):
                return function(*arguments, **named)
            if (last := _shortcut(way, values, names)) is not None:
                recent[:] = [last, *recent[: _RECENT - 1]]
            return way(values)  # type: ignore[no-any-return]

        return call

    return decorate


def _shortcut(way: Way, values: tuple[Any, ...], names: tuple[str, ...]) -> _Shortcut | None:
    """Return the shortcut of a way for what is like some values.

    There is none where two arguments are one tensor.
    """
    numbers = [n for n, value in enumerate(values) if isinstance(value, Tensor)]
    if len({id(values[n]) for n in numbers}) < len(numbers):
        return None
    tensors_of = pick(numbers)
    constants_of = pick([n for n in range(len(values)) if n not in numbers])
    types, alike = tuple(map(type, values)), tensor_check(tensors_of(values))
    constants = constants_of(values)
    enabled = is_grad_enabled() if any(t.requires_grad for t in tensors_of(values)) else None
    return _Shortcut(names, types, constants_of, constants, tensors_of, alike, enabled, way)


def _signature(values: Sequence[Any], named: Iterable[str]) -> Any:
    """All but the values of tensors; None where a kernel would not take one as it is."""
    parts: list[Any] = [len(values), *named]
    numbers: dict[int, int] = {}
    enabled = is_grad_enabled()
    for number, value in enumerate(values):
        kind = type(value)
        if kind is Tensor or kind is torch.nn.Parameter:
            if (
                not value.is_cpu
                or value.is_nested
                or value.layout is not torch.strided
                or value.data_ptr() % ALIGNMENT
                or value.is_neg()
            ):
                return None
            # Which arguments are the same tensor: an operand is known by the first of them.
            same = numbers.setdefault(id(value), number)
            parts += (same, value.shape, value.stride(), value.dtype)
            parts.append(value.requires_grad and enabled)
        elif value is None or kind in _NUMBERS:
            parts.append(value)
        else:
            return None
    return tuple(parts)
