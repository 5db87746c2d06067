"""``from_exported``: programs of ``torch.export`` as Relax modules.

Read ``frontend`` first. It rolls up loops that were unrolled (``roll``, with ``roll_collect`` and
``roll_match``), turns ``while_loop`` into ``scan`` (``while_loops``), which ``scan_graph`` writes
for both, and hands TVM's importer the converters of ``operators``, ``own_operators`` (those of
``tvm_scan.torch``, with ``own_arguments``), ``cumulative`` (what both have) and ``higher_order``
(torch's ``scan`` and ``associative_scan``). ``whole_scans`` keeps a scan whole during an export.
"""
