"""``associative_scan`` and ``scan``: scans of a function that the caller writes in torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.arguments import axis_of, check_tensors, framed
from tvm_scan.torch.arguments import check as expect
from tvm_scan.torch.ops.slices import scan_slices
from tvm_scan.torch.ops.steps import step_scan
from tvm_scan.torch.private import pytree
from tvm_scan.torch.trace.graph import graph_module
from tvm_scan.torch.trace.sizes import Kinds
from tvm_scan.torch.trace.traced import traced_operator, traced_step

_HALVES = (torch.float16, torch.bfloat16)


def associative_scan(
    combine_fn: Callable[[Any, Any], Any],
    xs: Any,
    dim: int = 0,
    reverse: bool = False,
    combine_mode: str = "generic",
    *,
    check: bool = False,
) -> Any:
    """Scan with an associative operator: ``y[t] = combine_fn(y[t-1], x[t])``, ``y[0] = x[0]``.

    Parameters
    ----------
    combine_fn : callable
        Takes two operands, each with the structure of `xs` and the leaves of one step (without
        `dim`), and returns one. It must be associative; it need not commute. What torch's own
        tracer records is what is run.
    xs : pytree of Tensor
        Leaves with the same extent along `dim`. Halves are combined in float32.
    dim : int
        The time axis of every leaf.
    reverse : bool
        Scan from the last element to the first: ``y[t] = combine_fn(y[t+1], x[t])``.
    combine_mode : {"generic", "pointwise"}
        With ``"pointwise"`` an operator that is not elementwise is refused, as in torch.
    check : bool
        Try ``combine(combine(a, b), c) = combine(a, combine(b, c))`` on samples of `xs` and on
        random ones first.

    Returns
    -------
    pytree of Tensor
        The structure and shapes of `xs`.

    Raises
    ------
    ValueError
        If an argument is not as above, or the operator returns other shapes or dtypes.
    ScanError
        If a triple of samples shows that the operator is not associative; if one that is not
        elementwise has a gradient to take, or calls what TVM does not import.

    Notes
    -----
    An elementwise operator that is provably in one of the families is treated as such, any other
    is believed to be associative. Its gradient is a scan as well, derived from the operator.
    An operator that mixes the elements of a step, as a product of matrices does, has no gradient;
    where it is in no family, it runs one step after another.
    """
    owner = "associative_scan"
    modes = ("generic", "pointwise")
    expect(combine_mode in modes, owner, f"combine_mode in {modes}", combine_mode, "pass one")
    leaves, spec = pytree.tree_flatten(xs)
    dim = _check_leaves(owner, leaves, dim)
    wide = [_widened(leaf) for leaf in leaves]
    slices = _kinds(wide, dim)
    graph, elementwise, shared = traced_operator(
        combine_fn, _pattern(spec), slices, leaves[0].device
    )
    if shared:
        _check_numbers(owner, {"xs": leaves, "the function's tensor": shared})
    if check and not torch.compiler.is_compiling() and not leaves[0].is_meta:
        _try_samples(graph, wide, dim, shared)
    expect(
        elementwise or combine_mode == "generic",
        owner,
        "an elementwise operator for combine_mode='pointwise'",
        "one that is not, or reads other tensors",
        "pass combine_mode='generic'",
    )
    if elementwise:
        arrays = [framed(leaf, dim) for leaf in wide]
        scanned = step_scan(arrays, graph, len(leaves), True, reverse)
        results = [f.view(leaf.shape) for f, leaf in zip(scanned, leaves, strict=True)]
    else:
        _refuse_gradient(owner, (*wide, *shared))
        moved = [leaf.movedim(dim, 0).contiguous() for leaf in wide]
        count = len(leaves)
        scanned = scan_slices([*moved, *shared], graph, count, count, True, reverse)
        results = [f.movedim(0, dim) for f in scanned]
    results = [r.to(leaf.dtype) for r, leaf in zip(results, leaves, strict=True)]
    return pytree.tree_unflatten(results, spec)


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    dim: int = 0,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Run a recurrence that is provably a scan: ``carry, y[t] = f(carry, x[t])``.

    Parameters
    ----------
    f : callable
        Takes the carry and one step of `xs` (without `dim`); returns the next carry, of the same
        shapes and dtypes, and what to emit.
    init : pytree of Tensor
        The carry before the scan.
    xs : pytree of Tensor
        Leaves with the same extent along `dim`.
    dim : int
        The time axis of every leaf.
    reverse : bool
        Scan from the last step to the first; what is emitted stays at its step.

    Returns
    -------
    carry : pytree of Tensor
        After the scan.
    ys : pytree of Tensor
        What is emitted, with time at `dim`, as torch's ``scan`` stacks it.

    Raises
    ------
    ValueError
        If an argument is not as above, or `f` returns another carry.
    RefusalError
        If the recurrence is not provably in one of the families; it says which part and why.

    Notes
    -----
    Where `f` treats every element alike (its carries have one shape, and every leaf of `xs`
    broadcasts to it), there is a gradient: the adjoint is a scan as well. Another `f` has none.
    """
    owner = "scan"
    starts, carry_spec = pytree.tree_flatten(init)
    leaves, spec = pytree.tree_flatten(xs)
    dim = _check_leaves(owner, leaves, dim)
    expect(bool(starts), owner, "a carry", init, "a loop without one is a map: use torch.vmap")
    _check_numbers(owner, {"init": starts, "xs": leaves})
    kinds = tuple((tuple(s.shape), s.dtype) for s in starts)
    patterns = (_pattern(carry_spec), _pattern(spec))
    traced = traced_step(f, patterns, kinds, _kinds(leaves, dim), leaves[0].device)
    graph, elementwise, emitted, shared = traced
    if shared:
        _check_numbers(owner, {"xs": leaves, "the function's tensor": shared})
    count = len(starts)
    if elementwise:
        shape = starts[0].shape
        whole = [_stretched(leaf, dim, shape) for leaf in leaves]
        length = leaves[0].shape[dim]
        whole += [s.expand(length, *shape) for s in shared]
        inner = math.prod(shape)  # -1 would not do for 0 elements
        flat = [t.reshape(1, length, inner) for t in whole]
        inits = [s.reshape(1, inner) for s in starts]
        scanned = step_scan([*inits, *flat], graph, count, False, reverse)
        results = [r.view(shape) for r in scanned[:count]]
        results += [r.view(length, *shape) for r in scanned[count:]]
    else:
        _refuse_gradient(owner, (*starts, *leaves, *shared))
        moved = [leaf.movedim(dim, 0).contiguous() for leaf in leaves]
        arguments = [*(s.contiguous() for s in starts), *moved, *shared]
        results = scan_slices(arguments, graph, count, len(leaves), False, reverse)
    results = [*results[:count], *(r.movedim(0, dim) for r in results[count:])]
    carry = pytree.tree_unflatten(list(results[:count]), carry_spec)
    return carry, pytree.tree_map(lambda at: results[count + at], emitted)


