"""Every annotation key that tvm_scan writes or reads, in one place."""

#: Prefix of the scalar annotations that carry one field of a ``ScanPlan`` each.
PLAN_PREFIX = "tvm_scan.plan."

#: On a block that a plan produced: it is not to be recognised and expanded again.
SCHEDULED_NEST = "tvm_scan.scheduled"

#: On the root block of a candidate, while it is measured: which sequential program it came from.
SEQUENTIAL = "tvm_scan.sequential"

#: TVM's own function attribute: "leave this function alone" (dlight reads it).
IS_SCHEDULED = "tirx.is_scheduled"

#: Relax's function attribute for operator fusion, and its value for "do not fuse".
OP_PATTERN = "op_pattern"
OPAQUE_PATTERN = 8

#: Function attribute: names of the inputs of an operator that was declared associative.
DECLARED = "tvm_scan.declared_associative"
