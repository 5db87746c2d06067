"""The delta rule in chunks: read ``rule``, then ``chunk``, which ``cpu`` and ``gpu`` run.

``cpu_plan`` and ``gpu_plan`` are its schedules; ``time_cut`` makes rules of segments of time.
``walk`` and ``adjoint`` decide for the loops that torch's functions run on a CPU,
`tvm_scan.loops.delta_walk` and its way back.
"""
