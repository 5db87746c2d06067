"""What is before a reset is forgotten, NaN and infinity too, forwards and backwards.

Three sequences lie in one row, the middle one with a NaN or an infinity in everything that it has,
the gradient from above included. Every bit of the others is what it is without that.
"""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm_scan.torch as ts  # noqa: E402
from tests.support.cuda_harness import CUDA_TARGET, compile_cuda, run_cuda  # noqa: E402
from tests.support.tiers import paired  # noqa: E402
from tvm_scan import ScanPlan, default_plan, extract, parallelize, tir  # noqa: E402
from tvm_scan.relax.import_torch.own_operators import _from_the_start  # noqa: E402
from tvm_scan.torch.kernels.building import loop_of  # noqa: E402
from tvm_scan.torch.kernels.spec import KernelSpec  # noqa: E402

#: Beginnings and ends; the chunks of the selective scan have 32 steps.
BOUNDS = (0, 25, 50, 80)
LENGTH, BAD = BOUNDS[-1], 37
OFFSETS = torch.tensor(BOUNDS)
MIDDLE = slice(BOUNDS[1], BOUNDS[2])


def starts(reverse):
    """Where a walk meets a new sequence."""
    mask = torch.zeros(LENGTH, dtype=torch.bool)
    mask[[i - 1 if reverse else i for i in BOUNDS[1:-1]]] = True
    return mask


def draw(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(shape, dtype=dtype, generator=generator) for shape in shapes]


def linear(reverse, **options):
    given = draw(*[(2, LENGTH, 3)] * 2, **options)
    mask = starts(reverse)[:, None]
    call = lambda a, x: ts.linear_recurrence(a, x, dim=1, reset=mask, reverse=reverse)  # noqa: E731
    return given, (1, 1), call


def rows(reverse):
    given, mask = draw(*[(2, LENGTH)] * 2), starts(reverse)

    def call(a, x):
        options = {"reset": mask, "reverse": reverse}
        return ts.linear_recurrence(a, x, exclusive=True, **options)

    return given, (1, 1), call


def griffin(reverse):
    given, mask = draw(*[(1, LENGTH, 3)] * 3, (3,)), starts(reverse)[None]
    return given, (1, 1, 1, None), lambda *t: ts.rglru(*t, reset=mask, reverse=reverse)


def mamba(reverse, dtype=torch.float32):
    given = draw(*[(1, 4, LENGTH)] * 2, *[(1, 3, LENGTH)] * 2, (1, 4, LENGTH))
    A, D, bias = -draw((4, 3), dtype=dtype)[0], *draw((4,), (4,))

    def call(u, delta, B, C, z):
        options = {"cu_seqlens": OFFSETS, "reverse": reverse, "delta_softplus": True}
        if A.is_complex():
            B, C = (torch.complex(t, t) for t in (B, C))
        return ts.selective_scan(u, delta, A, B[:, None], C[:, None], D, z, bias, **options)

    return given, (2, 2, 2, 2, 2), call


def mamba2(reverse):
    given = draw((1, LENGTH, 2, 3), (1, LENGTH, 2), *[(1, LENGTH, 1, 3)] * 2, (1, LENGTH, 2, 3))
    A = -draw((2,))[0]

    def call(x, dt, B, C, z):
        return ts.ssd(x, dt, A, B, C, z=z, cu_seqlens=OFFSETS, reverse=reverse)

    return given, (1, 1, 1, 1, 1), call


FUNCTIONS = {
    "linear_recurrence": linear,
    "complex": lambda reverse: linear(reverse, dtype=torch.complex64),
    "exclusive": rows,
    "rglru": griffin,
    "selective_scan": mamba,
    "complex states": lambda reverse: mamba(reverse, torch.complex64),
    "ssd": mamba2,
}


def outside(tensor, axis):
    """The sequences beside the middle one."""
    parts = [tensor.narrow(axis, 0, MIDDLE.start)]
    return torch.cat([*parts, tensor.narrow(axis, MIDDLE.stop, LENGTH - MIDDLE.stop)], axis)


@pytest.mark.parametrize(("name", "reverse"), paired(list(FUNCTIONS), [False, True]))
def test_packed_sequences_are_apart(name, reverse):
    given, axes, call = FUNCTIONS[name](reverse)
    time = max(axis for axis in axes if axis is not None)
    results = []
    for value in (None, math.nan, math.inf):
        leaves = [t.clone() for t in given]
        for leaf, axis in zip(leaves, axes, strict=True):
            if value is not None and axis is not None:
                leaf.select(axis, BAD).fill_(value)
        leaves = [leaf.requires_grad_() for leaf in leaves]
        out = call(*leaves)
        upstream = torch.ones_like(out)
        if value is not None:
            assert not out.isfinite().all()
            upstream.select(time, BAD).fill_(value)
        grads = torch.autograd.grad(out, leaves, upstream)
        timed = [(g, axis) for g, axis in zip(grads, axes, strict=True) if axis is not None]
        results.append([outside(t, axis).detach() for t, axis in [(out, time), *timed]])
    clean, *others = results
    assert all(t.isfinite().all() for t in clean)
    for other in others:
        for want, got in zip(clean, other, strict=True):
            assert torch.equal(want, got)


@pytest.mark.parametrize("name", ["linear_recurrence", "ssd"])
def test_second_derivatives_are_apart(name):
    given, _, call = FUNCTIONS[name](False)
    results = []
    for value in (None, math.nan):
        leaves = [t.clone() for t in given]
        if value is not None:
            for leaf in leaves:
                leaf.select(1, BAD).fill_(value)
        leaves = [leaf.requires_grad_() for leaf in leaves]
        grads = torch.autograd.grad(call(*leaves).square().sum(), leaves, create_graph=True)
        weights = [torch.ones_like(g) for g in grads]
        second = torch.autograd.grad(grads, leaves, weights, allow_unused=True)
        results.append([outside(t, 1) for t in second])
    assert all(torch.equal(want, got) for want, got in zip(*results, strict=True))


