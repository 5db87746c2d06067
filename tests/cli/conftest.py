"""The command line, as a user meets it."""

from tests.support.tiers import Folder

FOLDER = Folder(
    quick=(
        "test_command.py",
        "test_table.py",
    ),
)
