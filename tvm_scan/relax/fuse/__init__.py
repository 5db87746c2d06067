"""``FuseScans``: elementwise calls before and behind a scan become part of it.

Read ``fuse_scans`` first, then ``neighbours`` (calls next to a scan, over the bindings of
``dataflow``), ``pointwise`` (which of them compute each element alone), and ``merge`` with
``occurrences`` (two functions of TensorIR as one, on the ``parameters`` of both).
"""
