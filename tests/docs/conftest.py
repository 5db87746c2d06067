"""The code of every page runs, and its links lead somewhere."""

from tests.support.tiers import Folder

FOLDER = Folder(
    quick=("test_pages.py::test_python_block[README*", "test_links.py"),
    alike={
        "test_pages.py::test_shell_block[cli-*": 3,
    },
)
