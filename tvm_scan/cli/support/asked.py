"""The words by which a function was asked for, kept with its records: it is known again by them.

Looking a function up by its structure takes TVM, and a file has to run. So words are kept where
they name a function for good: that of a text which nothing else can change.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
from pathlib import Path
from typing import NamedTuple

_LIBRARY = Path(__file__).parents[2] / "library"
#: Builtins whose value follows from their arguments.
_PURE = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "range"})


class Asked(NamedTuple):
    """A function that was asked for.

    Attributes
    ----------
    name : str
        Of the function.
    words : str
        What names it and its target, with a digest of the text that defines it.
    """

    name: str
    words: str


def asked_of(
    what: str, func: str | None, shape: str | None, dtype: str, target: str
) -> Asked | None:
    """Return what was asked for, where the words name it for good.

    Parameters
    ----------
    what, func, shape, dtype, target : str
        As the command was given them.

    Returns
    -------
    Asked or None
        None for a model, and for a file that may say something else tomorrow: it imports more than
        TVMScript, computes something, or has several functions of which none is named.
    """
    if what.startswith("library:"):
        texts = b"".join(path.read_bytes() for path in sorted(_LIBRARY.rglob("*.py")))
        words = (what, shape or "-", dtype, target, _digest(texts))
        return Asked(what.partition(":")[2], " ".join(words))
    if not what.endswith(".py") or shape is not None:
        return None
    text = Path(what).read_bytes()
    names = _functions(text)
    if func is None and len(names) == 1:
        (func,) = names
    if func not in names:
        return None
    return Asked(func, " ".join(("file", func, target, _digest(text))))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _functions(text: bytes) -> list[str]:
    """Names of the functions of a file that follow from its text alone; none where they do not."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    functions = [statement for statement in tree.body if isinstance(statement, ast.FunctionDef)]
    names = [function.name for function in functions]
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    closed = (
        all(_is_closed(statement) for statement in tree.body)
        and len(set(names)) == len(names)
        and b"global_symbol" not in text  # a name that is not the function's
        and not used & (set(dir(builtins)) | {"__file__"}) - _PURE
    )
    return names if closed else []


def _is_closed(statement: ast.stmt) -> bool:
    """Return whether a statement defines a TensorIR function, a constant, or TVMScript's names."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module in ("tvm.script", "__future__") and not statement.level
    if isinstance(statement, ast.FunctionDef):
        return [
            getattr(getattr(decorator, "func", decorator), "attr", "")
            for decorator in statement.decorator_list
        ] == ["prim_func"]
    if isinstance(statement, ast.Assign):
        return not any(isinstance(node, ast.Call) for node in ast.walk(statement.value))
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
