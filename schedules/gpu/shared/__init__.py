"""Inputs and outputs that a block stages in shared memory. Read ``staging`` first."""
