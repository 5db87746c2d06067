"""The tests of tvm_scan. `python -m tests` runs every check."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
