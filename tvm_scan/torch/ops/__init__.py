"""Operators of torch, each with its loop, its derivative, and what torch asks of it.

Read ``affine`` first, which the adjoints of the others are made of.
``cumulative``, ``extremum``, ``outer`` with ``outer_gates``, and ``selective`` with
``selective_adjoint`` are alike; ``chunked`` and ``expanded`` compute of torch's operators what
``selective`` has no kernel for. ``steps`` (with ``step_adjoint``) and ``slices`` scan a traced
step. ``frame`` names kernels over (outer, length, inner), ``direct`` runs one where nothing looks
on, ``transpose`` swaps axes.
"""
