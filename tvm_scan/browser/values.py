"""Inputs of a page: between which numbers they are drawn, so that a long loop stays finite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
import tvm
from tvm import tirx

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float
from tvm_scan.arguments import host_target
from tvm_scan.cuda_math import build
from tvm_scan.schedules.analysis import Analysis
from tvm_scan.schedules.verification.inputs import index_limits, shapes_of, sizes_of

#: The least number, and the one that all stay below.
Span = tuple[float, float]

#: A symbolic extent that is not time.
OTHERS = 4
_PLAIN: Span = (-1.0, 1.0)
#: What an input may be that a growing loop multiplies, or takes the exponential of.
_TAMER: tuple[Span, ...] = ((-1.0, 0.0), (0.0, 1.0))
#: What a loop of `STEPS` steps stays below that does not grow with every step.
_TAME = 1e4


def spans_of(
    func: tirx.PrimFunc, analysis: Analysis, params: Sequence[tirx.Var]
) -> dict[str, Span]:
    """Choose spans on which the loop stays finite, by running it.

    Parameters
    ----------
    func : tirx.PrimFunc
        The sequential function.
    analysis : Analysis
        Of it.
    params : sequence of tirx.Var
        Those parameters that it reads.

    Returns
    -------
    dict of str to Span
        For each of them. Integers that index something stay inside of it. Floats
        lie between -1 and 1; one or two are of one sign if the loop grows without end otherwise
        (the ``A`` of a selective scan, whose gate is ``exp(dt A)``).
    """
    limits = {
        str(param.name): limit
        for finding in analysis.accepted
        for param, limit in index_limits(analysis.func, finding).items()
    }
    floats = [str(p.name) for p in params if is_float(tir.dtype_of(p))]
    whole = {str(p.name): _whole(p, limits) for p in params if str(p.name) not in floats}
    run = None
    for spans in _candidates(floats):
        chosen = {**whole, **spans}
        run = run or _Run(func, analysis)
        if run.is_tame(chosen):
            return chosen
    return {**whole, **dict.fromkeys(floats, _PLAIN)}


def _whole(param: tirx.Var, limits: Mapping[str, int]) -> Span:
    dtype = tir.dtype_of(param)
    if str(param.name) in limits:
        return 0, limits[str(param.name)]
    return (0, 2) if dtype == "bool" else (0 if dtype.startswith("uint") else -4, 5)


def _candidates(floats: list[str]) -> Iterator[dict[str, Span]]:
    plain = dict.fromkeys(floats, _PLAIN)
    yield plain
    for count in (1, 2):
        for names in combinations(floats, count):
            for tamer in _TAMER:
                yield {**plain, **dict.fromkeys(names, tamer)}


class _Run:
    """The loop on this machine's CPU, at a few hundred steps where its extents are symbolic."""

    def __init__(self, func: tirx.PrimFunc, analysis: Analysis) -> None:
        named = func.with_attr("global_symbol", "main")
        self._call = build(named, host_target())["main"]
        lengths = [finding.time.extent for finding in analysis.accepted]
        shapes = shapes_of(analysis.func, sizes_of(analysis.func, lengths, (OTHERS,)))
        self._params = [
            (str(param.name), tir.dtype_of(param), shape)
            for param, shape in zip(func.params, shapes, strict=True)
        ]

    def is_tame(self, spans: Mapping[str, Span]) -> bool:
        rng = np.random.default_rng(0)
        arrays = []
        for name, dtype, shape in self._params:
            low, high = spans.get(name, (0, 1))
            values = rng.uniform(low, high, shape)
            arrays.append((values if is_float(dtype) else np.floor(values)).astype(dtype))
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        self._call(*tensors)
        after = [tensor.numpy() for tensor in tensors]
        return all(
            np.isfinite(array).all() and np.abs(array).max(initial=0) < _TAME
            for array in after
            if array.dtype.kind == "f"
        )
