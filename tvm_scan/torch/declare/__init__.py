"""Declarations of torch's operators: what one says, and what it has without saying so.

Read ``operator`` first. ``mapped`` has the rules of vmap, ``bundles`` arguments that belong
together, ``transformed`` derivatives for torch.func, and ``dispatch`` the way past torch's
dispatcher. ``checked`` checks a function's tensors by its signature, ``repeated`` takes calls that
are alike straight to their kernel (``ways``).
"""
