"""Functions on tensors of any shape: they check, promote, broadcast and call the operators.

Read ``linear`` first, then ``cumulative``. ``gated``, ``matrix``, ``ssd`` and ``mamba`` have the
recurrences of papers, ``packed_states`` the states of sequences in one row, ``filters`` digital
filters, ``convolution`` the short one before most scans, ``delta`` the delta rule with
``delta_product`` (several steps a token), and ``higher_order`` the scans of a function of the
caller's.
"""
