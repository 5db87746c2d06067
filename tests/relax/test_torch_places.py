"""Import from torch.export: operators that TVM imports wrongly, about places in an array."""

import pytest

torch = pytest.importorskip("torch")
from tests.relax.test_torch import check  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


def test_a_cache_begins_with_no_elements():
    x = torch.randn(2, 3, 4)
    check(lambda x: torch.cat([torch.tensor([]), x], -2), x)
    check(lambda x: torch.cat([torch.tensor([]), x, x + 1], -2), x)


def test_an_index_from_the_end():
    check(lambda x: (x[:, -1], x[-2], x[1]), torch.randn(4, 5))
