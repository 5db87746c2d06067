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
from tvm_scan.torch.kernels.cache import Gathered, held_kernel
from tvm_scan.torch.kernels.runtime import ALIGNMENT, LARGE, aligned_empty, launch, prepared
from tvm_scan.torch.private import increment_version

_empty_like = torch.empty_like


#: Runs a kernel on the arguments of a call, and returns the call's results.
Way = Callable[[tuple[Any, ...]], tuple[Any, ...]]


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


def way_of(gathered: Gathered, values: Sequence[Any], result: Any) -> Way | None:
    """The way of a call, given the kernels that it ran; None where it is more than one kernel."""
    if len(gathered.runs) != 1:
        return None
    (run,) = gathered.runs
    sources = {id(to): source for source, to in gathered.conversions}
    new_ids = {id(sources.get(id(part), part)) for part in result}
    numbers: tuple[Any, ...] = ()
    #: Arguments that the kernel reads in another dtype, and whether they are copied then, since
    #: they lie in memory otherwise than it reads them.
    changed: list[tuple[int, torch.dtype, bool]] = []
    #: Operands that a call makes: an argument that is like it, which is told quicker, or -1.
    new: list[tuple[int, torch.Size, torch.dtype, torch.device]] = []
    # Of each operand, in which of the parts of what a call gathers it is, and where there.
    parts: list[tuple[int, int]] = []
    for operand in run.operands:
        source = sources.get(id(operand), operand)
        number = next((n for n, value in enumerate(values) if value is source), -1)
        if not isinstance(operand, Tensor):
            parts.append((1, len(numbers)))
            numbers += (operand,)
        elif number >= 0:
            is_copied = prepared(operand).data_ptr() != operand.data_ptr()
            is_changed = is_copied or source is not operand
            parts.append((2, len(changed)) if is_changed else (0, number))
            changed += [(number, operand.dtype, is_copied)] * is_changed
        elif id(operand) in new_ids:
            parts.append((3, len(new)))
            new.append((_like(operand, values), operand.shape, operand.dtype, operand.device))
        else:  # something else was computed of the arguments
            return None
    starts = list(accumulate((len(values), len(numbers), len(changed)), initial=0))
    operands = [starts[part] + index for part, index in parts]
    results: list[int] = []
    for part in result:
        operand = sources.get(id(part), part)
        index = next((n for n, passed in enumerate(run.operands) if passed is operand), -1)
        # What a kernel writes to a copy is in no argument.
        if index < 0 or parts[index][0] == 2:
            return None
        results.append(operands[index])
    converted = [(n, part.dtype) for n, part in enumerate(result) if id(part) in sources]
    #: Arguments that are results, too: autograd is told that the kernel wrote to them.
    written = pick([index for index in results if index < len(values)])
    kernel, operands_of, results_of = held_kernel(run.key), pick(operands), pick(results)

    def way(values: tuple[Any, ...]) -> tuple[Any, ...]:
        pool = values + numbers
        for number, dtype, is_copied in changed:
            tensor = values[number].to(dtype)
            pool += (prepared(tensor) if is_copied else tensor,)
        for like, shape, dtype, device in new:
            tensor = _empty_like(values[like]) if like >= 0 else None
            if tensor is None or tensor.data_ptr() % ALIGNMENT:
                tensor = aligned_empty(shape, dtype, device)
            pool += (tensor,)
        if runtime.substitute is None:  # asked here, since a frame takes time
            kernel()(*operands_of(pool))
        else:
            launch(kernel(), *operands_of(pool))
        increment_version(written(values))
        if not converted:
            return results_of(pool)
        wide = [*results_of(pool)]
        for index, dtype in converted:
            wide[index] = wide[index].to(dtype)
        return tuple(wide)

    return way
