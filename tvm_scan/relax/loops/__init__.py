"""Sequential loops that front ends need, written as TensorIR.

Read ``build`` first: it writes the loops of ``cumulative``. ``linear_attention`` and
``packed_states`` write their own.
"""
