"""Nests beside a recurrence, as a device runs them."""

from __future__ import annotations

from tvm.s_tir import Schedule

from tvm_scan.schedules.cpu.leftover import unbind_leftovers
from tvm_scan.schedules.gpu.leftover import bind_leftovers
from tvm_scan.schedules.machine.device import Device


def schedule_leftovers(sch: Schedule, device: Device) -> None:
    """Bind nests to threads on a GPU, and take threads away on a CPU.

    Parameters
    ----------
    sch : Schedule
        Changed in place, silently.
    device : Device
        Where it will run.

    Raises
    ------
    RefusalError
        If a nest has effects that another order could change, or would be another program.
    """
    (bind_leftovers if device.is_gpu else unbind_leftovers)(sch, device)
