"""The tests of tvm_scan. `python -m tests` runs every check."""
