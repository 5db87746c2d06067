"""Scans over the blocks of a grid. Read ``three_phase`` first."""
