"""``from_onnx``: ONNX models as Relax modules.

Read ``frontend`` first, then ``scan``. ``attention`` and ``causal_conv`` convert operators that
TVM's importer does not have; ``shapes`` checks their inputs.
"""
