"""Whole kernels as text, and what they take on a GPU, held against kept files."""

from tests.support.tiers import Folder

FOLDER = Folder(
    quick=("test_golden.py",),
    gpu=(
        "test_golden.py::test_barriers",
        "test_resources.py",
    ),
)
