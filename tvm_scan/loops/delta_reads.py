"""The way back through what a delta rule reads of its arrays; see `tvm_scan.reads`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm.ir import Expr

from tvm_scan.loops.delta_walk import Walk
from tvm_scan.loops.reads import pulled
from tvm_scan.loops.writer import Cells
from tvm_scan.reads import Chain


class ReadsAdjoint:
    """Turns the gradients of what is read into those of the arrays, in their place.

    Parameters
    ----------
    walk : Walk
        The task; to the parameters of its loop the gradients of the parameters of the chains are
        added, for each sequence.
    gradients : mapping of str to Cells
        Of the arrays, by their names.
    """

    def __init__(self, walk: Walk, gradients: Mapping[str, Cells]) -> None:
        self.loop, self.walk, self.gradients = walk.loop, walk, gradients
        arrays = walk.arrays
        #: That of a gate is that of its logarithm already.
        self.chains = {n: c[:-1] if n == "w" else c for n, c in arrays.chains.items()}
        self.chains = {name: chain for name, chain in self.chains.items() if chain}
        self.learned = {
            name: self.loop.array(f"g_{name}", (walk.batch, *shape), walk.dtype)
            for name, shape in arrays.learned.items()
        }

    def write(self, head: Expr) -> None:
        """Write the gradients of a head of the keys, and of the heads of values that share it."""
        walk, group = self.walk, self.walk.arrays.group
        rows = [name for name in self.chains if name in ("q", "k", "a", "b")]
        others = [name for name in self.chains if name not in rows]
        if self.chains:
            self._allocate()
        if rows:
            with self.loop.over(walk.steps, "t") as t:
                for name in rows:
                    self._row(name, t, head)
        if others:
            with self.loop.over(group, "h") as h:
                walk.at(walk.s, head * group + h, 0)
                for name in others:
                    self._head(name)

    def _allocate(self) -> None:
        vector, cell = self.walk.rows.vector, self.loop.cell
        longest = max(map(len, self.chains.values()))
        dtype = self.walk.dtype
        self._saved = [cell(f"saved_{n}", dtype, vector) for n in range(longest)]
        self._gradient, self._dot = (cell(n, dtype, vector) for n in ("pulled", "dot"))
        # Without a use outside of vector loops TVM would shrink these to one cell.
        for cells in (*self._saved, self._gradient):
            with self.loop.over(vector, "x") as x:
                cells[x] = 0
        self._norm, self._along = (cell(n, dtype) for n in ("over_norm", "along"))
        self._sums = {
            name: cell(f"sum_{name}", dtype, self._cells_of(name)) for name in self.learned
        }

    def _cells_of(self, name: str) -> int:
        """Cells of the sum over time of the gradient of a parameter."""
        return self.walk.keys if self._has_rows(name) else self.walk.rows.vector

    def _has_rows(self, name: str) -> bool:
        return len(self.walk.arrays.learned[name]) > 1

    def _row(self, name: str, t: Expr, head: Expr) -> None:
        """Write the gradient of a row that all heads of values of a head of keys read."""
        walk, rows, chain = self.walk, self.walk.rows, self.chains[name]
        gradient, token = self.gradients[name], walk.token(t)
        h = head * walk.arrays.group
        raw, at = walk.arrays.cell(name, token, h), (token, head)
        if chain[0].name != "unit":
            with rows.vectors() as (x, i):
                self._pull(chain, raw(i), (*at, i), gradient, x, walk.arrays.parameter(h, i))
            return
        norm, along = self._norm, self._along
        norm[0] = walk.over_norm(raw)
        rows.clear(self._dot)
        with rows.vectors() as (x, i):
            unit, parameter = raw(i) * norm[0], walk.arrays.parameter(h, i)
            self._pull(chain[1:], unit, (*at, i), gradient, x, parameter)
            self._dot[x] = self._dot[x] + gradient[at, i] * raw(i)
        along[0] = rows.halved(self._dot) * norm[0] * norm[0]
        with rows.vectors() as (_, i):
            across = gradient[at, i] - raw(i) * along[0]
            gradient[at, i] = norm[0] * across

    def _head(self, name: str) -> None:
        """Write the gradient of what a head of values has, and of the parameters, over time."""
        walk, chain, arrays = self.walk, self.chains[name], self.walk.arrays
        rows, gradient, h = walk.rows, self.gradients[name], walk.h
        learned = [link.parameter for link in chain if link.parameter in self.learned]
        for parameter in learned:
            with self.loop.over(self._cells_of(parameter), "x") as x:
                self._sums[parameter][x] = 0
        with self.loop.over(walk.steps, "t") as t:
            token = walk.token(t)
            raw = arrays.cell(name, token, h)
            if arrays.has_rows(name):
                with rows.vectors() as (x, i):
                    at = (token, h, i)
                    self._pull(chain, raw(i), at, gradient, x, arrays.parameter(h, i), i)
            else:
                self._pull(chain, raw(0), (token, h), gradient, 0, arrays.parameter(h), 0)
        for parameter in learned:
            sums, target = self._sums[parameter], self.learned[parameter]
            if self._has_rows(parameter):
                with self.loop.over(walk.keys, "i") as i:
                    target[walk.s, h, i] = sums[i]
            else:
                target[walk.s, h] = rows.halved(sums)

    def _pull(
        self,
        chain: Chain,
        x: Expr,
        at: Any,
        gradient: Cells,
        lane: Any,
        parameter: Callable[[str], Expr],
        row: Any = None,
    ) -> None:
        """Write the gradient of a cell, and add those of its parameters to their sums."""
        self._gradient[lane] = gradient[at]
        saved = self._saved[: len(chain)]
        for name, cells in pulled(chain, x, self._gradient, lane, parameter, saved).items():
            where = row if self._has_rows(name) else lane
            self._sums[name][where] = self._sums[name][where] + cells[lane]
        gradient[at] = self._gradient[lane]
