"""One step of a loop, given as Relax operators, as a loop of TensorIR over time.

Read ``lowered`` first, then ``primitive`` (the operators as one function) and ``form`` (the nests
of a step in the form in which a recurrence is easiest to see).
"""
