"""Models of Hugging Face transformers at two layers with random weights, against eager forward."""

import pytest
from tvm.target import Target

pytest.importorskip(
    "transformers", reason="transformers is missing: the models of the extra 'models' are not run"
)
from bench.relax_models import measure, measure_decode

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
CPU = Target.from_device("cpu")
#: Relative to the largest logit, in float32.
TOLERANCE = 2e-4


@pytest.mark.parametrize(
    ("name", "scans"),
    [
        ("mamba", "affine"),
        ("mamba2", "reduce"),
        ("recurrent_gemma", "affine"),
        pytest.param("rwkv", "affine, clamp", marks=pytest.mark.slow),
        pytest.param("jamba", "affine", marks=pytest.mark.slow),
    ],
)
def test_prefill(name, scans):
    row = measure(name, 20, CPU, plain=False)
    assert row.error < TOLERANCE
    assert scans in row.scans


def test_prefill_and_decode_are_one_long_prefill():
    to_eager, to_long = measure_decode("mamba", CPU, length=12)
    assert to_eager < TOLERANCE
    assert to_long < TOLERANCE
