"""Facts about a target: an interface, limits, pipes, and what a step costs on them.

Read ``device`` first, a row for every kind of target, then ``machine``, the numbers of one target.
"""
