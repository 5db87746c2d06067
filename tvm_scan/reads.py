"""Chains of functions through which a loop reads an array, as text.

The torch function of a recurrence has options that change what the recurrence reads: a scale, a
gate that is computed, keys that are divided by their norm. As operators of torch each would be a
pass over memory that wakes torch's threads beside those of the kernel. So a loop takes them as
text, for each array a chain of functions in their order, of numbers or the names of parameters::

    q: unit, times scale; w: plus dt_bias, softplus, rate A_log, times -1, exp; beta: sigmoid

=============  =========================================================================
``unit``       a cell over the root of 1e-6 and the sum of the squares of its row; first
``times p``    p times it
``plus p``     it and p
``rate p``     exp(p) times it
``exp``, ``sigmoid``, ``softplus``
=============  =========================================================================

`tvm_scan.loops.reads` has the chains as expressions, `tvm_scan.torch.ops.reads` as torch's
operators. This module imports neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

#: What is added to the sum of squares that a row is divided by the root of.
LEAST = 1e-6


@dataclass(frozen=True)
class Link:
    """A function of a chain, and its number or the name of its parameter."""

    name: str
    by: str | float | None = None

    @property
    def parameter(self) -> str | None:
        """The name of its parameter."""
        return self.by if isinstance(self.by, str) else None

    @property
    def is_cheap(self) -> bool:
        """Return whether it may be computed wherever a cell is read."""
        return self.name in ("times", "plus")


Chain = tuple[Link, ...]


@lru_cache(maxsize=256)
def reads_of(text: str) -> Mapping[str, Chain]:
    """Return the chains of a text by the names of the arrays; those that it leaves out have none.

    Parameters
    ----------
    text : str
        As above; empty where every array is read as it is.
    """
    chains = {}
    for part in text.split(";") if text else ():
        name, _, functions = part.partition(":")
        chains[name.strip()] = tuple(_link(link) for link in functions.split(","))
    return chains


@lru_cache(maxsize=256)
def parameters_of(text: str) -> frozenset[str]:
    """Return the names of the parameters of a text's chains."""
    links = (link for chain in reads_of(text).values() for link in chain)
    return frozenset(link.parameter for link in links if link.parameter is not None)


def _link(text: str) -> Link:
    name, *by = text.split()
    if not by:
        return Link(name)
    try:
        return Link(name, float(by[0]))
    except ValueError:
        return Link(name, by[0])
