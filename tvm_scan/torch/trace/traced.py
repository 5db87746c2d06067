"""Traces of users' functions, kept where nothing that they read has changed.

A trace takes milliseconds. A function's trace holds as long as the function is the same object,
and what it reads beside its arguments is the same; `reads` says what that is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.arguments import check
from tvm_scan.torch.private import pytree, transforms_active
from tvm_scan.torch.trace.apart import apart_from_transforms, held
from tvm_scan.torch.trace.graph import is_pointwise, trace
from tvm_scan.torch.trace.reads import global_state, state_of
from tvm_scan.torch.trace.results import result_types
from tvm_scan.torch.trace.sizes import Kinds, constant_sizes, named_sizes, sized
from tvm_scan.torch.trace.stored_traces import key_of, store_trace, stored_trace

_LIMIT = 64
_traces: weakref.WeakKeyDictionary[Any, dict[Any, tuple[Any, ...]]] = weakref.WeakKeyDictionary()


def traced_operator(
    combine_fn: Callable[..., Any], pattern: Any, slices: Kinds, device: torch.device
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
    device : torch.device
        Where they are.

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
    traced: tuple[str, bool, list[Tensor]]
    traced = _traced("associative_scan", _operator, combine_fn, pattern, (slices,), device)
    return traced


def _traced(
    owner: str,
    trace_of: Callable[..., Any],
    function: Callable[..., Any],
    pattern: Any,
    kinds: tuple[Kinds, ...],
    device: torch.device,
) -> Any:
    """Trace a user's function; while a program is compiled, for sizes that vary, if it can be."""
    if not torch.compiler.is_compiling():
        return trace_of(function, pattern, *kinds, device)
    for sizes_of in (named_sizes, constant_sizes):
        traced = held(owner, trace_of, function, pattern, *sizes_of(*kinds), device)
        if traced is not None:
            break
    assert traced is not None  # constant sizes raise instead
    return *traced, []


def _operator(
    combine_fn: Callable[..., Any], pattern: Any, slices: Kinds, device: torch.device
) -> tuple[str, bool, list[Tensor]]:
    owner, count = "associative_scan", len(slices)

    def combine(*flat: Tensor) -> list[Tensor]:
        spec = pytree.tree_structure(pattern)
        sides = (list(flat[:count]), list(flat[count:]))
        result = combine_fn(*(pytree.tree_unflatten(side, spec) for side in sides))
        leaves, structure = pytree.tree_flatten(result)
        if structure != spec:
            text = f"an operand {_line(spec)}"
            check(False, owner, text, _line(structure), "return one like it")
        return leaves

    graph, shared, _ = _traced_once(combine_fn, pattern, combine, (*slices, *slices), owner, device)
    operand_types = sized(slices)
    result_kinds = result_types(graph, (*operand_types, *operand_types, *_kinds(shared)))
    if result_kinds != operand_types:
        expected = f"an operand of {operand_types}"
        check(False, owner, expected, result_kinds, "keep shapes and dtypes")
    return graph, not shared and _is_elementwise(graph, slices, ()), shared


def traced_step(
    f: Callable[..., Any],
    patterns: tuple[Any, Any],
    starts: Kinds,
    slices: Kinds,
    device: torch.device,
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
    device : torch.device
        Where they are.

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
    traced: tuple[str, bool, Any, list[Tensor]]
    traced = _traced("scan", _step, f, patterns, (starts, slices), device)
    return traced


def _step(
    f: Callable[..., Any],
    patterns: tuple[Any, Any],
    starts: Kinds,
    slices: Kinds,
    device: torch.device,
) -> tuple[str, bool, Any, list[Tensor]]:
    owner, count = "scan", len(starts)
    structure: list[Any] = []

    def step(*flat: Tensor) -> list[Tensor]:
        carry_spec, spec = (pytree.tree_structure(p) for p in patterns)
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

    graph, shared, constants = _traced_once(
        f, patterns, step, (*starts, *slices), owner, device, structure
    )
    carry_types = sized((*starts, *slices))
    result_carry = result_types(graph, (*carry_types, *_kinds(shared)))[:count]
    if result_carry != carry_types[:count]:
        expected = f"a carry of {carry_types[:count]}"
        check(False, owner, expected, result_carry, "keep shapes and dtypes")
    return graph, _is_elementwise(graph, starts, (*slices, *_kinds(shared))), constants[0], shared


def _line(spec: Any) -> str:
    return " ".join(str(spec).split())


def _kinds(tensors: Sequence[Tensor]) -> Kinds:
    return tuple((tuple(t.shape), t.dtype) for t in tensors)


def _is_elementwise(graph: str, carries: Kinds, others: Kinds) -> bool:
    """Return whether the step's elements are recurrences of their own, all of one shape."""
    shape = carries[0][0]
    if any(s != shape for s, _ in carries) or not is_pointwise(graph):
        return False
    return all(_broadcasts(s, shape) for s, _ in others)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether a shape broadcasts; torch.broadcast_shapes imports a library of symbols."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(have in (1, want) for have, want in pairs)


def _traced_once(
    function: Callable[..., Any],
    pattern: Any,
    flat: Callable[..., Sequence[Tensor]],
    kinds: Kinds,
    owner: str,
    device: torch.device,
    structure: Sequence[Any] = (),
) -> tuple[str, list[Tensor], list[Any]]:
    """`trace` of `flat` and what it left in `structure`, from an earlier call where it holds."""
    state = state_of(function)
    # A function may ask where its arguments are.
    key = (str(pattern), kinds, state, device.type, global_state())
    written: str | None = None
    if state is not None:
        entry = _traces.get(function, {}).get(key)
        if entry is None:
            written = key_of(state, pattern, kinds, owner, device.type)
            entry = stored_trace(written) if written is not None else None
            if entry is not None:
                _remember(function, key, entry)
        if entry is not None:
            return entry[0], [], entry[1]
    if transforms_active():  # which the trace would be a part of
        text, shared = apart_from_transforms(flat, kinds, owner, device)
    else:
        text, shared = trace(flat, kinds, owner, device)
    if state is not None and not shared:
        _remember(function, key, (text, list(structure)))
        if written is not None:
            store_trace(written, text, list(structure), getattr(function, "__qualname__", owner))
    return text, shared, list(structure)


def _remember(function: Any, key: Any, entry: tuple[str, list[Any]]) -> None:
    entries = _traces.setdefault(function, {})
    if len(entries) >= _LIMIT:
        entries.clear()
    entries[key] = entry
