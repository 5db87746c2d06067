"""The code of every page runs."""

from tests.support.tiers import Folder

FOLDER = Folder()
