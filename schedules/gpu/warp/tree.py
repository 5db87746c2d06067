"""The block tree of warp shuffles: a scan within each warp, then one over the warps' totals.

For T threads: each one makes 5 combines in its warp, log2(T / 32) over the totals (every warp
scans all of them, so that nothing goes back through memory) and one for its prefix. The only
barrier stands between the warps' totals and their readers: scans that follow one another leave
them in two arrays by the parity of their number, and between two scans of one parity stands the
barrier of the other. At every doubling the earlier operand is the one that came from the lower
thread: the combine need not commute.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.ir import int_const
from tvm_scan.schedules.common.sizes import element_parts
from tvm_scan.schedules.gpu.thread.banks import WARP
from tvm_scan.schedules.gpu.thread.barriers import all_wait, hidden, parity
from tvm_scan.schedules.gpu.thread.block_tree import BlockTree

__all__ = ["SHUFFLES", "WarpTree", "can_shuffle", "shuffled", "takes_warp_tree"]

#: Kinds of shuffles of the tree.
SHUFFLES = ("", "_up")
_ALL = 0xFFFFFFFF
#: Parts of an element that are selected, not branched over.
_SELECTED = 4
_WORDS = ("int32", "uint32", "int64", "uint64", "float32", "float64")


def can_shuffle(dtype: str) -> bool:
    """Return whether ``shuffled`` takes a value: 32 or 64 bits, or a smaller integer."""
    return dtype in _WORDS or dtype.startswith(("bool", "int8", "int16", "uint8", "uint16"))


def takes_warp_tree(recurrence: Recurrence, bits: int) -> bool:
    """Return whether every part of the elements can be shuffled, in words of so many bits."""
    return all(
        can_shuffle(dtype) and 8 * tir.byte_size(dtype) <= bits
        for _, dtype in element_parts(recurrence)
    )


def shuffled(kind: str, value: Any, other: Any, width: int = WARP) -> Any:
    """``value`` of another of 32 threads of a warp; all of them must take part.

    Parameters
    ----------
    kind : {"", "_up", "_xor"}
        Whether ``other`` is the number of the thread within ``width``, how far below it is, or
        what its number differs by.
    value : Expr
        Of a dtype that ``can_shuffle``, or a half.
    other : Expr or int
        Which thread.
    width : int
        Threads of a group; groups do not see each other.

    Returns
    -------
    Expr
    """
    dtype = tir.dtype_of(value)
    # A half is sent as the float32 that it is.
    word = dtype if dtype in _WORDS else "float32" if tir.is_half(dtype) else "int32"
    moved = tirx.call_intrin(
        word,
        f"tirx.tvm_warp_shuffle{kind}",
        tirx.IntImm("uint32", _ALL),
        value if word == dtype else tirx.Cast(word, value),
        int_const(other, "int32") if isinstance(other, int) else other,
        int_const(width, "int32"),
        int_const(WARP, "int32"),
    )
    return moved if word == dtype else tirx.Cast(dtype, moved)


class WarpTree(BlockTree):
    """Shuffles within warps, one element per warp in shared memory.

    The prefix of a thread is left in its own registers.
    """

    def allocate(self) -> None:
        """Registers, and the warps' totals if there are several."""
        self.warps = self.threads // WARP
        self.lane_in_warp = self.thread % int_const(WARP, self.thread)
        self.warp = self.thread // int_const(WARP, self.thread)
        self.left = self.keep("left", [], "local")
        if self.warps > 1:
            self.shared = self.keep("warps", [*self.row.lead, 2, self.warps], "shared")
            self.sums = self.keep("sums", [], "local")

    def scan(self, level: int, mine: Elements, total: Elements, number: Any = 0) -> list[Any]:
        """Statements of one scan; see ``BlockTree``."""
        left = self.left[level]
        stmts = self._inclusive(mine, left, WARP)
        if self.warps == 1:
            stmts.append(self._shuffle(total, mine, "", WARP - 1))
            return [*stmts, *self._exclusive(mine, left)]
        sums = self.sums[level]
        stmts.append(self._keep_total(level, mine, number))
        stmts += self._exclusive(mine, left)
        stmts += self._scan_totals(level, total, number)
        # The totals of the warps before this one; the first warp has none, and asks for any.
        one = int_const(1, self.warp)
        stmts.append(self._shuffle(left, sums, "", tirx.Max(self.warp - one, one - one)))
        after_first = self.warp > tir.zero_like(self.warp)
        stmts.append(self._combine(left, mine, after_first))
        return stmts

    def reduce(self, level: int, mine: Elements, total: Elements, number: Any = 0) -> list[Any]:
        """Statements of a scan of which only the aggregate is wanted."""
        left = self.left[level]
        stmts = self._inclusive(mine, left, WARP)
        if self.warps == 1:
            return [*stmts, self._shuffle(total, mine, "", WARP - 1)]
        stmts.append(self._keep_total(level, mine, number))
        return [*stmts, *self._scan_totals(level, total, number)]

    def _at(self, number: Any, warp: Any) -> list[Any]:
        """The index of the total of a warp."""
        return [*self.row.at, parity(number), warp]

    def _keep_total(self, level: int, mine: Elements, number: Any) -> Any:
        """The last thread of every warp leaves the warp's total in shared memory."""
        last = int_const(WARP - 1, self.thread)
        store = self.replica.copy(self.shared[level], self._at(number, self.warp), mine, [])
        return hidden(tirx.IfThenElse(tirx.EQ(self.lane_in_warp, last), store, None))

    def _scan_totals(self, level: int, total: Elements, number: Any) -> list[Any]:
        """Every warp scans the totals of all of them, the last of which is the block's."""
        sums = self.sums[level]
        # Threads beyond the warps' number repeat totals that nobody asks them for.
        warp = self.lane_in_warp % int_const(self.warps, self.lane_in_warp)
        return [
            all_wait(),
            hidden(self.replica.copy(sums, [], self.shared[level], self._at(number, warp))),
            *self._inclusive(sums, self.left[level], self.warps),
            self._shuffle(total, sums, "", self.warps - 1),
        ]

    def _inclusive(self, mine: Elements, left: Elements, count: int) -> list[Any]:
        """Doubling distances within the first ``count`` threads of every warp."""
        stmts: list[Any] = []
        distance = 1
        while distance < count:
            stmts.append(self._shuffle(left, mine, "_up", distance))
            reached = self.lane_in_warp >= int_const(distance, self.lane_in_warp)
            stmts.append(self._combine(left, mine, reached))
            distance *= 2
        return stmts

    def _exclusive(self, mine: Elements, left: Elements) -> list[Any]:
        """Make the inclusive prefixes of a warp exclusive."""
        first = tirx.EQ(self.lane_in_warp, tir.zero_like(self.lane_in_warp))
        return [
            self._shuffle(left, mine, "_up", 1),
            tirx.IfThenElse(
                first,
                self.replica.set_identity(mine, []),
                self.replica.copy(mine, [], left, []),
            ),
        ]

    def _shuffle(self, target: Elements, source: Elements, kind: str, other: Any) -> Any:
        def of_cell(i: int, cell: list[Any]) -> Any:
            parts = [shuffled(kind, part, other) for part in source.load(i, [], cell)]
            return target.store(i, [], cell, parts)

        return self.replica.for_each_element(source.level, of_cell)

    def _combine(self, left: Elements, mine: Elements, condition: Any) -> Any:
        """``mine = left`` followed by ``mine``, where a condition on the thread holds.

        Of few parts each is selected: threads that part at a branch must meet again before the
        next shuffle, which takes more instructions than that.
        """
        recurrence = self.replica.recurrence
        has_cells = any(carry.state_axes for carry in recurrence.carries)
        selects = not has_cells and len(element_parts(recurrence)) <= _SELECTED

        def of_cell(i: int, cell: list[Any]) -> Any:
            earlier, later = left.load(i, [], cell), mine.load(i, [], cell)
            parts = recurrence.groups[i].algebra.combine(earlier, later)
            if not selects:
                return mine.store(i, [], cell, parts)
            names = [tirx.Var(f"part{j}", tir.dtype_of(part)) for j, part in enumerate(parts)]
            binds = [tirx.Bind(name, part) for name, part in zip(names, parts, strict=True)]
            pairs = zip(names, later, strict=True)
            chosen = [tirx.Select(condition, new, old) for new, old in pairs]
            return tir.seq([*binds, mine.store(i, [], cell, chosen)])

        stmt = self.replica.for_each_element(mine.level, of_cell)
        return stmt if selects else tirx.IfThenElse(condition, stmt, None)

    def prefix(self, level: int, mine: Elements) -> tuple[Elements, list[Any]]:
        """Return the prefix, which lies in the thread's registers."""
        return mine, []
