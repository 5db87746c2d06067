"""The one kernel of a call, and where its operands are among the arguments.

`repeated` remembers calls by these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.kernels import runtime
from tvm_scan.torch.kernels.cache import Gathered, Recording, Run, held_kernel
from tvm_scan.torch.kernels.runtime import ALIGNMENT, LARGE, aligned_empty, launch, prepared
from tvm_scan.torch.private import increment_version

_empty_like = torch.empty_like


#: Runs a kernel on the arguments of a call, and returns the call's results.
Way = Callable[[tuple[Any, ...]], Any]


def pick(indices: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function of a tuple: the tuple of what it has at some indices."""
    if len(indices) > 1:
        return itemgetter(*indices)  # of one index it returns no tuple, of a slice it does
    (start,) = indices or (0,)
    return itemgetter(slice(start, start + len(indices)))


def _like(result: Tensor, values: Sequence[Any]) -> int:
    """Return an argument with the shape, strides, dtype and device of a result, or -1.

    A large result is none's: `aligned_empty` asks for large pages.
    """
    if result.nbytes >= LARGE:
        return -1

    def kind(tensor: Tensor) -> tuple[Any, ...]:
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device

    return next(
        (n for n, v in enumerate(values) if isinstance(v, Tensor) and kind(v) == kind(result)), -1
    )


def _index(values: Sequence[Any], value: Any) -> int:
    """Return where an object itself is among others, or -1."""
    return next((n for n, other in enumerate(values) if other is value), -1)


def way_of(gathered: Gathered, values: Sequence[Any], result: Any) -> Way | None:
    """The way of a call, given the kernels that it ran; None where it is more than one kernel."""
    if len(gathered.runs) != 1:
        return None
    (run,), conversions = gathered.runs, gathered.conversions
    if not gathered.recordings:
        return _of_kernel(run, conversions, gathered.copies, values, result)
    if len(gathered.recordings) > 1:
        return None
    (recording,) = gathered.recordings
    # What is converted is so before autograd records the kernel, and after.
    inner = _of_kernel(run, [], gathered.copies, recording.arguments, recording.results)
    return None if inner is None else _of_recording(recording, inner, conversions, values, result)


def _of_recording(
    recording: Recording,
    inner: Way,
    conversions: Sequence[tuple[Tensor, Tensor]],
    values: Sequence[Any],
    result: Any,
) -> Way | None:
    """The way of a call that autograd recorded, given that of what it recorded."""
    sources = {id(to): source for source, to in conversions}
    numbers: tuple[Any, ...] = ()
    #: Arguments that are recorded in another dtype.
    changed: list[tuple[int, torch.dtype]] = []
    parts: list[tuple[int, int]] = []
    for argument in recording.arguments:
        source = sources.get(id(argument), argument)
        number = _index(values, source)
        if not isinstance(argument, Tensor):
            parts.append((1, len(numbers)))
            numbers += (argument,)
        elif number < 0:  # something else was computed of the arguments
            return None
        else:
            is_changed = source is not argument
            parts.append((2, len(changed)) if is_changed else (0, number))
            changed += [(number, argument.dtype)] * is_changed
    starts = list(accumulate((len(values), len(numbers)), initial=0))
    arguments_of = pick([starts[part] + index for part, index in parts])
    known = (*recording.results, None)
    results: list[int] = []
    for part in result:
        results.append(_index(known, sources.get(id(part), part)))
    if -1 in results:
        return None
    converted = [(n, part.dtype) for n, part in enumerate(result) if id(part) in sources]
    call, results_of, kind = recording.call, pick(results), type(result)

    def way(values: tuple[Any, ...]) -> Any:
        pool = values + numbers
        for number, dtype in changed:
            pool += (values[number].to(dtype),)
        return _finished(results_of((*call(*arguments_of(pool), inner), None)), converted, kind)

    return way