def _pattern(spec: pytree.TreeSpec) -> Any:
    """The structure with numbers as leaves."""
    return pytree.tree_unflatten(list(range(spec.num_leaves)), spec)


def _kinds(leaves: Sequence[Tensor], dim: int) -> Kinds:
    return tuple((tuple(x.shape[:dim] + x.shape[dim + 1 :]), x.dtype) for x in leaves)


def _check_leaves(owner: str, leaves: Sequence[Any], dim: int) -> int:
    expect(bool(leaves), owner, "tensors to scan", "none", "pass at least one")
    _check_numbers(owner, {"xs": leaves})
    for leaf in leaves:
        expect(leaf.dim() > 0, owner, "xs with a time axis", "a scalar", "unsqueeze it")
    axes = {axis_of(owner, leaf, dim) for leaf in leaves}
    expect(len(axes) == 1, owner, "one time axis", sorted(axes), "give dim from the front")
    axis = axes.pop()
    lengths = [leaf.shape[axis] for leaf in leaves]
    for length in lengths:  # one by one: a length may be symbolic, which no set takes
        if length != lengths[0]:
            expect(False, owner, "leaves of one length", lengths, "cut them to one length")
    return axis


def _check_numbers(owner: str, groups: dict[str, Sequence[Any]]) -> None:
    """Raise unless all are real tensors on one device."""
    named = {f"{name}[{i}]": t for name, group in groups.items() for i, t in enumerate(group)}
    check_tensors(owner, **named)
    for name, tensor in named.items():
        if tensor.is_complex():
            expect(False, owner, f"a real {name}", tensor.dtype, "scan .real and .imag")


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _HALVES else tensor


