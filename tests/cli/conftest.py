"""The command line, as a user meets it."""

from tests.support.tiers import Folder

FOLDER = Folder()
