"""Nests beside a recurrence: what a device needs to run them."""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_scan.schedules.cpu.leftover import unbind_leftovers
from tvm_scan.schedules.gpu.leftover import bind_leftovers
from tvm_scan.schedules.machine.device import device_of

__all__ = ["schedule_leftovers"]


def schedule_leftovers(sch: Schedule, target: Target) -> None:
    """Bind nests to threads on a GPU, and take threads away on a CPU.

    Parameters
    ----------
    sch : Schedule
        Changed in place, silently.
    target : tvm.target.Target
        Where it will run.

    Raises
    ------
    RefusalError
        If a nest has effects that another order could change, or would be another program.
    """
    if device_of(target).is_gpu:
        bind_leftovers(sch)
    else:
        unbind_leftovers(sch)
