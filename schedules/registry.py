"""Every schedule, once: a class whose fields are its decisions.

A schedule of one's own is a subclass of ``ScanPlan`` that ``register`` was called with.
"""

from __future__ import annotations

from tvm_scan.schedules.cpu.lanes import Lanes as CpuLanes
from tvm_scan.schedules.cpu.sequential import Sequential as CpuSequential
from tvm_scan.schedules.cpu.three_phase import ThreePhase as CpuThreePhase
from tvm_scan.schedules.delta.cpu_plan import DeltaWalk
from tvm_scan.schedules.delta.gpu_plan import DeltaBlocks
from tvm_scan.schedules.gpu.lanes import Lanes as GpuLanes
from tvm_scan.schedules.gpu.lanes import Sequential as GpuSequential
from tvm_scan.schedules.gpu.serial_tiles import SerialTiles
from tvm_scan.schedules.gpu.single_pass import SinglePass
from tvm_scan.schedules.gpu.three_phase import ThreePhase as GpuThreePhase
from tvm_scan.schedules.plan import SCHEDULES, register, schedules_of

__all__ = ["SCHEDULES", "register", "schedules_of"]

# In the order in which a search looks at them; of each device the loop as it was written first.
for schedule in (
    CpuSequential,
    CpuLanes,
    CpuThreePhase,
    DeltaWalk,
    GpuSequential,
    GpuLanes,
    SerialTiles,
    GpuThreePhase,
    SinglePass,
    DeltaBlocks,
):
    register(schedule)
