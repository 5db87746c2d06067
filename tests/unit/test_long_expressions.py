"""What a composition uses many times has a name: TVM's passes walk expressions as trees."""

import pytest

from tests.numerics.cases import CASES, source_of
from tvm_scan import parallelize
from tvm_scan.arguments import host_target


@pytest.mark.parametrize(
    "plan", ["three_phase(chunks=4, time_vector=8)", "lanes(time_vector=16, time_runs=True)"]
)
def test_no_statement_of_a_kernel_is_long(plan):
    """A bounded affine composition runs a map three times: 32,000 characters without names."""
    func = source_of(CASES["bounded affine"], "float32")
    kernel = parallelize(func, host_target(), f"cpu/{plan}")
    assert max(map(len, str(kernel).splitlines())) < 4_000
