"""``associative_scan``: a recurrence from an operator that its author declares associative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Expr, Var

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float
from tvm_scan.annotations import DECLARED
from tvm_scan.errors import ScanError
from tvm_scan.library.arguments import make_extent
from tvm_scan.loops.declared import operator_loop
from tvm_scan.loops.frame import Frame
from tvm_scan.schedules.common.ir import loop

Operand = tuple[Any, ...]
Operator = Callable[[Operand, Operand], Sequence[Any]]
_SAMPLES = 256


def associative_scan(
    combine: Operator,
    dtypes: Sequence[str],
    lanes: int | None = None,
    length: int | None = None,
    *,
    axis: int = -1,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Sequence[float] | None = None,
    check: bool = True,
    name: str = "associative_scan",
) -> tirx.PrimFunc:
    """Sequential loop ``y[t] = combine(y[t - 1], x[t])``, ready for ``parallelize``.

    Where the loop is provably in one of the families, it is treated as such; else the
    declaration is believed, after a check on samples.

    Parameters
    ----------
    combine : callable
        From two operands, tuples of TIR expressions, to one: ``combine(earlier, later)``. It
        must be associative; it need not commute nor have an identity.
    dtypes : sequence of str
        Dtype of every part of an operand.
    lanes, length : int or None
        Extents; symbolic where None.
    axis : {-1, 0}
        The time axis of the two-dimensional arrays.
    reverse : bool
        Whether time runs from the last element to the first; the later one in time is still the
        right operand.
    exclusive : bool
        Whether ``y[t]`` leaves ``x[t]`` out; needs ``initial``.
    initial : sequence of float, optional
        The operand before the first element; without it ``y`` begins with the first ``x``.
    check : bool
        Whether to try the associativity on samples.
    name : str
        Global symbol of the function.

    Returns
    -------
    PrimFunc
        Parameters ``X0, X1, ..`` and ``Y0, Y1, ..`` of shape (lanes, length), or (length, lanes)
        for ``axis=0``.

    Raises
    ------
    ScanError
        If there is no operator, or no dtype; if the operator returns other than as many parts as
        it takes, in the same dtypes; if a triple of samples shows that it is not associative; if
        ``exclusive`` has no ``initial``.
    """
    dtypes = _checked_dtypes(combine, dtypes)
    if axis not in (-1, 0, 1):
        raise ScanError(f"associative_scan: expected axis -1 or 0, got {axis}; choose one of them")
    if exclusive and initial is None:
        raise ScanError(
            "associative_scan: expected an initial operand for the exclusive scan, got none; pass "
            "initial=, the identity of the operator"
        )
    if initial is not None and len(initial) != len(dtypes):
        raise ScanError(
            f"associative_scan: expected {len(dtypes)} initial values, one per part, got "
            f"{len(initial)}; pass one for each of {', '.join(dtypes)}"
        )
    _check_signature(combine, dtypes)
    if check:
        _check_associative(combine, dtypes)
    frame = Frame(
        None,
        make_extent(name, "lanes", lanes),
        make_extent(name, "length", length),
        axis != 0,
        reverse,
    )
    loop = operator_loop(frame, combine, dtypes, initial=initial, exclusive=exclusive, names="XY")
    return loop.with_attr("global_symbol", name).with_attr(
        DECLARED, [f"X{i}" for i in range(len(dtypes))]
    )


def _checked_dtypes(combine: Any, dtypes: Any) -> tuple[str, ...]:
    if not callable(combine) or isinstance(combine, Expr):
        raise ScanError(
            f"associative_scan: expected a function of two operands, got {type(combine).__name__}; "
            "pass for instance lambda a, b: (a[0] + b[0],)"
        )
    try:
        known = not isinstance(dtypes, str) and len(dtypes) > 0
        for dtype in dtypes if known else ():
            np.dtype(tir.wide_dtype(dtype))
            tir.prim_type(dtype)
    except (TypeError, ValueError, RuntimeError, AttributeError):
        known = False
    if not known:
        raise ScanError(
            f"associative_scan: expected the dtype of every part of an operand, got {dtypes!r}; "
            "pass a list of names, such as ['float32', 'int32']"
        )
    return tuple(dtypes)


def _operands(name: str, dtypes: Sequence[str]) -> Operand:
    return tuple(tirx.Var(f"{name}{i}", dtype) for i, dtype in enumerate(dtypes))


def _check_signature(combine: Operator, dtypes: Sequence[str]) -> None:
    combined = tuple(combine(_operands("a", dtypes), _operands("b", dtypes)))
    combined_dtypes = tuple(tir.dtype_of(part) for part in combined)
    if combined_dtypes != tuple(dtypes):
        raise ScanError(
            f"associative_scan: expected combine to return ({', '.join(dtypes)}), got "
            f"({', '.join(combined_dtypes)}); return one part for each part of an operand, in "
            "its dtype"
        )


def _check_associative(combine: Operator, dtypes: Sequence[str]) -> None:
    """Try ``(a b) c = a (b c)`` on random operands, and show a triple that fails."""
    rng = np.random.default_rng(0)
    operands = [_arrays(rng, dtypes) for _ in range(3)]
    run = _compiled(combine, dtypes)
    a, b, c = operands
    left, right = run(run(a, b), c), run(a, run(b, c))
    for part, dtype in enumerate(dtypes):
        x, y = left[part].astype("float64"), right[part].astype("float64")
        # A few roundings of the largest operand in play; exact for integers.
        scale = max(float(np.abs(v[part].astype("float64")).max()) for v in (a, b, c, left, right))
        bound = 64 * float(np.finfo(dtype).eps) * scale if is_float(dtype) else 0.0
        wrong = ~((np.abs(x - y) <= bound) | (np.isnan(x) & np.isnan(y)))
        if wrong.any():
            i = int(np.argmax(wrong))
            shown = [tuple(v[p][i].item() for p in range(len(dtypes))) for v in (a, b, c)]
            results = [tuple(v[p][i].item() for p in range(len(dtypes))) for v in (left, right)]
            raise ScanError(
                "associative_scan: expected an associative operator, found "
                f"a={shown[0]}, b={shown[1]}, c={shown[2]} with "
                f"combine(combine(a, b), c) = {results[0]} and "
                f"combine(a, combine(b, c)) = {results[1]}; a recurrence h' = f(h, x) is not an "
                "operator: write its loop and let extract prove it, or lift x to functions of h"
            )


def _arrays(rng: np.random.Generator, dtypes: Sequence[str]) -> list[np.ndarray]:
    def array_of(dtype: str) -> np.ndarray:
        if dtype == "bool":
            return rng.integers(0, 2, _SAMPLES).astype(bool)
        if is_float(dtype):
            return rng.uniform(-2, 2, _SAMPLES).astype(dtype)
        return rng.integers(0 if dtype.startswith("u") else -9, 10, _SAMPLES).astype(dtype)

    return [array_of(dtype) for dtype in dtypes]


def _compiled(combine: Operator, dtypes: Sequence[str]) -> Callable[..., list[np.ndarray]]:
    buffers = [
        [tirx.decl_buffer([_SAMPLES], dtype, f"{name}{i}") for i, dtype in enumerate(dtypes)]
        for name in ("a", "b", "out")
    ]

    def body(i: Var) -> Any:
        left, right = (tuple(tirx.BufferLoad(b, [i]) for b in side) for side in buffers[:2])
        values = combine(left, right)
        return tir.seq(
            [tirx.BufferStore(o, v, [i]) for o, v in zip(buffers[2], values, strict=True)]
        )

    params = [b for side in buffers for b in side]
    func = tirx.PrimFunc(params, loop("i", _SAMPLES, body)).with_attr("global_symbol", "combine")
    compiled = tvm.compile(func, target="llvm")["combine"]

    def run(left: list[np.ndarray], right: list[np.ndarray]) -> list[np.ndarray]:
        outs = [tvm.runtime.tensor(np.zeros(_SAMPLES, dtype)) for dtype in dtypes]
        compiled(*(tvm.runtime.tensor(v) for v in (*left, *right)), *outs)
        return [out.numpy() for out in outs]

    return run
