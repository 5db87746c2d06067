"""What the benches promise of themselves."""

from tests.support.tiers import Folder

FOLDER = Folder(
    full=(
        "test_cpu_oracles.py::test_the_loop_is_right_and_what_is_near_it_is_not",
        "test_cpu_page.py::test_every_kind_has_its_loops",
        "test_quick.py::test_quick_forms",
    ),
)
