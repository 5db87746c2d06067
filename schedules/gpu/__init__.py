"""Schedules of GPUs, by level as in CUB: thread, warp, block, grid. Read ``builders`` first."""
