"""The plan that is used when nobody tuned: a few rules, each with its reason."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.algebra import Affine, Algebra, Reduce
from tvm_scan.algebra.literal import is_float
from tvm_scan.arguments import as_recurrence, as_target
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.choose.gpu_default import cuda_default
from tvm_scan.schedules.common.branches import stays_in_vectors
from tvm_scan.schedules.common.sizes import element_bytes, known_extent
from tvm_scan.schedules.common.strides import contiguous_axis, time_is_outside, walks_backwards
from tvm_scan.schedules.cpu.lane_streams import takes_lane_tiles
from tvm_scan.schedules.cpu.lanes import Lanes
from tvm_scan.schedules.cpu.line_stores import takes_line_stores
from tvm_scan.schedules.cpu.plans import CpuPlan
from tvm_scan.schedules.cpu.sequential import Sequential
from tvm_scan.schedules.cpu.three_phase import ThreePhase
from tvm_scan.schedules.cpu.vector_math import has_transcendentals
from tvm_scan.schedules.cpu.vector_values import takes_time_vectors
from tvm_scan.schedules.machine.limits import Limits, device_of, limits_of
from tvm_scan.schedules.plan import ScanPlan

__all__ = ["default_plan", "host_target"]

# Thresholds on a CPU, measured by bench/defaults.py: below them the sequential loop is as fast,
# because starting TVM's thread pool costs about a microsecond.
#: Steps times lanes from which lanes over cores pay.
_LANE_WORK = 1 << 13
#: The same where the sequential loop has its contiguous lanes innermost, already in vectors.
_VECTOR_WORK = 1 << 18
#: Length from which cutting a lane into chunks pays for the second pass.
_CHUNK_LENGTH = 1 << 13
#: Lanes of float32 in a page of memory, beyond which the prefetcher does not look.
_PAGE = 1024
#: Widest strip of lanes: its carries stay in the first-level cache.
_WIDEST_STRIP = 2048
#: The same for a one-cycle step.
_QUICK_WORK = 1 << 16
#: Independent chains that hide the latency of one multiply-add on current cores.
_INTERLEAVE = 4
#: A state of several cells costs about this many simple steps per cell (it has an exp).
_STATE_COST = 4
#: Lengths from which vectors of time pay for one lane, for several lanes with narrow vectors
#: (shorter ones have neighbours that hide their latency), and for one lane on several cores: waking
#: these twice takes up to 0.2 ms where they sleep, which is what one core needs for 2^19 steps.
_VECTOR_LENGTH = 1 << 8
_LONG_ROW = 1 << 9
_SHARED_LENGTH = 1 << 19
#: Steps from which the cost of a row's loop does not count.
_UNROLLED = 3 << 5
#: Lanes that fill a vector.
_TILE_LANES = 16
#: Steps from which a tile's turns are small beside them.
_TILED_LENGTH = 256


def host_target() -> Target:
    """Return this machine's CPU with its own instruction set (``mcpu="native"`` means generic)."""
    return Target.from_device("cpu")


def default_plan(
    target: Target | None, recurrence: Recurrence, limits: Limits | None = None
) -> ScanPlan:
    """Choose a plan without tuning.

    Parameters
    ----------
    target : tvm.target.Target, str or None
        Where it will run; this machine's CPU if None.
    recurrence : Recurrence
        What will run. Extents that are symbolic are taken as large.
    limits : Limits, optional
        Of a machine that is not this one; else what ``limits_of`` says of the target.

    Returns
    -------
    ScanPlan
        A plan that passes ``check``.

    Raises
    ------
    RefusalError
        If it is a refusal.
    ScanError
        If it is no recurrence, or the target is none.
    """
    recurrence = as_recurrence(recurrence, "default_plan")
    target = as_target(target, "default_plan") or host_target()
    limits = limits or limits_of(target)
    rows, length = known_extent(_rows(recurrence)), known_extent(recurrence.time.extent)
    if device_of(target) == "cuda":
        return cuda_default(limits, recurrence)
    plan = _for_machine(_cpu(limits, recurrence, rows, length), limits, recurrence)
    if plan.keeps_loop and _rounds_carries(recurrence):
        # The loop as it was written would round its carry to a half at every step.
        return Lanes()
    return plan


