"""Doors: the modules that pages import from, as ``tvm_scan/README.md`` lists them."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from tests import ROOT

__all__ = ["doors", "fault_of", "public"]

_TABLE = ROOT / "tvm_scan" / "README.md"
_ROW = re.compile(r"^\| `(tvm_scan[\w.]*)` \|", re.MULTILINE)


def doors() -> dict[str, ModuleType]:
    """Import every door of the table, by its name."""
    names = _ROW.findall(_TABLE.read_text(encoding="utf-8"))
    assert "tvm_scan" in names, f"{_TABLE} has no table of doors"
    return {name: import_module(name) for name in names}


def public() -> Iterator[tuple[str, str, Any]]:
    """Yield door, name and value of every public name that is no module, each value once."""
    seen: list[Any] = []
    for door, module in doors().items():
        for name in module.__all__:
            value = getattr(module, name)
            if not inspect.ismodule(value) and not any(value is other for other in seen):
                seen.append(value)
                yield door, name, value


def fault_of(dotted: str) -> str:
    """Say what is wrong with a dotted name of ours; "" where a door has it."""
    known = doors()
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        door = ".".join(parts[:end])
        if door in known:
            rest = parts[end:]
            if not rest or rest[0] in known[door].__all__:
                return ""
            return f"{dotted}: {door} has no public {rest[0]}"
    return f"{dotted}: behind no door of tvm_scan/README.md"
