"""What the benches promise of themselves."""

from tests.support.tiers import Folder

FOLDER = Folder()
