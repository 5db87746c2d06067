"""``compile_primfunc``: a PrimFunc as a callable on torch tensors.

Read ``call`` first, then ``signature`` (parameters and whether tensors fit them) with ``overlap``,
and ``small`` (calls too small for threads).
"""