def _finished(results: tuple[Any, ...], converted: list[tuple[int, torch.dtype]], kind: Any) -> Any:
    """Give results the dtypes of a call, and the type."""
    if converted:
        wide = [*results]
        for index, dtype in converted:
            wide[index] = wide[index].to(dtype)
        results = tuple(wide)
    return results if kind is tuple else list(results)


def _of_kernel(
    run: Run,
    conversions: Sequence[tuple[Tensor, Tensor]],
    copies: Sequence[tuple[Tensor, Tensor]],
    values: Sequence[Any],
    result: Any,
) -> Way | None:
    """The way of a call that is a run of a kernel; None where it is more than that."""
    sources = {id(to): source for source, to in conversions}
    new_ids = {id(sources.get(id(part), part)) for part in result}
    numbers: tuple[Any, ...] = ()
    #: Arguments that the kernel reads in another dtype, and whether they are copied then, since
    #: they lie in memory otherwise than it reads them.
    changed: list[tuple[int, torch.dtype, bool]] = []
    #: Operands that a call makes: an argument that is like it, which is told quicker, or -1.
    new: list[tuple[int, torch.Size, torch.dtype, torch.device]] = []
    #: Of those, what is a copy first, and of which argument.
    filled: list[tuple[int, int]] = []
    # Of each operand, in which of the parts of what a call gathers it is, and where there.
    parts: list[tuple[int, int]] = []
    for operand in run.operands:
        source = sources.get(id(operand), operand)
        number = _index(values, source)
        if not isinstance(operand, Tensor):
            parts.append((1, len(numbers)))
            numbers += (operand,)
        elif number >= 0:
            is_copied = prepared(operand.detach()).data_ptr() != operand.data_ptr()
            is_changed = is_copied or source is not operand
            parts.append((2, len(changed)) if is_changed else (0, number))
            changed += [(number, operand.dtype, is_copied)] * is_changed
        elif id(operand) in new_ids:
            parts.append((3, len(new)))
            new.append((_like(operand, values), operand.shape, operand.dtype, operand.device))
            source = next((source for source, to in copies if to is operand), operand)
            if source is not operand:
                number = _index(values, source)
                if number < 0:
                    return None
                filled.append((len(new) - 1, number))
        else:  # something else was computed of the arguments
            return None
    starts = list(accumulate((len(values), len(numbers), len(changed)), initial=0))
    operands = [starts[part] + index for part, index in parts]
    results: list[int] = []
    for part in result:
        index = _index(run.operands, sources.get(id(part), part))
        # What a kernel writes to a copy is in no argument.
        if index < 0 or parts[index][0] == 2:
            return None
        results.append(operands[index])
    converted = [(n, part.dtype) for n, part in enumerate(result) if id(part) in sources]
    #: Arguments that are results, too: autograd is told that the kernel wrote to them.
    written = pick([index for index in results if index < len(values)])
    kernel, operands_of, results_of = held_kernel(run.key), pick(operands), pick(results)
    kind, start = type(result), starts[3]

    def way(values: tuple[Any, ...]) -> Any:
        pool = values + numbers
        for number, dtype, is_copied in changed:
            tensor = values[number].to(dtype)
            pool += (prepared(tensor) if is_copied else tensor,)
        for like, shape, dtype, device in new:
            tensor = _empty_like(values[like]) if like >= 0 else None
            if tensor is None or tensor.data_ptr() % ALIGNMENT:
                tensor = aligned_empty(shape, dtype, device)
            pool += (tensor,)
        for index, number in filled:
            pool[start + index].copy_(values[number])
        if runtime.substitute is None:  # asked here, since a frame takes time
            kernel()(*operands_of(pool))
        else:
            launch(kernel(), *operands_of(pool))
        increment_version(written(values))
        if not converted and kind is tuple:  # asked here, since a frame takes time
            return results_of(pool)
        return _finished(results_of(pool), converted, kind)

    return way
