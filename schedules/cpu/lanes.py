"""The schedule in which every lane is a serial scan, over cores and the cells of vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from tvm.ir import Call

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.branch import Branch, powers
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.sizes import known_extent, known_rows
from tvm_scan.schedules.cpu.cost.lanes import lanes_work
from tvm_scan.schedules.cpu.cost.parts import past_share
from tvm_scan.schedules.cpu.cost.step import Step, step_of
from tvm_scan.schedules.cpu.cost.strips import jumping
from tvm_scan.schedules.cpu.lane_nests import build_lanes
from tvm_scan.schedules.cpu.lane_streams import (
    TILE_STEPS,
    gains_by_lane_tiles,
    loads_across_lanes,
    takes_lane_tiles,
)
from tvm_scan.schedules.cpu.plans import (
    CpuPlan,
    has_ldexp,
    pages_ahead,
    past_caches,
    vector_branches,
    vector_plans,
)
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_cost import CpuWork
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import Picture, Serial, Tiles

#: Lanes that a default may take at once where they lie rows apart, all that there are, and the
#: share of the nearest cache that they then may fill: sums of 400, 450 and 512 rows of 8 steps in
#: one block take a Zen 4 1.5, 1.9 and 2.7 us.
_WHOLE, _FILLED = 512, 0.8
#: Nearest caches of which one block in tiles is worth a try.
_TILED = 4.0
#: Steps ahead of which strips of rows ask: sums of 4096 columns of 4096 steps take a Zen 4 4.3 ms
#: if they do not, 3.6 if 8 steps ahead, 3.0 if 16 or 32, a copy 2.5.
_AHEAD = 16
#: The same of steps so long that a processor looks no step ahead: each waits for memory. Selective
#: scans of 27594 channels of 64 steps take a Zen 4 in strips of 16 lanes 10.8 ms if they do not
#: ask, 6.3 if 16 steps ahead and 5.4 if 2; in strips of 128 5.6, 4.9 and 4.8.
_LONG_STEPS = 2
#: How many times as large as the last cache are arrays of which strips that are stored through the
#: caches gain by it. Sums of 4096 x 1200, 39 MB, in strips of 256 take a Zen 4 1.0 ms so and 0.6 if
#: nobody asks; of 640 x 32000, 164 MB, in strips of 128 9.2 and 11.6.
_FAR = 4.0
#: The least share of lines that strips and tiles, and vectors of time, store past the caches; the
#: others go through these. Linear recurrences of 13819 rows of 148 steps of 8 bytes, half of them
#: past the caches, take a Zen 4 1.1 ms, and 0.8 if none is; strips of such rows take less so.
_PAST, _PAST_ALONG_TIME = 0.45, 0.6
#: Calls for which ``library_math`` decides.
_TRANSCENDENTAL = ("exp", "exp2", "log", "log2", "log1p", "tanh", "sigmoid", "pow")


@dataclass(frozen=True)
class Lanes(CpuPlan):
    """Every lane is a serial scan; lanes over cores, and over vectors of lanes or of time.

    Attributes
    ----------
    lane_block, vectorize, time_vector, time_runs, transpose, prefetch, nontemporal, ldexp,
    library_math
        See ``CpuPlan``.
    """

    algorithm: ClassVar[str] = "lanes"
    lane_block: int = 1
    vectorize: bool = False
    time_vector: int = 0
    time_runs: bool = False
    transpose: bool = False
    prefetch: int = 0
    nontemporal: bool = False
    ldexp: bool = False
    library_math: bool = False

    @property
    def kind(self) -> tuple[Any, ...]:
        """Lanes one by one, in vectors, transposed into vectors, or vectors of time."""
        return self.device, self.algorithm, self.vectorize, self.transpose, self.time_vector > 0

    def check_fit(self, recurrence: Recurrence, machine: Machine) -> None:
        """Check lanes, vectors, tiles, and what the processor has."""
        self.check_block()
        self.check_vectors(recurrence)
        self._check_transpose(recurrence)
        self.require(
            self.prefetch == 0
            or bool(self.transpose or self.time_vector)
            or bool(loads_across_lanes(recurrence)),
            "inputs whose neighbouring lanes are neighbours in memory, or transpose, for prefetch",
            f"none, prefetch={self.prefetch}",
            "leave prefetch at 0",
        )
        self.check_instructions(recurrence, machine)

    def _check_transpose(self, recurrence: Recurrence) -> None:
        if not self.transpose:
            return
        self.require(
            self.vectorize and self.lane_block % 16 == 0,
            "lanes in vectors, a multiple of 16 in a block",
            f"vectorize={self.vectorize}, lane_block={self.lane_block}",
            "use lanes(lane_block=32, vectorize=True, transpose=True)",
        )
        self.require(
            takes_lane_tiles(recurrence),
            "inputs or outputs along time, a row apart for neighbouring lanes",
            "none of four or eight bytes",
            "leave transpose at False",
        )

    def build(self, recurrence: Recurrence) -> Built:
        """Return a nest for every width of block."""
        return build_lanes(recurrence, self)

    def work(self, step: Step, chip: CpuChip) -> CpuWork:
        """Count what the plan does."""
        return lanes_work(self, step, chip)

    @classmethod
    def space(cls, recurrence: Recurrence, machine: Machine) -> Iterator[Branch]:
        """Yield lanes one by one, in vectors, in transposed tiles, and vectors of time."""
        # A guard, or no lanes at all, leaves one lane to a task whatever the plan says.
        alone = not recurrence.lanes or recurrence.guard is not None
        lanes = 1 if alone else known_extent(recurrence.lanes[-1].extent)
        if known_rows(recurrence) > 1:
            widths = tuple(w for w in (1, 2, 4, 8, 16) if _is_used(w, lanes))
            yield Branch(cls(), (("lane_block", widths),))
        yield from cls._in_vectors(machine, recurrence, lanes)
        yield from vector_branches(cls(), machine, recurrence, ())

    @classmethod
    def _in_vectors(cls, machine: Machine, recurrence: Recurrence, lanes: int) -> Iterator[Branch]:
        """Lanes in vectors: neighbours in memory, or transposed from rows."""
        widths = tuple(w for w in powers(4, 4096) if _is_used(w, lanes))
        if not widths:
            return
        maths = (("library_math", (0, 1)),) if _is_transcendental(recurrence) else ()
        base = cls(vectorize=True, ldexp=has_ldexp(machine, recurrence))
        past = past_caches(machine, recurrence, recurrence.lanes[-1].var)
        ahead = _steps_ahead(recurrence, machine.chip)
        asks = (("prefetch", (0, ahead)),) if ahead else ()
        yield Branch(base, (("lane_block", widths), *maths, *asks, *past))
        squares = tuple(w for w in widths if w % 16 == 0 and w <= 256)
        if squares and gains_by_lane_tiles(recurrence):
            past = past_caches(machine, recurrence, recurrence.time.var)
            base = base.with_(transpose=True, lane_block=squares[0])
            yield Branch(base, (("lane_block", squares), ("prefetch", (0, 1, 2, 4)), *past))

    @classmethod
    def shortlist(cls, recurrence: Recurrence, machine: Machine) -> Iterator[Lanes]:
        """Yield lanes one by one, in vectors, in tiles, and vectors of time, simple ones first."""
        step = step_of(recurrence)
        # A guard leaves one lane to a task whatever the plan says.
        alone = recurrence.guard is not None or not recurrence.lanes
        for width in (1, 2, 4, 8) if not alone else (1,):
            if _is_used(width, step.lanes):
                yield cls(lane_block=width)
        ldexp = has_ldexp(machine, recurrence)
        past = (False, True) if machine.line_stores else (False,)
        if not alone:
            whole = _whole(step, machine.chip)
            ahead = {p: _steps_ahead(recurrence, machine.chip, past=p) for p in (False, True)}
            yield from cls._strips(step, ldexp, past, whole, ahead)
            if gains_by_lane_tiles(recurrence):
                tiles = cls(vectorize=True, transpose=True, prefetch=1, ldexp=ldexp)
                # Lines that are stored past the caches are not asked for: of plans that are as good
                # by what is counted, those take less (selective scans of 2 x 1536 x 2048 0.92 of
                # the time, and log-sum-exps of 33 MB 0.77).
                is_large = step.touched > machine.chip.shared / 2
                order = past[::-1] if is_large else past
                whole = _whole(step, machine.chip, of_tiles=True)
                for width, line in product(sorted({16, 32, 64, max(16, whole)}), order):
                    plan = tiles.with_(lane_block=width, nontemporal=line)
                    if _is_used(width, step.lanes) and (
                        not line or past_share(plan, step) >= _PAST
                    ):
                        yield plan
        base = cls(ldexp=ldexp, prefetch=pages_ahead(machine, recurrence))
        for plan in vector_plans(base, recurrence):
            for line in past if plan.time_vector <= step.length else ():
                plan = plan.with_(nontemporal=line)
                if not line or past_share(plan, step) >= _PAST_ALONG_TIME:
                    yield plan

    @classmethod
    def _strips(
        cls, step: Step, ldexp: bool, past: tuple[bool, ...], whole: int, ahead: dict[bool, int]
    ) -> Iterator[Lanes]:
        """Vectors of lanes: strips of memory rows where lanes are neighbours there.

        They ask for lines so many steps ahead where they store past the caches, and where not.
        """
        neighbours = any(a.along_lane == 1 for a in step.accesses)
        base = cls(vectorize=True, ldexp=ldexp)
        # Several vectors hide the waits of one another's polynomials.
        widest = 2048 if neighbours else 64 if step.transcendental else 16
        for width in powers(4, max(widest, whole)):
            if (width <= widest and _is_used(width, step.lanes)) or width == whole:
                for line in past if neighbours and width >= 16 else (False,):
                    plan = base.with_(lane_block=width, nontemporal=line, prefetch=ahead[line])
                    # Of rows that begin within a line, the lines that strips share are written both
                    # ways: 6240 x 330 maxima of 8 bytes take a Zen 4 twice as long as without. Of
                    # those of which every other one begins at a line they take less (3000 x 3000
                    # sums 1.6 instead of 2.2 ms).
                    if not line or past_share(plan, step) >= _PAST:
                        yield plan

    def picture(self, recurrence: Recurrence) -> Picture:
        """Return lanes side by side; of vectors, what is in a vector."""
        if self.time_vector:
            what = f"one lane after another; {self.time_vector} steps of a lane at a time"
            return Picture((("cores", what),), (self.drawn_vector(),))
        how = "in vectors" if self.vectorize else "interleaved"
        together = f"{self.lane_block} lanes {how}" if self.lane_block > 1 else "one lane"
        cores = ("cores", f"blocks of lanes side by side; {together} at a time")
        serial = Serial("lane", "block")
        drawings = (Tiles(self.lane_block), serial) if self.transpose else (serial,)
        return Picture((cores,), drawings)


def _steps_ahead(recurrence: Recurrence, chip: CpuChip, *, past: bool = True) -> int:
    """Steps ahead of which strips ask for lines, which no prefetcher follows.

    Of what the last cache holds short steps take longer: linear recurrences of 329 columns of 5547
    steps, 22 MB, take a Zen 4 in strips of 128 0.6 ms if nobody asks, 1.1 else; of 1400 columns of
    10000 steps in strips of 64 12.5 and 9.3. So do strips that are not stored past the caches where
    arrays are not much larger.

    Parameters
    ----------
    recurrence : Recurrence
        What runs.
    chip : CpuChip
        Where.
    past : bool
        Whether strips are stored past the caches.
    """
    step = step_of(recurrence)
    if not jumping(step) or not loads_across_lanes(recurrence):
        return 0
    if step.is_long:
        return _LONG_STEPS if step.touched > chip.private else 0
    return _AHEAD if step.touched > chip.shared * (1.0 if past else _FAR) else 0


def _is_used(width: int, lanes: int) -> bool:
    """Return whether a block of so many is worth a try: not where one of half as many holds all."""
    return width < 2 * lanes


def _whole(step: Step, chip: CpuChip, *, of_tiles: bool = False) -> int:
    """Lanes of one block of all; 0 where they are too many, or there is too much in them.

    It needs no pool, which takes longer to wake than little work takes. Of tiles the nearest cache
    has to hold one at a time: linear recurrences of 128 rows of 32 steps, 49 KB, take one core of a
    Zen 4 1.6 us, and two that wake slowly 2.3.

    Parameters
    ----------
    step : Step
        What a step does.
    chip : CpuChip
        Where.
    of_tiles : bool
        Whether the block goes through time in tiles.
    """
    lanes = 1 << (step.lanes - 1).bit_length()
    at_once = step.touched
    if of_tiles and at_once <= _TILED * chip.nearest:
        at_once *= min(1.0, TILE_STEPS / step.length)
    return lanes if lanes <= _WHOLE and at_once <= _FILLED * chip.nearest else 0


def _is_transcendental(recurrence: Recurrence) -> bool:
    names = [tir.call_name(call) or "" for call in tir.nodes(recurrence.body, Call)]
    return any(name.rpartition(".")[2] in _TRANSCENDENTAL for name in names)
