"""Recurrences and models in a browser: WGSL, the launches as data, and the loops as JavaScript.

``tvm_scan.schedules.launch`` takes a scheduled function apart into kernels and what its host does,
which drivers run, too. ``content.py`` has what a page holds: beside the kernels the loops that they
came from, which ``loops.py`` with ``expressions.py`` writes as JavaScript, and the inputs on which
both are run (``values.py``).
``folder.py`` writes all of it beside the files in ``files``, which need no library and no build.
"""
