"""Output of commands: text from files as it stands, numbers that every reader of JSON takes."""

from __future__ import annotations

import json
import math
import shutil
import textwrap
from collections.abc import Iterable
from typing import Any


def visible(text: Any) -> str:
    """Text from a file or a name, with what would steer a terminal written as its escape.

    Parameters
    ----------
    text : object
        Its text is taken.

    Returns
    -------
    str
        One line.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text)
    )


def print_json(value: Any) -> None:
    """Print one JSON object; JSON has no NaN and no infinity, which become their names.

    Parameters
    ----------
    value : object
        Of dicts, lists, strings, numbers and None.
    """
    print(json.dumps(_named(value), allow_nan=False))


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _named(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_named(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def print_wrapped(text: str, indent: int) -> None:
    """Print text in lines that fit the terminal, or 80 columns where there is none.

    Parameters
    ----------
    text : str
        Nothing in it steers the terminal.
    indent : int
        Columns in front of each line but the first, which has them in ``text``.
    """
    width = max(40, shutil.get_terminal_size().columns)
    lines = textwrap.wrap(
        text, width, subsequent_indent=" " * indent, drop_whitespace=True, break_on_hyphens=False
    )
    print("\n".join(lines))


def print_table(
    columns: Iterable[str],
    rows: Iterable[Iterable[Any]],
    *,
    title: str = "",
    right: Iterable[str] = (),
) -> None:
    """Print a table whose cells are text: nothing in them is markup.

    Parameters
    ----------
    columns : iterable of str
        Heads.
    rows : iterable of iterable
        Cells.
    title : str, optional
        Above it.
    right : iterable of str
        Columns of numbers.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if title:
        print_wrapped(visible(title), 6)
    table = Table(box=None, pad_edge=False)
    for name in columns:
        side = "right" if name in right else "left"
        table.add_column(name, overflow="fold", justify=side)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    Console(markup=False, highlight=False, emoji=False).print(table)
