"""The laws of algebras on exact arithmetic, and the order of what does not commute."""

from tests.support.tiers import Folder

FOLDER = Folder(
    quick=(
        "test_algebras.py",
        "test_families.py",
    ),
    gpu=("test_order.py::test_cuda",),
)
