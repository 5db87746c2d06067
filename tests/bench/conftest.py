"""What the benches promise of themselves."""

from tests.support.tiers import Folder

FOLDER = Folder(
    full=("test_quick.py::test_quick_forms",),
)
