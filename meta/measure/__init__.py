"""Candidates built, compared with their loop, and timed. Read ``check`` first."""
