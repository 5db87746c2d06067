"""Schedules of CPUs. Read ``lanes`` first, then ``time_vector`` and ``three_phase``."""