def _for_machine(plan: CpuPlan, limits: Limits, recurrence: Recurrence) -> ScanPlan:
    """The plan with the instructions of this machine."""
    if not (plan.vectorize or plan.time_vector):
        return plan
    along = recurrence.time.var if plan.time_vector or plan.transpose else None
    if along is None:
        along = recurrence.lanes[-1].var if recurrence.lanes else recurrence.time.var
    past = limits.line_stores and takes_line_stores(recurrence, along)
    # Rows that lie apart are written a line here and a line there: that pays earlier.
    large = limits.cache_bytes // (4 if plan.transpose else 1)
    outside = max((_bytes(b) for b in recurrence.outputs), default=0) >= large
    ahead = {"prefetch": 1} if plan.transpose else {}
    return plan.with_(
        nontemporal=past and outside,
        ldexp=limits.ldexp and has_transcendentals(recurrence),
        **ahead,
    )


def _bytes(buffer: Any) -> int:
    cells = prod(known_extent(extent) for extent in tir.shape_of(buffer))
    return cells * tir.byte_size(tir.dtype_of(buffer))


def _streams(recurrence: Recurrence) -> int:
    """Bytes of all that is read and written."""
    return sum(map(_bytes, _arrays(recurrence)))


def _read_only(recurrence: Recurrence) -> list[Any]:
    return [b for b in recurrence.inputs if not any(b.same_as(o) for o in recurrence.outputs)]


def _rounds_carries(recurrence: Recurrence) -> bool:
    return any(tir.is_half(tir.dtype_of(c.register.buffer)) for c in recurrence.carries)


def _rows(recurrence: Recurrence) -> Any:
    total: Any = tirx.IntImm("int64", 1)
    for lane in recurrence.lanes:
        extent = lane.extent
        total = total * (extent if tir.dtype_of(extent) == "int64" else tirx.Cast("int64", extent))
    return tir.simplify(total)


