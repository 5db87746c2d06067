"""Tools with which the schedules of every device build. Read ``replica`` first.

``ir`` writes nodes, ``replica`` the statements of a recurrence once per use, ``elements`` the
elements of its algebras; ``lanes`` and ``strides`` say where they lie.
"""
