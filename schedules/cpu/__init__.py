"""Schedules of CPUs: read ``sequential``, ``lanes`` and ``three_phase``, one schedule each.

``lane_nests``, ``time_vector``, ``chunks`` and ``vector_chunks`` build them; ``cost`` counts.
"""
