"""What an installation holds, and what it refuses to start with."""

from tests.support.tiers import Folder

FOLDER = Folder(
    quick=(
        "test_guard.py",
        "test_toolkit.py",
    ),
)
