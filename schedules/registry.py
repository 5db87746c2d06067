"""Every schedule, once: a class whose fields are its decisions.

A schedule of one's own is a subclass of ``ScanPlan``; ``register`` makes it one of those that are
parsed, searched, chosen among and drawn.
"""

from __future__ import annotations

from typing import TypeVar

from tvm_scan.errors import PlanError
from tvm_scan.schedules.cpu.lanes import Lanes as CpuLanes
from tvm_scan.schedules.cpu.sequential import Sequential as CpuSequential
from tvm_scan.schedules.cpu.three_phase import ThreePhase as CpuThreePhase
from tvm_scan.schedules.gpu.lanes import Lanes as GpuLanes
from tvm_scan.schedules.gpu.lanes import Sequential as GpuSequential
from tvm_scan.schedules.gpu.serial_tiles import SerialTiles
from tvm_scan.schedules.gpu.single_pass import SinglePass
from tvm_scan.schedules.gpu.three_phase import ThreePhase as GpuThreePhase
from tvm_scan.schedules.plan import ScanPlan

__all__ = ["SCHEDULES", "register", "schedules_of"]

#: In the order in which a search looks at them; of each device the loop as it was written first.
SCHEDULES: list[type[ScanPlan]] = [
    CpuSequential,
    CpuLanes,
    CpuThreePhase,
    GpuSequential,
    GpuLanes,
    SerialTiles,
    GpuThreePhase,
    SinglePass,
]

Schedule = TypeVar("Schedule", bound=type[ScanPlan])


def register(schedule: Schedule) -> Schedule:
    """Add a schedule; a decorator of its class.

    Raises
    ------
    PlanError
        If its device has one of this name.
    """
    name = f"{schedule.device}/{schedule.algorithm}"
    if any(name == f"{other.device}/{other.algorithm}" for other in SCHEDULES):
        raise PlanError(f"register: expected a new name, got {name}, which exists; choose another")
    SCHEDULES.append(schedule)
    return schedule


def schedules_of(device: str) -> list[type[ScanPlan]]:
    """Schedules of a device, the loop as it was written first."""
    return [schedule for schedule in SCHEDULES if schedule.device == device]
