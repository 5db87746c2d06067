"""The plan that is used when nobody tuned: a few rules, each with its reason."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.limits import Limits, device_of, limits_of
from tvm_scan.schedules.plan import ScanPlan, element_bytes
from tvm_scan.schedules.strides import contiguous_axis

__all__ = ["default_plan", "host_target"]

#: Steps times lanes below which starting TVM's thread pool costs more than it saves.
_PARALLEL_WORK = 1 << 15
#: Length below which cutting one lane into chunks does not pay for its second pass.
_CHUNK_LENGTH = 1 << 14
#: Stand-in for an extent that is not known until run time.
_UNKNOWN = 4096


def host_target() -> Target:
    """This machine's CPU with its own instruction set (``mcpu="native"`` means generic)."""
    return Target.from_device("cpu")


def default_plan(target: Target | None, recurrence: Recurrence) -> ScanPlan:
    """Choose a plan without tuning.

    Parameters
    ----------
    target : tvm.target.Target or None
        Where it will run; this machine's CPU if None.
    recurrence : Recurrence
        What will run. Extents that are symbolic are taken as large.

    Returns
    -------
    ScanPlan
        A plan that passes ``check``.
    """
    target = target or host_target()
    limits = limits_of(target)
    rows, length = _known(_rows(recurrence)), _known(recurrence.time.extent)
    if device_of(target) == "cuda":
        return _cuda(limits, recurrence, rows, length)
    return _cpu(limits, recurrence, rows, length)


def _rows(recurrence: Recurrence) -> Any:
    total: Any = tirx.IntImm("int64", 1)
    for lane in recurrence.lanes:
        extent = lane.extent
        total = total * (extent if tir.dtype_of(extent) == "int64" else tirx.Cast("int64", extent))
    return tir.simplify(total)


def _known(extent: Any) -> int:
    value = tir.as_int(extent)
    return _UNKNOWN if value is None else value


def _cpu(limits: Limits, recurrence: Recurrence, rows: int, length: int) -> ScanPlan:
    sequential = ScanPlan("cpu", "sequential")
    states = element_bytes(recurrence) // 4
    if rows * length * max(1, states // 2) < _PARALLEL_WORK:
        return sequential
    axis = contiguous_axis(recurrence)
    simple = all(not carry.state_axes for carry in recurrence.carries)
    if axis == "lane" and simple and _known(recurrence.lanes[-1].extent) >= 16:
        return ScanPlan("cpu", "lanes", lane_block=16, vectorize=True)
    if rows >= 2 * limits.cores or (rows >= limits.cores and length < _CHUNK_LENGTH):
        return ScanPlan("cpu", "lanes")
    if length >= _CHUNK_LENGTH and limits.cores > 1 and simple:
        return ScanPlan("cpu", "three_phase", chunks=8 * limits.cores, lane_block=8)
    return ScanPlan("cpu", "lanes") if rows >= limits.cores else sequential


def _cuda(limits: Limits, recurrence: Recurrence, rows: int, length: int) -> ScanPlan:
    # Lanes that fill the chip walk time without any exchange, if their loads coalesce.
    fill = limits.multiprocessors * 512
    if length <= 32 or (contiguous_axis(recurrence) == "lane" and rows >= fill // 4):
        threads = min(128, limits.threads)
        return ScanPlan("cuda", "lanes", threads_per_block=threads)
    threads = min(128, limits.threads)
    bytes_each = element_bytes(recurrence)
    while threads > 32 and (threads + threads // 32) * bytes_each > limits.shared_bytes:
        threads //= 2
    items = 8 if bytes_each <= 16 else 4
    while threads > 32 and threads * items >= 2 * length:
        threads //= 2
    plan = ScanPlan("cuda", "serial_tiles", threads_per_block=threads, items_per_thread=items)
    if (threads + threads // 32) * bytes_each > limits.shared_bytes:
        return ScanPlan("cuda", "lanes", threads_per_block=min(128, limits.threads))
    # One block per lane leaves multiprocessors idle when lanes are few and long.
    if rows < 2 * limits.multiprocessors and length >= 16 * plan.tile:
        return plan.with_(algorithm="three_phase")
    return plan
