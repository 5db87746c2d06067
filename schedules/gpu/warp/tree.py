"""The block tree of warp shuffles: a scan within each warp, then one over the warps' totals.

For T threads: each one makes 5 combines in its warp. The totals of few warps every thread takes in
turn: from the carries before the block, where they are known, it applies them to these, which costs
less than to combine them if elements have more parts. Else each makes log2(T / 32) combines over
the totals (every warp scans all of them, so that nothing goes back through memory) and one for its
prefix. The only barrier stands between the warps' totals and their readers: scans that follow one
another leave them in two arrays by the parity of their number, and between two scans of one parity
stands the barrier of the other. At every doubling the earlier operand is the one that came from the
lower thread: the combine need not commute.

A warp takes cheaper formulas where there are some, and looks whether they did damage: see
``formulas``.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.ir import int_const
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.sizes import element_parts
from tvm_scan.schedules.gpu.thread.banks import WARP
from tvm_scan.schedules.gpu.thread.barriers import all_wait, hidden, parity
from tvm_scan.schedules.gpu.thread.block_tree import BlockTree
from tvm_scan.schedules.gpu.warp.formulas import Formulas, exact, watched, with_care
from tvm_scan.schedules.gpu.warp.shuffles import shuffled

#: Parts of an element that are selected, not branched over.
_SELECTED = 4
#: Warps whose totals a thread takes one after another.
_IN_TURN = 8


def is_ahead(recurrence: Recurrence, level: int, warps: int) -> bool:
    """Return whether a scan makes the carries themselves, and not the elements of their way."""
    groups = [group for group in recurrence.groups if group.level == level]
    if any(recurrence.state_axes(group) for group in groups):
        return False  # no registers for as many more
    # Of elements with no more parts than carries, a combine costs what an application does.
    wide = any(len(group.algebra.dtypes) > len(group.carries) for group in groups)
    return (in_turn(recurrence, level, warps) and wide) or watched(recurrence, level)


def in_turn(recurrence: Recurrence, level: int, warps: int) -> bool:
    """Return whether threads take the totals of the warps one after another."""
    cells = [recurrence.state_axes(g) for g in recurrence.groups if g.level == level]
    return 1 < warps <= _IN_TURN and not any(cells)


def selects(recurrence: Recurrence) -> bool:
    """Return whether parts of an element are few enough to be selected, not branched over."""
    has_cells = any(carry.state_axes for carry in recurrence.carries)
    return not has_cells and len(element_parts(recurrence)) <= _SELECTED


class WarpTree(BlockTree):
    """Shuffles within warps, one element per warp in shared memory.

    The prefix of a thread is left in its own registers.
    """

    def allocate(self) -> None:
        """Registers, and the warps' totals if there are several."""
        self.warps = self.threads // WARP
        self.lane_in_warp = self.thread % WARP
        self.warp = self.thread // WARP
        self.left = self.keep("left", [], "local")
        if self.warps > 1:
            self.shared = self.keep("warps", [*self.row.lead, 2, self.warps], "shared")
            self.sums = self.keep("sums", [], "local")
        self.unchanged = Elements.of_levels(self.replica.recurrence, "unchanged", [], "local")
        self.before_warp = self.replica.like("_warp")
        self.before, self.after = self.replica.like("_before"), self.replica.like("_after")

    def buffers_of(self, levels: range) -> list[Var]:
        """Buffers of the tree that scans of some levels use."""
        recurrence, ahead = self.replica.recurrence, [n for n in levels if self._is_ahead(n)]
        unchanged = [self.unchanged[level] for level in levels if watched(recurrence, level)]
        carries = [self.before_warp, self.before, self.after]
        return [
            *super().buffers_of(levels),
            *(buffer for elements in unchanged for buffer in elements.buffers),
            *(buffer for replica in carries for buffer in replica.states_of(ahead)),
        ]

    def _is_ahead(self, level: int) -> bool:
        return is_ahead(self.replica.recurrence, level, self.warps)

    def _in_turn(self, level: int) -> bool:
        return in_turn(self.replica.recurrence, level, self.warps)

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
        none = tir.zero_like(self.warp)
        stmts.append(self._shuffle(left, sums, "", tirx.Max(self.warp - 1, none)))
        after_first = self.warp > none
        stmts.append(self._combine(left, mine, after_first))
        return stmts

    def scan_from(
        self, running: Replica, level: int, mine: Elements, total: Elements, number: Any = 0
    ) -> list[Any]:
        """Statements of one scan of which carries are wanted; see ``BlockTree``."""
        if not self._is_ahead(level):
            return self.scan(level, mine, total, number)
        if not self._in_turn(level):
            stmts = self.scan(level, mine, total, number)
            return [*stmts, self._carried(running, level, mine, [(total, [])])]
        stmts = self._inclusive(mine, self.left[level], WARP)
        stmts.append(self._keep_total(level, mine, number))
        stmts += [*self._exclusive(mine, self.left[level]), all_wait()]
        totals = [(self.shared[level], self._at(number, warp)) for warp in self._each_warp()]
        return [*stmts, hidden(self._carried(running, level, mine, totals))]

    def restore(self, running: Replica, level: int, mine: Elements) -> Any:
        """The carries before the thread's first step, in ``replica``."""
        if not self._is_ahead(level):
            return super().restore(running, level, mine)
        return self.replica.copy_carries(level, self.before)

    def move_on(self, running: Replica, level: int, total: Elements) -> Any:
        """The carries after the block's last step, in ``running``."""
        if not self._is_ahead(level):
            return super().move_on(running, level, total)
        return running.copy_carries(level, self.after)

    def _carried(
        self,
        running: Replica,
        level: int,
        mine: Elements,
        totals: list[tuple[Elements, list[Any]]],
    ) -> Any:
        """The carries of a level before the warp, before the thread and after the block.

        ``totals`` follow one another, from ``running`` on. Of several each is a warp's; one is
        what the block's threads have scanned to the end.
        """

        def through(formulas: Formulas) -> Any:
            stmts = [self.before_warp.copy_carries(level, running)]
            stmts.append(self.after.copy_carries(level, running))
            for warp, (total, at) in enumerate(totals):
                if warp:
                    here = tirx.EQ(self.warp, int_const(warp, self.warp))
                    begins = self.before_warp.copy_carries(level, self.after)
                    stmts.append(tirx.IfThenElse(here, begins, None))
                stmts.append(self.after.apply(total, at, formulas=formulas))
            stmts.append(self.before.apply(mine, [], self.before_warp, formulas=formulas))
            return tir.seq(stmts)

        recurrence = self.replica.recurrence
        return with_care(recurrence, level, through, [self.before, self.after])

    def reduce(self, level: int, mine: Elements, total: Elements, number: Any = 0) -> list[Any]:
        """Statements of a scan of which only the aggregate is wanted."""
        left = self.left[level]
        stmts = self._inclusive(mine, left, WARP)
        if self.warps == 1:
            return [*stmts, self._shuffle(total, mine, "", WARP - 1)]
        stmts.append(self._keep_total(level, mine, number))
        if not self._in_turn(level):
            return [*stmts, *self._scan_totals(level, total, number)]
        return [*stmts, all_wait(), hidden(self._reduced(level, total, number))]

    def _each_warp(self) -> list[Any]:
        return [int_const(warp, self.warp) for warp in range(self.warps)]

    def _reduced(self, level: int, total: Elements, number: Any) -> Any:
        """The totals of the warps, one after another."""
        shared = self.shared[level]

        def through(formulas: Formulas) -> Any:
            first, *others = self._each_warp()
            stmts = [self.replica.copy(total, [], shared, self._at(number, first))]
            for warp in others:
                at = self._at(number, warp)

                def of_cell(i: int, cell: list[Any], at: Any = at) -> Any:
                    combine = formulas(self.replica.recurrence.groups[i].algebra).combine
                    parts = combine(total.load(i, [], cell), shared.load(i, at, cell))
                    return total.store(i, [], cell, parts)

                stmts.append(self.replica.for_each_element(level, of_cell))
            return tir.seq(stmts)

        return with_care(self.replica.recurrence, level, through, [total])

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
        warp = self.lane_in_warp % self.warps
        return [
            all_wait(),
            hidden(self.replica.copy(sums, [], self.shared[level], self._at(number, warp))),
            *self._inclusive(sums, self.left[level], self.warps),
            self._shuffle(total, sums, "", self.warps - 1),
        ]

    def _inclusive(self, mine: Elements, left: Elements, count: int) -> list[Any]:
        """Doubling distances within the first ``count`` threads of every warp."""
        level, copy, recurrence = mine.level, self.replica.copy, self.replica.recurrence

        def through(formulas: Formulas) -> Any:
            stmts: list[Any] = []
            distance = 1
            while distance < count:
                stmts.append(self._shuffle(left, mine, "_up", distance))
                reached = self.lane_in_warp >= distance
                stmts.append(self._combine(left, mine, reached, formulas))
                distance *= 2
            return tir.seq(stmts)

        if not watched(recurrence, level):
            return [through(exact)]
        unchanged = self.unchanged[level]
        again = copy(mine, [], unchanged, [])
        return [copy(unchanged, [], mine, []), with_care(recurrence, level, through, [mine], again)]

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

    def _combine(
        self, left: Elements, mine: Elements, condition: Any, formulas: Formulas = exact
    ) -> Any:
        """``mine = left`` followed by ``mine``, where a condition on the thread holds.

        Of few parts each is selected: threads that part at a branch must meet again before the
        next shuffle, which takes more instructions than that.
        """
        recurrence = self.replica.recurrence
        chooses = selects(recurrence)

        def of_cell(i: int, cell: list[Any]) -> Any:
            earlier, later = left.load(i, [], cell), mine.load(i, [], cell)
            parts = formulas(recurrence.groups[i].algebra).combine(earlier, later)
            if not chooses:
                return mine.store(i, [], cell, parts)
            names = [tirx.Var(f"part{j}", tir.dtype_of(part)) for j, part in enumerate(parts)]
            binds = [tirx.Bind(name, part) for name, part in zip(names, parts, strict=True)]
            pairs = zip(names, later, strict=True)
            chosen = [tirx.Select(condition, new, old) for new, old in pairs]
            return tir.seq([*binds, mine.store(i, [], cell, chosen)])

        stmt = self.replica.for_each_element(mine.level, of_cell)
        return stmt if chooses else tirx.IfThenElse(condition, stmt, None)

    def prefix(self, level: int, mine: Elements) -> tuple[Elements, list[Any]]:
        """Return the prefix, which lies in the thread's registers."""
        return mine, []
