"""Kernels for GPUs, on the simulated device or a real one."""

from tests.support.tiers import Folder, everything

FOLDER = Folder(
    gpu=everything,
)
