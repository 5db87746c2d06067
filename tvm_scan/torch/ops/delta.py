"""Delta rules and their adjoint as torch operators.

On a CPU a kernel walks time (`tvm_scan.loops.delta_forward`), packed sequences as they lie; its
adjoint is one too, and starts from a state for every `CHECKPOINT` steps. Both compute what is read
of the tensors (`tvm_scan.reads`). On a GPU torch does that first, the plain loop is scheduled in
chunks, a sequence at a time, and the adjoint is made of torch's operators; see `delta_steps`.
Derivatives of the adjoint are made of torch's operators everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, sym_max

from tvm_scan.reads import parameters_of
from tvm_scan.torch.arguments import check_offsets
from tvm_scan.torch.declare.dispatch import sees_nothing
from tvm_scan.torch.declare.mapped import folded, one_by_one
from tvm_scan.torch.declare.operator import operator
from tvm_scan.torch.declare.repeated import repeated
from tvm_scan.torch.kernels import devices
from tvm_scan.torch.kernels.cache import run_kernel
from tvm_scan.torch.kernels.events import allocated, allocated_like, copied, noted
from tvm_scan.torch.kernels.runtime import aligned_like, prepared
from tvm_scan.torch.kernels.spec import KernelSpec, dtype_name
from tvm_scan.torch.ops import delta_steps
from tvm_scan.torch.ops.delta_tensors import LEARNED, DeltaTensors
from tvm_scan.torch.private import increment_version

#: Steps from one state that is kept to the next: those of the kernels.
CHECKPOINT = 64

_SIZES = ("batch", "heads", "length")


def _map(call: Any, size: int, dims: Any, arguments: Any) -> tuple[Any, Any]:
    """Mapped rows are further rows, unless the sequences lie in one, or parameters are mapped.

    Parameters that are not mapped are those of all rows.
    """
    named = dict(zip(call.parameters, arguments, strict=True))
    if named["offsets"] is not None:
        return one_by_one(call, size, dims, arguments)
    return folded(call, size, dims, arguments, {call.parameters.index(name) for name in LEARNED})


@operator(mapped=_map)
def delta_scan(
    tensors: DeltaTensors, scale: float | None, reads: str, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the output, the states after time, and with `keep` what the adjoint starts from.

    That is the states before chunks, and what steps read of the states before them, like `v`.

    The scale is that of `DeltaTensors.scaled_by`.
    """
    v, h0 = tensors.v, tensors.h0
    _check(tensors)
    y = allocated_like(v)
    last = allocated_like(h0)
    checkpoints = allocated(_checkpoints_shape(tensors, keep), h0.dtype, h0.device)
    known = allocated(_known_shape(tensors, keep), v.dtype, v.device)
    if not y.numel() or not h0.numel():
        return y.zero_(), last.copy_(h0), checkpoints.zero_(), known.zero_()
    if devices.device_of(v) is devices.CPU:
        # Between sequences, too, so that equal calls have equal results.
        if keep and tensors.offsets is not None:
            noted(None, Tensor.zero_, checkpoints.zero_())
        for_adjoint = (checkpoints, known) if keep else ()
        _walk(tensors, scale, reads, *for_adjoint, last, y, keep=keep)
        return y, last, checkpoints, known
    for unused in (checkpoints, known):  # no kernel there reads them
        unused.zero_()
    tensors = delta_steps.Reading(tensors, scale, reads).plain
    if tensors.offsets is None:
        _plain(tensors, last, y)
        return y, last, checkpoints, known
    for part, states, tokens in delta_steps.sequences(tensors):
        out = aligned_like(part.v)
        state = aligned_like(part.h0)
        if out.numel():
            _plain(part, state, out)
        last[states] = state if out.numel() else part.h0
        y[:, tokens] = out
    return y, last, checkpoints, known


def _checkpoints_shape(tensors: DeltaTensors, keep: bool) -> tuple[int, ...]:
    """Shape of the states that are kept; see `tvm_scan.loops.delta_walk`."""
    rows, length = tensors.h0.shape[0], tensors.v.shape[1]
    of_row = sym_max(length - 1, 0) // CHECKPOINT  # the state before time is no other one
    count = rows * of_row if tensors.offsets is None else length // CHECKPOINT
    return (count if keep else 0, *tensors.h0.shape[1:])


def _known_shape(tensors: DeltaTensors, keep: bool) -> tuple[int, ...]:
    rows, *others = tensors.v.shape
    return (rows if keep else 0, *others)


