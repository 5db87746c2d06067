"""TIR as text, under the names and with the numbers that its author wrote.

TVM's printer keeps ``R`` and ``I`` for its own modules, so that a buffer of that name comes out as
``R_1``; and it prints all 17 digits of a double, ``0.98999999999999999`` for 0.99.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from tvm.tirx import PrimFunc

from tvm_scan import tir

#: NumPy's type of a dtype, where it has one, and a number of it in the script.
_NUMBERS = [
    (kind, re.compile(rf"(?<=\b{name}\()-?[0-9][0-9.e+-]*(?=\))"))
    for name, kind in {
        "float16": np.float16,
        "bfloat16": None,
        "float32": np.float32,
        "float64": np.float64,
    }.items()
]


def as_text(node: Any) -> str:
    """One line of text for an expression, or the script of a statement or function.

    Parameters
    ----------
    node : object
        Any node of TIR.
    """
    lines = [_shortened(line)[0] for line in _script(node)]
    return "\n".join(lines) if isinstance(node, PrimFunc) else " ".join(lines)


def underlined(func: PrimFunc, node: Any) -> list[str]:
    """Lines of the script of a function, with carets below those that a node of it takes up."""
    out: list[str] = []
    cuts: list[_Cut] = []
    for line in _script(func, [node]):
        if line.strip() and set(line.strip()) == {"^"}:
            out.append(_moved(line, cuts))
        else:
            text, cuts = _shortened(line)
            out.append(text)
    return out


def _script(node: Any, marked: list[Any] | None = None) -> list[str]:
    names = {str(var.name) for var in tir.variables(node).keys()}
    if isinstance(node, PrimFunc):
        names |= {str(param.name) for param in node.params}
    # Whoever calls a buffer T has imported TVM's module under another name.
    prefix = "tirx" if "T" in names else "T"
    text = node.script(
        ir_prefix="ir",
        extra_config={"tirx.prefix": prefix, "relax.prefix": "relax"},
        obj_to_underline=marked or [],
    )
    return [line for line in str(text).splitlines() if not line.startswith("# from tvm")]


#: Begin and end of a number in a line, and what stands there instead.
_Cut = tuple[int, int, str]


def _shortened(line: str) -> tuple[str, list[_Cut]]:
    """The line with the fewest digits that are the same number, and what was cut."""
    cuts = sorted(
        (match.start(), match.end(), _shortest(match[0], kind))
        for kind, pattern in _NUMBERS
        for match in pattern.finditer(line)
    )
    out, at = "", 0
    for start, end, short in cuts:
        out += line[at:start] + short
        at = end
    return out + line[at:], cuts


def _shortest(text: str, kind: Any) -> str:
    forms = [text, repr(float(text))]
    if kind is not None:
        with np.errstate(over="ignore"):
            narrow = kind(text)
        forms += [str(narrow)] if np.isfinite(narrow) else []
    return min(forms, key=len)


def _moved(carets: str, cuts: list[_Cut]) -> str:
    """Carets under a line whose numbers were cut; whole numbers are underlined, or none of it."""
    first, end = carets.index("^"), carets.rindex("^") + 1
    before = sum(stop - start - len(short) for start, stop, short in cuts if stop <= first)
    within = sum(
        stop - start - len(short) for start, stop, short in cuts if first < stop and stop <= end
    )
    return " " * (first - before) + "^" * (end - first - within)