def test_an_exclusive_state_at_a_reset_is_zero():
    x, mask = torch.ones(1, 6), torch.tensor([False, False, True, False, False, True])
    options = {"reset": mask, "exclusive": True, "return_last": True}
    h, last = ts.linear_recurrence(1.0, x, torch.tensor([5.0]), **options)
    assert h.tolist() == [[5, 6, 0, 1, 2, 0]]
    assert last.tolist() == [1]
    with pytest.raises(ValueError, match=r"a bool reset, got torch\.float32"):
        ts.linear_recurrence(1.0, x, reset=torch.zeros(6))
    whole = torch.arange(1, 7)[None]
    assert ts.linear_recurrence(2, whole, reset=mask).tolist() == [[1, 4, 3, 10, 25, 6]]


def test_states_of_packed_sequences_are_apart():
    x, dt, B, C = draw((1, LENGTH, 2, 3), (1, LENGTH, 2), *[(1, LENGTH, 1, 3)] * 2)
    number = torch.bucketize(torch.arange(LENGTH), OFFSETS[1:], right=True)[None]
    number[:, 60:] += 1  # and once more within the last sequence
    found = []
    for value, bad in ((None, BAD), (math.nan, BAD), (math.nan, 55)):
        tensors = [t.clone() for t in (x, dt, B, C)]
        if value is not None:
            for tensor in tensors:
                tensor[:, bad] = value
        x_, dt_, B_, C_ = (t.requires_grad_() for t in tensors)
        options = {"cu_seqlens": OFFSETS, "seq_idx": number, "return_varlen_states": True}
        first = torch.ones(1, 2, 3, 3)
        call = (x_, dt_, -torch.ones(2), B_, C_, 16)
        states = ts.compat.mamba_chunk_scan_combined(*call, initial_states=first, **options)[1]
        grad = torch.autograd.grad(states[[0, 2]].sum(), dt_)[0]
        found.append((states.detach(), grad[:, :25], grad[:, 60:]))
    for i, kept in ((1, [0, 2]), (2, [0, 1, 2])):
        assert torch.equal(found[i][0][kept], found[0][0][kept])
        assert torch.equal(found[i][1], found[0][1])
        assert torch.equal(found[i][2], found[0][2])


SIZES = ("outer", "inner", "length")
AFFINE = {"dtype": "float32", "has_initial": False, "has_reset": True, "reverse": False}
SELECTIVE = {"softplus": False, "has_bias": False, "has_D": False, "has_z": False}
SELECTIVE |= {"dtype": "float32", "has_reset": True, "reverse": False, "states": 4}
MATRIX = {"dtype": "float32", "has_reset": True, "states": 4, "gate": "head", "reverse": False}
ON_GPU = [
    ("affine", AFFINE | {"emit": "inclusive", "time_last": True}, SIZES, (1, 2, LENGTH), None),
    (
        "affine",
        AFFINE | {"emit": "late", "time_last": False},
        SIZES,
        (1, 2, LENGTH),
        "cuda/lanes(threads_per_block=32, chunks=4)",
    ),
    (
        "selective_forward",
        SELECTIVE,
        ("batch", "groups", "channels", "length", "steps"),
        (1, 1, 2, LENGTH, LENGTH),
        None,
    ),
    (
        "outer_products",
        MATRIX | {"emit": "late"},
        ("batch", "heads", "lanes", "length"),
        (1, 1, 2, LENGTH),
        None,
    ),
]


@pytest.mark.parametrize(("factory", "options", "names", "sizes", "plan"), ON_GPU)
def test_cuda_kernels(factory, options, names, sizes, plan):
    """Every bit of the other sequences is the same, whatever is in the middle one."""
    loop = loop_of(KernelSpec(factory, tuple(options.items()), names), sizes)
    loop = _from_the_start(loop) if factory == "selective_forward" else loop
    found = extract(loop)
    assert [group.algebra.name for group in found.groups] == ["segmented"]
    chosen = default_plan(CUDA_TARGET, found) if plan is None else ScanPlan.parse(plan)
    executable = compile_cuda(parallelize(loop, CUDA_TARGET, chosen))
    generator, results = np.random.default_rng(0), []
    shapes = [[int(n) for n in tir.shape_of(param)] for param in loop.params]
    clean = [generator.random(shape, dtype="float32") for shape in shapes]
    mask = next(i for i, param in enumerate(loop.params) if tir.dtype_of(param) == "int8")
    late = options.get("emit") == "late"  # there a gate acts behind its step
    lies = [1 if n != LENGTH else LENGTH for n in shapes[mask]]
    clean[mask] = np.broadcast_to(starts(late).numpy().astype("int8").reshape(lies), shapes[mask])
    timed = [i for i, shape in enumerate(shapes) if LENGTH in shape]
    for value in (None, np.nan, np.inf):
        arguments = [array.copy() for array in clean]
        for i in timed:
            if value is not None and i != mask:
                arguments[i].swapaxes(0, shapes[i].index(LENGTH))[BAD] = value
        made = run_cuda(loop, arguments, seeds=(0,), executable=executable)
        out = torch.tensor(made[timed[-1]])
        assert value is None or not out.isfinite().all()
        results.append(outside(out, shapes[timed[-1]].index(LENGTH)))
    assert results[0].isfinite().all()
    assert all(torch.equal(results[0], other) for other in results[1:])
