"""The delta rule in chunks: read ``rule``, then ``chunk``, which ``cpu`` and ``gpu`` run.

``gpu_tensor`` is ``gpu`` with the large products on tensor cores (``tensor_tiles``,
``tensor_products``). ``cpu_plan`` and ``gpu_plan`` are its schedules; ``time_cut`` makes rules of
segments of time. ``walk_plan`` and ``adjoint`` decide for the loops that torch's functions run on a
CPU, `tvm_scan.loops.delta_walk` and its way back.
"""
