"""Schedules of CPUs. Read ``sequential``, ``lanes`` and ``three_phase``: each is a schedule.

``lane_nests``, ``time_vector``, ``chunks`` and ``vector_chunks`` build them; ``cost`` counts what they
do.
"""