@delta_scan.fake
def _(tensors: DeltaTensors, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    v, h0 = tensors.v, tensors.h0
    return (
        v.new_empty(v.shape),
        h0.new_empty(h0.shape),
        h0.new_empty(_checkpoints_shape(tensors, keep)),
        v.new_empty(_known_shape(tensors, keep)),
    )


def delta_step(tensors: DeltaTensors, scale: float | None, reads: str) -> Tensor | None:
    """Return the output, and leave the states after time in ``h0``, which no kernel copies.

    Returns
    -------
    Tensor or None
        None where that is not possible, and nothing was done: an operator would be watched, or
        a kernel would have to copy the states after all.
    """
    v, h0 = tensors.v, tensors.h0
    if torch.compiler.is_compiling() or not sees_nothing(tensors):
        return None
    if devices.device_of(v) is not devices.CPU or prepared(h0) is not h0 or not h0.numel():
        return None
    _check(tensors)
    y = allocated_like(v)
    if y.numel():
        _walk(tensors, scale, reads, y)
        increment_version((h0,))  # autograd is told, as `ways` does
    return y


def _check(tensors: DeltaTensors) -> None:
    """Raise unless the offsets fit: kernels read from there to there."""
    if tensors.offsets is not None:
        check_offsets("delta_scan", tensors.offsets, tensors.v.shape[1])


def _operands(tensors: DeltaTensors, *numbers: float) -> list[Any]:
    """The parameters of the loops in order."""
    offsets = () if tensors.offsets is None else (tensors.offsets,)
    learned = tensors.learned.values()
    return [*tensors.timed.values(), *learned, *numbers, tensors.h0, *offsets]


def _numbers(tensors: DeltaTensors, scale: float | None, reads: str) -> tuple[float, ...]:
    return (tensors.scaled_by(scale),) if "scale" in parameters_of(reads) else ()


def _sizes(tensors: DeltaTensors) -> tuple[int, int, int]:
    return tensors.h0.shape[0], tensors.q.shape[2], tensors.q.shape[1]


def _facts(tensors: DeltaTensors) -> tuple[tuple[str, object], ...]:
    """Return the options of every kernel on some tensors."""
    return ("dtype", dtype_name(tensors.v.dtype)), *tensors.options().items()


# To write such a name takes as long as a small kernel runs.
@functools.lru_cache(maxsize=1024)
def _walk_spec(
    facts: tuple[tuple[str, object], ...],
    reads: str,
    packed: bool,
    single: bool,
    in_place: bool,
    keep: bool,
) -> KernelSpec:
    options = {"packed": packed, "single": single, "in_place": in_place, "keep": keep}
    return replace(
        KernelSpec.of("delta_walk", _SIZES, **dict(facts), **options, reads=reads),
        no_scan=True,
        decided_by="delta.walk_plan",
        measured_as=_plain_spec(facts),
    )


@functools.lru_cache(maxsize=1024)
def _adjoint_spec(facts: tuple[tuple[str, object], ...], reads: str, packed: bool) -> KernelSpec:
    return replace(
        KernelSpec.of("delta_adjoint", _SIZES, **dict(facts), packed=packed, reads=reads),
        no_scan=True,
        decided_by="delta.adjoint",
    )


@functools.lru_cache(maxsize=1024)
def _plain_spec(facts: tuple[tuple[str, object], ...]) -> KernelSpec:
    """Name the loop over tokens, of which what is read is computed before."""
    return replace(KernelSpec.of("delta_rule", _SIZES, **dict(facts)), or_serial=True)


def _walk(
    tensors: DeltaTensors, scale: float | None, reads: str, *results: Tensor, keep: bool = False
) -> None:
    """Run the kernel; without an array for the states after time, `h0` will have them."""
    packed = tensors.offsets is not None
    single = not packed and tensors.v.shape[1] == 1
    spec = _walk_spec(_facts(tensors), reads, packed, single, len(results) == 1, keep)
    operands = _operands(tensors, *_numbers(tensors, scale, reads))
    run_kernel(spec, _sizes(tensors), *operands, *results)


def _plain(tensors: DeltaTensors, last: Tensor, y: Tensor) -> None:
    spec = _plain_spec(_facts(tensors))
    if tensors.g is not None:
        tensors = tensors._replace(g=tensors.g.exp())
    run_kernel(spec, _sizes(tensors), *_operands(tensors), last, y)


def _backward(
    ctx: Any, g_y: Tensor | None, g_last: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    *saved, checkpoints, known = ctx.saved_tensors
    tensors, options = DeltaTensors(*saved), (ctx.scale, ctx.reads)
    g_y = torch.zeros_like(tensors.v) if g_y is None else g_y
    g_last = torch.zeros_like(tensors.h0) if g_last is None else g_last
    # Not kept, but differentiated after all: scan forward once more.
    if known.shape != tensors.v.shape:
        detached = (t if t is None else t.detach() for t in tensors)
        checkpoints, known = delta_scan(*detached, *options, True)[2:]
    states = (checkpoints.detach(), known.detach())
    # Of the tensors that are there, in order; the offsets are last, and have none.
    grads = iter(_repeated_backward(g_y, g_last, *states, *tensors, *options))
    of_each = [None if tensor is None else next(grads) for tensor in tensors[:-1]]
    named = zip(DeltaTensors._fields, of_each, strict=False)
    return tuple(g.sum(0) if g is not None and n in LEARNED else g for n, g in named)


# Zeros would be a gradient of the states that are kept, as large as they are.
delta_scan.gradient(
    _backward, " ".join((*DeltaTensors._fields, "results[2] results[3]")), zeros=False
)


@operator(mapped=_map)
def delta_scan_backward(
    g_y: Tensor,
    g_last: Tensor,
    checkpoints: Tensor,
    known: Tensor,
    tensors: DeltaTensors,
    scale: float | None,
    reads: str,
) -> list[Tensor]:
    """Return the gradients of `differentiable`; those of parameters stand for each sequence."""
    timed, v, h0 = tensors.timed, tensors.v, tensors.h0
    if not v.numel() or not h0.numel():
        grads = {n: torch.zeros_like(t) for n, t in timed.items()}
        grads |= {n: v.new_zeros(v.shape[0], *t.shape) for n, t in tensors.learned.items()}
        return [*grads.values(), g_last.clone()]
    if devices.device_of(v) is not devices.CPU:
        reading = delta_steps.Reading(tensors, scale, reads)
        grads, g_h0 = delta_steps.adjoint(reading.plain, g_y, g_last)
        grads = reading.pull(grads)
        return [*(grads[n] for n in (*timed, *tensors.learned)), g_h0]
    grads = {n: allocated_like(t) for n, t in timed.items()}
    for name, tensor in tensors.learned.items():
        grads[name] = allocated((h0.shape[0], *tensor.shape), v.dtype, v.device)
    # The kernel overwrites it: a copy even of what is compact, which autograd may give to others.
    g_h0 = copied(g_last)
    packed = tensors.offsets is not None
    spec = _adjoint_spec(_facts(tensors), reads, packed)
    operands = _operands(tensors, *_numbers(tensors, scale, reads))
    operands += [checkpoints, known, g_y]
    run_kernel(spec, _sizes(tensors), *operands, *grads.values(), g_h0)
    if packed:
        grads |= {n: grads[n].sum(0, keepdim=True) for n in tensors.learned}
    return [*grads.values(), g_h0]


@delta_scan_backward.fake
def _(tensors: DeltaTensors) -> list[Tensor]:
    grads = {n: t.new_empty(t.shape) for n, t in tensors.timed.items()}
    rows = tensors.v.shape[0]
    grads |= {n: t.new_empty((rows, *t.shape)) for n, t in tensors.learned.items()}
    return [*grads.values(), tensors.h0.new_empty(tensors.h0.shape)]


def _second(ctx: Any, weights: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Differentiate the gradients, by torch's operators, one chunk after another."""
    g_y, g_last, *saved = ctx.saved_tensors
    tensors = DeltaTensors(*saved)
    named = dict(zip(tensors.differentiable, weights, strict=True))
    wanted = {n: named[n] for n in (*tensors.timed, *tensors.learned)}
    reading = delta_steps.Reading(tensors, ctx.scale, ctx.reads)
    first, _ = delta_steps.adjoint(reading.plain, g_y, g_last)
    of_plain, grads = reading.second(first, wanted)
    gradients = delta_steps.second(reading.plain, g_y, g_last, of_plain | {"h0": named["h0"]})
    for name, grad in reading.pull(gradients).items():
        grads[name] = grads[name] + grad
    for name in tensors.learned:
        grads[name] = grads[name].sum(0)
    grads["h0"] = gradients["h0"]
    # The states that are kept are what the tensors make them: their derivatives are in those.
    of_tensors = (grads.get(name) for name in DeltaTensors._fields)
    return gradients["g_y"], gradients["g_last"], None, None, *of_tensors


delta_scan_backward.gradient(_second, " ".join(("g_y g_last", *DeltaTensors._fields)))
#: Of a step of training after another; no function that is `repeated` calls it, whose way would not
#: be told of its kernel.
_repeated_backward = repeated(delta_scan_backward.__call__)
