"""The result of a builder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.ir import Var


@dataclass(frozen=True, eq=False)
class Built:
    """Statements that take the place of the user's nest.

    Attributes
    ----------
    nests : list of Stmt
        One after another; each a loop nest over one block.
    allocs : list of Var
        Buffers to allocate in the root block.
    """

    nests: list[Any]
    allocs: list[Var]
