"""Schedules of GPUs, on top of rooms by level as in CUB: thread, warp, block, walk, grid.

Read ``lanes`` first, then ``trees`` with ``serial_tiles``, ``three_phase`` and ``single_pass``.
"""
