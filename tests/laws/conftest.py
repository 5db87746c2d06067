"""The laws of algebras on exact arithmetic, and the order of what does not commute."""

from tests.support.tiers import Folder

FOLDER = Folder(
    gpu=("test_order.py::test_cuda",),
)
