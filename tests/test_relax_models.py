"""Models of Hugging Face transformers at two layers with random weights, against eager forward."""

import pytest

pytest.importorskip(
    "transformers", reason="transformers is missing: the models of the extra 'models' are not run"
)
from bench.model_cases import TOLERANCE, measure_model

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def measured(name, length, **options):
    told = []
    measure_model(told.append, name, (length,), **options)
    return told[-1]


@pytest.mark.parametrize(
    ("name", "scans"),
    [
        ("mamba2", "reduce"),
        ("recurrent_gemma", "affine"),
        pytest.param("rwkv", "affine, clamp", marks=pytest.mark.slow),
        pytest.param("jamba", "affine", marks=pytest.mark.slow),
    ],
)
def test_prefill(name, scans):
    (row,) = measured(name, 20, decode=False)
    assert row.error < TOLERANCE
    assert scans in row.scans


@pytest.mark.parametrize(
    "name",
    [
        "mamba",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("recurrent_gemma", "rwkv", "bamba", "jamba")
        ),
    ],
)
def test_prefill_and_decode_are_one_long_prefill(name):
    prefill, decode = measured(name, 11)
    assert max(prefill.error, decode.error, decode.error_long) < TOLERANCE
    assert prefill.scans != "none"
