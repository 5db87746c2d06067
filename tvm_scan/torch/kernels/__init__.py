"""Kernels by name and sizes: built once, kept on disk, run where tensors lie.

Read ``spec`` (the name) and ``cache`` first, then ``building`` (from the loop to a library),
``digest`` (what a built kernel depends on), ``devices`` and ``runtime`` (where and how a kernel
runs), ``scratch`` and ``workspace`` (memory of a GPU's kernel), and ``records`` (plans that were
tuned).
"""
