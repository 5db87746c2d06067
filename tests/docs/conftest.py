"""The code of every page runs."""

from tests.support.tiers import Folder

FOLDER = Folder(
    quick=("test_pages.py::test_python_block[README*",),
)
