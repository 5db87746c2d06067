"""The other folders of this package: ``schedules`` and ``meta``, beside this one in a checkout.

An installation has them inside. In a checkout Python finds this folder first wherever it is started
in the root, and would take the two from an installation, or from another checkout, or not at all;
so each is taken from where this file is, or refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_HERE = Path(__file__).resolve().parent
_FOLDERS = {"tvm_scan.schedules": "schedules", "tvm_scan.meta": "meta"}


class _Folders:
    """Finds the two folders of the installation or checkout that this file is of."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folder = _FOLDERS.get(name)
        if folder is None:
            return None
        folders = [_HERE / folder]
        if (_HERE.parent / "setup.py").is_file():  # a checkout
            folders.append(_HERE.parent / folder)
        for package in folders:
            door = package / "__init__.py"
            if door.is_file():
                return spec_from_file_location(
                    name, door, submodule_search_locations=[str(package)]
                )
        raise ModuleNotFoundError(
            f"tvm_scan: expected its folder {folder} in {_HERE}, or beside it in a checkout, found "
            "neither; run python -m pip install . in the root of a whole checkout",
            name=name,
        )


def find_folders() -> None:
    """Take the folders from where this one is, from now on."""
    others = [
        finder for finder in sys.meta_path if type(finder).__qualname__ != _Folders.__qualname__
    ]
    sys.meta_path[:] = [_Folders(), *others]