def _cpu(limits: Limits, recurrence: Recurrence, rows: int, length: int) -> CpuPlan:
    sequential = Sequential()
    work = rows * length
    if not _is_light(recurrence):
        # Elements cost several times the step, and the replayed body about twice the loop that
        # LLVM makes of the original: on a few cores the loop wins, unless lanes fill its vectors.
        across = _vector_lanes(recurrence, limits, rows, work)
        if across and across.transpose and _has_wide_integers(recurrence):
            return Lanes(lane_block=_INTERLEAVE)
        busy = rows >= 2 * limits.cores >= 8 and work >= _QUICK_WORK
        return across or (Lanes() if busy else sequential)
    if any(carry.state_axes for carry in recurrence.carries):
        # The cells of the state already are independent chains; only cores are left to fill.
        cells = element_bytes(recurrence) // 8
        if work * cells * _STATE_COST < _LANE_WORK:
            return sequential
        channels = known_extent(recurrence.lanes[-1].extent) if recurrence.lanes else 1
        if channels >= 16:
            # Channels in the vector: the exponentials of a state become polynomials.
            width = 32 if channels >= 32 * limits.cores else 16
            return Lanes(
                lane_block=width,
                vectorize=True,
                transpose=takes_lane_tiles(recurrence),
            )
        if rows >= min(limits.cores, 4) or limits.cores < 4:
            return Lanes() if rows > 1 else sequential
        return ThreePhase(chunks=limits.cores)
    if contiguous_axis(recurrence) == "lane":
        lanes = known_extent(recurrence.lanes[-1].extent)
        # Strips of half a core's share keep the memory rows long for the prefetcher.
        strip = min(lanes // (2 * limits.cores) // 32 * 32, _WIDEST_STRIP)
        from_memory = _streams(recurrence) >= limits.cache_bytes
        if time_is_outside(recurrence):
            # One core already streams whole rows; only wide rows are worth sharing.
            if strip < 128 or work < _VECTOR_WORK:
                return sequential
            if from_memory:
                # There, strips narrower than a page cost more than a second core gives.
                strip = max(strip, min(lanes // 32 * 32, _PAGE))
        elif lanes < 8 or work < (_LANE_WORK // 2 if length >= 32 else 4 * _LANE_WORK):
            # LLVM unrolls few steps and then vectorises the lanes by itself.
            return sequential
        elif from_memory and strip:
            strip = max(strip, min(lanes // 32 * 32, _PAGE))
        width = max(strip, 32 if lanes >= 64 else 16 if lanes >= 16 else 8)
        return Lanes(lane_block=width, vectorize=True)
    along_time = contiguous_axis(recurrence) == "time"
    if along_time and work >= _LANE_WORK and _makes_keys(recurrence, limits):
        return Lanes(time_vector=16)
    if along_time and _gains_in_vectors(recurrence, limits):
        # Scanned in registers, one lane waits for memory. Four vectors of the machine.
        steps = 64 if limits.ldexp else 32 if limits.line_stores else 16
        vectors = Lanes(time_vector=steps, time_runs=True)
        if rows == 1 and length >= _VECTOR_LENGTH:
            if limits.cores < 2 or length < _SHARED_LENGTH:
                return vectors
            return ThreePhase(
                chunks=limits.cores,
                time_vector=steps,
                time_runs=True,
                cache_steps=_cache_steps(limits, recurrence, length),
            )
        # Several lanes hide their latency from one another, until memory is the limit.
        ahead = not walks_backwards(recurrence)
        # Wide vectors pay from one on that leaves little of the row, and from two on in any case.
        wide = limits.line_stores and (0 <= length - steps <= steps // 4 or length >= 2 * steps)
        if rows > 1 and ahead and (wide or length >= _LONG_ROW) and work >= _LANE_WORK:
            return vectors
    if along_time and _turns_backwards(recurrence, limits, work, length):
        return Lanes(lane_block=_TILE_LANES, vectorize=True, transpose=True)
    # A chain of one-cycle operations is bound by loads and stores, not by latency.
    quick = all(_is_quick(algebra) for algebra in recurrence.algebras)
    interleave = 2 if quick else _INTERLEAVE
    tasks = rows // interleave
    if quick and (work < _QUICK_WORK or (tasks < 2 and limits.cores < 4)):
        return sequential
    if tasks and work >= _LANE_WORK and (2 * tasks >= limits.cores or length < _CHUNK_LENGTH):
        # Integers have no latency to hide: turns save short rows the cost of their loops only.
        alone = length >= _UNROLLED and all(_is_one_cycle(a) for a in recurrence.algebras)
        return Lanes(lane_block=1 if alone else interleave)
    if length >= _CHUNK_LENGTH:
        chunks = interleave * limits.cores
        return ThreePhase(chunks=chunks, lane_block=interleave)
    return sequential


def _cache_steps(limits: Limits, recurrence: Recurrence, length: int) -> int:
    """Steps whose inputs fill a quarter of the largest cache; 0 where all of them do."""
    each = sum(tir.byte_size(tir.dtype_of(b)) for b in _read_only(recurrence)) or 4
    if each * length <= limits.cache_bytes:
        return 0
    return 1 << max(10, (limits.cache_bytes // 4 // each).bit_length() - 1)


def _vector_lanes(recurrence: Recurrence, limits: Limits, rows: int, work: int) -> Lanes | None:
    """Lanes in vectors for a costly step, which runs as it is written, lane beside lane."""
    lanes = known_extent(recurrence.lanes[-1].extent) if recurrence.lanes else 0
    if lanes < _TILE_LANES or work < _LANE_WORK or not stays_in_vectors(recurrence):
        return None
    # Two vectors of transposed rows hide the latency of a polynomial.
    two = contiguous_axis(recurrence) == "lane" or has_transcendentals(recurrence)
    width = 32 if two and rows >= 32 * limits.cores else 16
    plan = Lanes(lane_block=width, vectorize=True)
    if contiguous_axis(recurrence) == "lane":
        return plan
    return plan.with_(transpose=True) if takes_lane_tiles(recurrence) else None


def _turns_backwards(recurrence: Recurrence, limits: Limits, work: int, length: int) -> bool:
    """Whether rows walked backwards are taken in tiles: no vector of time is turned round there.

    Measured with 32-bit elements and AVX-512: 1 to 3 times the speed of interleaved rows.
    """
    lanes = known_extent(recurrence.lanes[-1].extent) if recurrence.lanes else 0
    enough = _QUICK_WORK if all(map(_is_quick, recurrence.algebras)) else _LANE_WORK
    return (
        limits.ldexp
        and walks_backwards(recurrence)
        and lanes >= _TILE_LANES
        and length >= _TILED_LENGTH
        and work >= enough
        and takes_lane_tiles(recurrence)
        and all(tir.byte_size(tir.dtype_of(b)) == 4 for b in _arrays(recurrence))
    )


def _arrays(recurrence: Recurrence) -> list[Any]:
    return [*_read_only(recurrence), *recurrence.outputs]


def _has_wide_integers(recurrence: Recurrence) -> bool:
    """Whether a cheap step reads integers of 64 bits: to transpose those takes twice its time."""
    inputs = [tir.dtype_of(b) for b in recurrence.inputs]
    return "int64" in inputs and not has_transcendentals(recurrence)


def _is_light(recurrence: Recurrence) -> bool:
    """Whether every element costs about as much as its step, in one stage."""
    return recurrence.stages == 1 and all(
        isinstance(algebra, Reduce | Affine) for algebra in recurrence.algebras
    )


def _gains_in_vectors(recurrence: Recurrence, limits: Limits) -> bool:
    """Whether all carries fit into vectors of time, and are faster there than one by one."""
    return takes_time_vectors(recurrence) and all(
        _is_faster_in_vectors(algebra, limits) for algebra in recurrence.algebras
    )


def _makes_keys(recurrence: Recurrence, limits: Limits) -> bool:
    """Whether elements are keys of 64 bits, made by several operations: these pay in vectors.

    So are the running maxima with positions of ``tvm_scan.torch``: 2 to 5 times as fast.
    """
    if not limits.line_stores or not takes_time_vectors(recurrence):
        return False
    choices: list[Any] = []
    for algebra in recurrence.algebras:
        if not isinstance(algebra, Reduce) or algebra.dtype != "int64":
            return False
        tvm_ffi.structural_walk(algebra.x, [(tirx.Select, choices.append)])
    return len(choices) >= 2


def _is_faster_in_vectors(algebra: Algebra, limits: Limits) -> bool:
    if not isinstance(algebra, Affine | Reduce):
        return False
    if is_float(algebra.dtype) and not _is_quick(algebra):
        # Float sums, products and affine steps wait for their own additions.
        return True
    # The others take a step a cycle or two: it needs many lanes to be ahead of that. A float's
    # maximum is three instructions, for NaN.
    wide = limits.ldexp if is_float(algebra.dtype) else limits.line_stores
    return isinstance(algebra, Reduce) and tir.byte_size(algebra.dtype) == 4 and wide


def _is_one_cycle(algebra: Algebra) -> bool:
    return isinstance(algebra, Reduce) and _is_quick(algebra) and not is_float(algebra.dtype)


def _is_quick(algebra: Algebra) -> bool:
    """Whether the step is one operation of one or two cycles: all but float add and multiply."""
    if not isinstance(algebra, Reduce):
        return False
    return algebra.op not in ("add", "mul") or (algebra.op == "add" and not is_float(algebra.dtype))
