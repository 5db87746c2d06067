"""Recurrences of representative algebras in any shape, layout and direction, each with a twin.

Inputs are such that every association of the steps gives the same bits, but for ``logsumexp``.
The twin walks time in NumPy, one step after another, over all rows at once.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ml_dtypes  # noqa: F401 - NumPy then knows bfloat16
import numpy as np
import tvm
from tvm.script import tirx as T

__all__ = ["FAMILIES", "Family", "Shape", "inputs_of", "source_of", "twin"]


@dataclass(frozen=True)
class Family:
    """A step, written twice.

    Attributes
    ----------
    carries : mapping
        Name of a carry -> its dtype and its value before the first step.
    inputs : mapping
        Name of an input -> its dtype and the values it may have.
    step : tuple of str
        Statements over ``h``, ``c`` (the carries), ``n`` (new values) and inputs, TVMScript.
    twin : callable
        ``twin(carries, inputs of a step) -> carries``, over arrays of rows.
    tables : mapping
        Inputs that do not depend on the row or the step.
    tolerance : float
        Relative; zero where all is exact.
    """

    carries: Mapping[str, tuple[str, float]]
    inputs: Mapping[str, tuple[str, tuple[float, ...]]]
    step: tuple[str, ...]
    twin: Callable[..., tuple[np.ndarray, ...]]
    tables: Mapping[str, np.ndarray] | None = None
    tolerance: float = 0.0


@dataclass(frozen=True)
class Shape:
    """Rows, steps, and how they lie.

    Attributes
    ----------
    rows, length : int
        Sizes; any.
    reverse : bool
        Whether time runs backwards.
    exclusive : bool
        Whether a step emits what was before it.
    lanes_last : bool
        Whether neighbouring elements are of neighbouring rows.
    symbolic : bool
        Whether the kernel is told the sizes at run time.
    """

    rows: int
    length: int
    reverse: bool = False
    exclusive: bool = False
    lanes_last: bool = False
    symbolic: bool = False


# Not a group that commutes: two mirrors and a quarter turn; a product of few of them is any.
_TURNS = np.array([[[0, 1], [1, 0]], [[1, 0], [0, -1]], [[0, -1], [1, 0]], [[0, 0], [0, 1]]])
_MOVES = np.array([[1, 2, 0], [0, 0, 1], [2, 1, 2], [0, 2, 1]], "int32").T.copy()


def _matrix(h, c, k, x):
    m = _TURNS.astype("float32")[k]
    return m[:, 0, 0] * h + m[:, 0, 1] * c + x, m[:, 1, 0] * h + m[:, 1, 1] * c


FAMILIES: Mapping[str, Family] = {
    "sum": Family(
        {"h": ("int64", 5)},
        {"x": ("int64", (-(2**40), 3, 2**41))},
        ("n: h + x", "h: n"),
        lambda h, x: (h + x,),
    ),
    "maximum": Family(
        {"h": ("float32", -4.0)},
        {"x": ("float32", (-9, -5, 0, 1, 7))},
        ("h: T.max(h, x)",),
        lambda h, x: (np.maximum(h, x),),
    ),
    "affine": Family(
        {"h": ("float32", 2.0)},
        {"g": ("float32", (-1, 1, 1, 0)), "x": ("float32", (-3, -1, 0, 2))},
        ("h: g * h + x",),
        lambda h, g, x: (g * h + x,),
    ),
    "affine of doubles": Family(
        {"h": ("float64", 2.0)},
        {"g": ("float64", (-1, 1, -1, 1)), "x": ("float64", (-3, -1, 0, 2))},
        ("h: g * h + x",),
        lambda h, g, x: (g * h + x,),
    ),
    "segmented": Family(
        {"h": ("float32", 1.0)},
        {"r": ("int32", (0, 0, 0, 0, 1)), "x": ("float32", (-3, -1, 2, 5))},
        ("h: T.if_then_else(r > 0, T.float32(0), h) + x",),
        lambda h, r, x: (np.where(r > 0, 0, h) + x,),
    ),
    "first largest": Family(
        {"h": ("float32", -np.inf), "c": ("int32", -1)},
        {"x": ("float32", (-5, 0, 1, 4, 4.5, 4.75))},
        ("if x > h:", "  c: TIME", "  h: x"),
        lambda h, c, x, t: (np.where(x > h, x, h), np.where(x > h, t, c)),
    ),
    "logsumexp": Family(
        {"h": ("float32", -np.inf)},
        {"x": ("float32", (-3, -1, 0, 2, 6))},
        ("m: T.max(h, x)", "h: m + T.log(T.exp(h - m) + T.exp(x - m))"),
        lambda h, x: (np.logaddexp(h.astype("float64"), x),),
        # Of at most 2,000 steps, each of which rounds at 2^-24 of a value below 16.
        tolerance=2000 * 2.0**-24,
    ),
    "matrices": Family(
        {"h": ("float32", 1.0), "c": ("float32", -2.0)},
        dict.fromkeys(("p", "q", "r", "s"), ("float32", ())) | {"x": ("float32", (-1, 0, 2))},
        ("n: p * h + q * c + x", "c: r * h + s * c", "h: n"),
        lambda h, c, p, q, r, s, x: (p * h + q * c + x, r * h + s * c),
    ),
    "complex": Family(
        {"h": ("float32", 1.0), "c": ("float32", -2.0)},
        dict.fromkeys(("p", "q"), ("float32", ())) | {"x": ("float32", (-1, 0, 2))},
        ("n: p * h - q * c + x", "c: q * h + p * c", "h: n"),
        lambda h, c, p, q, x: (p * h - q * c + x, q * h + p * c),
    ),
    "affine of halves": Family(
        {"h": ("float32", 2.0)},
        {"g": ("bfloat16", (-1, 1, 1, 0)), "x": ("float16", (-3, -1, 0, 2))},
        ("h: T.Cast('float32', g) * h + T.Cast('float32', x)",),
        lambda h, g, x: (g.astype("float32") * h + x,),
    ),
    "automaton": Family(
        {"h": ("int32", 1)},
        {"x": ("int32", (0, 1, 2, 3))},
        ("h: TB[h, x]",),
        lambda h, x, TB: (TB[h, x],),
        {"TB": _MOVES},
    ),
}


def _new_carries(family: Family) -> list[str]:
    named = [line.strip().partition(":")[0] for line in family.step]
    return sorted({name for name in named if name in ("n", "m")})


def source_of(family: Family, shape: Shape):
    """The sequential loop of a family in a shape, as a PrimFunc."""
    names = ("d0", "d1") if shape.symbolic else None
    rows, length = names or (f"T.int64({shape.rows})", f"T.int64({shape.length})")
    extent = f"({length}, {rows})" if shape.lanes_last else f"({rows}, {length})"
    params, head = [], []

    def buffer(name, dtype, size=extent):
        params.append(f"p_{name}: T.handle")
        head.append(f"    {name} = T.match_buffer(p_{name}, {size}, '{dtype}')")

    for name, table in (family.tables or {}).items():
        buffer(name, str(table.dtype), str(table.shape))
    for name, (dtype, _) in family.inputs.items():
        buffer(f"I_{name}", dtype)
    for name, (dtype, _) in family.carries.items():
        buffer(f"O_{name}", dtype)
    sizes = [f"    {name} = T.int64()" for name in names or ()]
    at = "[time, b]" if shape.lanes_last else "[b, time]"
    time = f"{length} - T.int64(1) - t" if shape.reverse else "t"
    first = next(iter(family.carries.values()))[0]
    body = [f"    for b in range({rows}):"]
    for name, (dtype, _) in family.carries.items():
        body.append(f"        {name}_ = T.sblock_alloc_buffer((1,), '{dtype}')")
    for name in _new_carries(family):
        body.append(f"        {name}_ = T.sblock_alloc_buffer((1,), '{first}')")
    for name, (dtype, start) in family.carries.items():
        value = "'-inf'" if start == -np.inf else str(start)
        body.append(f"        {name}_[0] = T.{dtype}({value})")
    body.append(f"        for t in range({length}):")
    emits = [f"O_{name}[TIME] = {name}_[0]" for name in family.carries]
    steps = []
    for line in family.step:
        indent = "    " if line.startswith("  ") else ""
        if line.startswith("if"):
            steps.append(_placed(line, family))
            continue
        target, _, value = line.strip().partition(": ")
        steps.append(f"{indent}{target}_[0] = {_placed(value, family)}")
    lines = [*emits, *steps] if shape.exclusive else [*steps, *emits]
    for line in lines:
        line = line.replace("[TIME]", at).replace("TIME", "T.Cast('int32', time)")
        body.append("            " + line.replace("time", f"({time})"))
    text = ["@T.prim_func(s_tir=True)", f"def main({', '.join(params)}):", *sizes, *head, *body]
    return tvm.script.from_source("\n".join(text), {"T": T})


def _placed(expr: str, family: Family) -> str:
    """An expression of a step over buffers."""

    for name in (*family.carries, *_new_carries(family)):
        expr = re.sub(rf"(?<![\w.]){name}(?![\w(])", f"{name}_[0]", expr)
    for name in family.inputs:
        expr = re.sub(rf"(?<![\w.]){name}(?![\w(])", f"I_{name}[TIME]", expr)
    return expr


def inputs_of(family: Family, shape: Shape, seed: int) -> list[np.ndarray]:
    """Tables and inputs, in the order of the parameters."""
    rng = np.random.default_rng(seed)
    size = (shape.length, shape.rows) if shape.lanes_last else (shape.rows, shape.length)
    turns = _TURNS[rng.choice(4, size, p=(0.4, 0.3, 0.28, 0.02))]
    entries = {"p": (0, 0), "q": (0, 1), "r": (1, 0), "s": (1, 1)}
    made = list((family.tables or {}).values())
    for name, (dtype, values) in family.inputs.items():
        array = rng.choice(values, size) if values else turns[(..., *entries[name])]
        made.append(np.ascontiguousarray(array.astype(dtype)))
    return made


def twin(family: Family, shape: Shape, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What the loop leaves in its outputs."""
    tables = dict(zip(family.tables or {}, inputs, strict=False))
    moved = [a if shape.lanes_last else a.T for a in inputs[len(tables) :]]
    carries = [np.full(shape.rows, start, dtype) for dtype, start in family.carries.values()]
    outputs = [np.zeros((shape.length, shape.rows), c.dtype) for c in carries]
    steps = range(shape.length)
    for t in reversed(steps) if shape.reverse else steps:
        if shape.exclusive:
            for out, carry in zip(outputs, carries, strict=True):
                out[t] = carry
        known = {**tables, **({"t": t} if "TIME" in "".join(family.step) else {})}
        new = family.twin(*carries, *(a[t] for a in moved), **known)
        carries = [n.astype(c.dtype) for n, c in zip(new, carries, strict=True)]
        if not shape.exclusive:
            for out, carry in zip(outputs, carries, strict=True):
                out[t] = carry
    return [out if shape.lanes_last else np.ascontiguousarray(out.T) for out in outputs]
