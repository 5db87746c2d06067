"""The delta rule in chunks: read ``rule``, then ``chunk``, which ``cpu`` and ``gpu`` run.

``walk`` decides for the loop that torch's functions run on a CPU, `tvm_scan.loops.delta_walk`.
"""
