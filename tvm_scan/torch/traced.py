"""Traces of users' functions, kept where nothing that they read has changed.

A trace takes milliseconds. A function's trace holds as long as the function is the same object,
and what it reads beside its arguments (its closure, its defaults, the globals that its code
names, those of the functions among them) is the same. What cannot be compared is not kept.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tvm_scan.torch.functions import check
from tvm_scan.torch.kept_traces import found_trace, global_state, keep_trace, key_of
from tvm_scan.torch.steps import result_types
from tvm_scan.torch.trace import is_pointwise, trace

__all__ = ["Kinds", "traced_operator", "traced_step"]

#: Shape and dtype of each of some tensors.
Kinds = tuple[tuple[tuple[int, ...], torch.dtype], ...]

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype)
_LIMIT = 64
_kept: weakref.WeakKeyDictionary[Any, dict[Any, tuple[Any, ...]]] = weakref.WeakKeyDictionary()


def traced_operator(
    combine_fn: Callable[..., Any], pattern: Any, slices: Kinds
) -> tuple[str, bool, list[Tensor]]:
    """Trace an operator on operands of a structure.

    Parameters
    ----------
    combine_fn : callable
        From two operands to one.
    pattern : pytree of int
        The structure of an operand.
    slices : Kinds
        Its leaves.

    Returns
    -------
    graph : str
        On two flat operands.
    elementwise : bool
        Whether it treats every element alike.
    shared : list of Tensor
        Which it reads besides.

    Raises
    ------
    ValueError
        If it returns another operand.
    """
    if torch.compiler.is_compiling():
        return *_constant_operator(combine_fn, pattern, slices), []
    return _operator(combine_fn, pattern, slices)


def _constant_operator(*arguments: Any) -> tuple[str, bool]:
    *found, shared = _apart(_operator, arguments)
    _expect_none("associative_scan", shared)
    return tuple(found)


def _operator(
    combine_fn: Callable[..., Any], pattern: Any, slices: Kinds
) -> tuple[str, bool, list[Tensor]]:
    owner, count = "associative_scan", len(slices)
    spec = pytree.tree_structure(pattern)

    def combine(*flat: Tensor) -> list[Tensor]:
        sides = (list(flat[:count]), list(flat[count:]))
        result = combine_fn(*(pytree.tree_unflatten(side, spec) for side in sides))
        found, structure = pytree.tree_flatten(result)
        if structure != spec:
            text = f"an operand {_line(spec)}"
            check(False, owner, text, _line(structure), "return one like it")
        return found

    graph, shared, _ = _kept_trace(combine_fn, pattern, combine, (*slices, *slices), owner)
    made = result_types(graph, (*slices, *slices, *_kinds(shared)))
    check(made == slices, owner, f"an operand of {slices}", made, "keep shapes and dtypes")
    return graph, not shared and _is_elementwise(graph, slices, ()), shared


def traced_step(
    f: Callable[..., Any], patterns: tuple[Any, Any], starts: Kinds, slices: Kinds
) -> tuple[str, bool, Any, list[Tensor]]:
    """Trace a step of a recurrence.

    Parameters
    ----------
    f : callable
        From a carry and a slice to a carry and what is emitted.
    patterns : tuple of pytree of int
        The structures of the carry and of a slice.
    starts, slices : Kinds
        Their leaves.

    Returns
    -------
    graph : str
        From the leaves of carry and slice to those of the next carry and of what is emitted.
    elementwise : bool
        Whether it treats every element alike.
    emitted : pytree of int
        The structure of what is emitted.
    shared : list of Tensor
        Which it reads besides.

    Raises
    ------
    ValueError
        If it returns another carry, or no pair.
    """
    if torch.compiler.is_compiling():
        return *_constant_step(f, patterns, starts, slices), []
    return _step(f, patterns, starts, slices)


def _constant_step(*arguments: Any) -> tuple[str, bool, Any]:
    *found, shared = _apart(_step, arguments)
    _expect_none("scan", shared)
    return tuple(found)


def _step(
    f: Callable[..., Any], patterns: tuple[Any, Any], starts: Kinds, slices: Kinds
) -> tuple[str, bool, Any, list[Tensor]]:
    owner, count = "scan", len(starts)
    carry_spec, spec = (pytree.tree_structure(p) for p in patterns)
    structure: list[Any] = []

    def step(*flat: Tensor) -> list[Tensor]:
        carry = pytree.tree_unflatten(list(flat[:count]), carry_spec)
        result = f(carry, pytree.tree_unflatten(list(flat[count:]), spec))
        pair = isinstance(result, (tuple, list)) and len(result) == 2
        found = type(result).__name__
        check(pair, owner, "f to return a carry and what to emit", found, "return (carry, y)")
        new, after = pytree.tree_flatten(result[0])
        if after != carry_spec:
            text = f"a carry {_line(carry_spec)}"
            check(False, owner, text, _line(after), "return one like init")
        emitted, emitted_spec = pytree.tree_flatten(result[1])
        structure[:] = [pytree.tree_unflatten(list(range(len(emitted))), emitted_spec)]
        return [*new, *emitted]

    graph, shared, kept = _kept_trace(f, patterns, step, (*starts, *slices), owner, structure)
    made = result_types(graph, (*starts, *slices, *_kinds(shared)))[:count]
    check(made == starts, owner, f"a carry of {starts}", made, "keep shapes and dtypes")
    return graph, _is_elementwise(graph, starts, (*slices, *_kinds(shared))), kept[0], shared


# Constants of a compiled program: torch.compile calls these while it compiles.
_constant: Any
for _constant in (_constant_operator, _constant_step):
    _constant._dynamo_marked_constant = True


def _apart(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call in a thread of its own, whose doings no transform and no export sees."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def _apart_from_transforms(
    flat: Callable[..., Sequence[Tensor]], slices: list[Tensor], owner: str
) -> tuple[str, list[Tensor]]:
    try:
        text, shared = _apart(trace, (flat, slices, owner))
    except RuntimeError as error:
        # What a transform has wrapped cannot be read in another thread.
        raise ValueError(
            f"tvm_scan.torch.{owner}: expected a function of its arguments alone under torch.func, "
            f"got one that fails without the transform ({error}); pass the tensors that it reads "
            "as leaves of xs"
        ) from error
    _expect_none(owner, shared, "torch.func")
    return text, shared


def _expect_none(owner: str, shared: list[Tensor], under: str = "torch.compile") -> None:
    check(
        not shared,
        owner,
        f"a function of its arguments alone under {under}",
        f"one that reads {len(shared)} other tensors",
        "pass them as leaves of xs",
    )


def _line(spec: Any) -> str:
    return " ".join(str(spec).split())


def _kinds(tensors: Sequence[Tensor]) -> Kinds:
    return tuple((tuple(t.shape), t.dtype) for t in tensors)


def _is_elementwise(graph: str, carries: Kinds, others: Kinds) -> bool:
    """Whether the step's elements are recurrences of their own, all of one shape."""
    shape = carries[0][0]
    if any(s != shape for s, _ in carries) or not is_pointwise(graph):
        return False
    return all(_broadcasts(s, shape) for s, _ in others)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """As torch.broadcast_shapes would say, which imports a library of symbols."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(have in (1, want) for have, want in pairs)


def _kept_trace(
    function: Callable[..., Any],
    pattern: Any,
    flat: Callable[..., Sequence[Tensor]],
    kinds: Kinds,
    owner: str,
    structure: Sequence[Any] = (),
) -> tuple[str, list[Tensor], list[Any]]:
    """`trace` of `flat` and what it left in `structure`, from an earlier call where it holds."""
    state = _state(function)
    key = (str(pattern), kinds, state, global_state())
    written: str | None = None
    if state is not None:
        entry = _kept.get(function, {}).get(key)
        if entry is None:
            written = key_of(state, pattern, kinds, owner)
            entry = found_trace(written) if written is not None else None
            if entry is not None:
                _remember(function, key, entry)
        if entry is not None:
            return entry[0], [], entry[1]
    slices = [torch.empty(shape, dtype=dtype) for shape, dtype in kinds]
    if torch._C._are_functorch_transforms_active():  # which the trace would be a part of
        text, shared = _apart_from_transforms(flat, slices, owner)
    else:
        text, shared = trace(flat, slices, owner)
    if state is not None and not shared:
        _remember(function, key, (text, list(structure)))
        if written is not None:
            keep_trace(written, text, list(structure), getattr(function, "__qualname__", owner))
    return text, shared, list(structure)


def _remember(function: Any, key: Any, entry: tuple[str, list[Any]]) -> None:
    entries = _kept.setdefault(function, {})
    if len(entries) >= _LIMIT:
        entries.clear()
    entries[key] = entry


def _state(function: Any, seen: frozenset[int] = frozenset()) -> Any:
    """What a function reads beside its arguments, comparable; None where that is not known."""
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return None
    seen |= {id(function)}
    values: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    try:
        values += [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a variable without a value yet
        return None
    codes = [function.__code__]
    for code in codes:
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                values.append(function.__globals__[name])
    # Code compares by its content. What is kept by identity stays alive in the key.
    parts: list[Any] = [function.__code__]
    for value in values:
        if isinstance(value, _PLAIN):
            parts.append((type(value), repr(value)))  # 0.0 is not -0.0
        elif _is_constant(value):
            parts.append(value)
        else:
            inner = _state(value, seen)
            if inner is None:
                return None
            parts.append(inner)
    return tuple(parts)


def _is_constant(value: Any) -> bool:
    """Whether this is a module, class or function of torch or Python, with its attributes."""
    kinds = (types.ModuleType, type, types.BuiltinFunctionType, types.FunctionType)
    if not isinstance(value, kinds):
        return False
    is_module = isinstance(value, types.ModuleType)
    home = str(value.__name__ if is_module else getattr(value, "__module__", ""))
    return home.partition(".")[0] in ("torch", "math", "operator", "builtins", "_operator")