def _stretched(leaf: Tensor, dim: int, shape: torch.Size) -> Tensor:
    """Put time first, and broadcast the rest to `shape`."""
    moved = leaf.movedim(dim, 0)
    missing = len(shape) - (moved.dim() - 1)
    padded = moved.reshape(moved.shape[0], *(1,) * missing, *moved.shape[1:])
    return padded.expand(moved.shape[0], *shape)


def _refuse_gradient(owner: str, tensors: Sequence[Tensor]) -> None:
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        from tvm_scan.errors import ScanError  # loads TVM

        raise ScanError(
            f"tvm_scan.torch.{owner}: expected tensors without requires_grad, since the function "
            "mixes the elements of a step, and the adjoint is derived for elementwise ones only; "
            "call under torch.no_grad(), pass .detach(), or write the step elementwise"
        )


def _try_samples(graph: str, leaves: Sequence[Tensor], dim: int, shared: Sequence[Tensor]) -> None:
    """Try the law on steps of the data and on random operands, and show what fails."""
    generator = torch.Generator().manual_seed(0)
    device, count = leaves[0].device, len(leaves)
    module = graph_module(graph, str(device))

    def sample(kind: str) -> list[Tensor]:
        drawn = []
        for leaf in leaves:
            length = leaf.shape[dim]
            if kind == "data" and length:
                at = int(torch.randint(length, (), generator=generator))
                drawn.append(leaf.detach().select(dim, at))
                continue
            shape = leaf.shape[:dim] + leaf.shape[dim + 1 :]
            if leaf.is_floating_point():
                value = torch.rand(shape, dtype=leaf.dtype, generator=generator) * 4 - 2
            else:
                top = 2 if leaf.dtype == torch.bool else 10
                value = torch.randint(top, shape, generator=generator).to(leaf.dtype)
            drawn.append(value.to(device))
        return drawn

    with torch.no_grad():
        for kind in ("data", "random") * 8:
            a, b, c = sample(kind), sample(kind), sample(kind)
            left = module(*module(*a, *b, *shared), *c, *shared)
            right = module(*a, *module(*b, *c, *shared), *shared)
            for part in range(count):
                x, y = left[part], right[part]
                parts = [t[part].abs().max() for t in (a, b, c, left, right) if t[part].numel()]
                bound = 0.0
                if x.is_floating_point():
                    bound = 64 * torch.finfo(x.dtype).eps * float(max(parts, default=0.0))
                wrong = ~(((x - y).abs() <= bound) | (x.isnan() & y.isnan()) | (x == y))
                if bool(wrong.any()):
                    at = tuple(int(i) for i in wrong.nonzero()[0])
                    shown = [tuple(_item(t, at) for t in v) for v in (a, b, c, left, right)]
                    from tvm_scan.errors import ScanError  # loads TVM

                    raise ScanError(
                        "associative_scan: expected an associative operator, found "
                        f"a={shown[0]}, b={shown[1]}, c={shown[2]} with "
                        f"combine(combine(a, b), c) = {shown[3]} and "
                        f"combine(a, combine(b, c)) = {shown[4]}; a recurrence h' = f(h, x) is "
                        "not an operator: write it with tvm_scan.torch.scan"
                    )


def _item(tensor: Tensor, at: tuple[int, ...]) -> Any:
    return tensor[at].item() if tensor.dim() == len(at) else tensor.tolist()
