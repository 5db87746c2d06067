"""The public suite: recurrences that must be taken, and near misses that must be refused.

``python -m tests.programs.suite --write`` makes the table of docs/suite.md.
"""
