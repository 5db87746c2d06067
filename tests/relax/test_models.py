"""Models of Hugging Face transformers at two layers with random weights, against eager forward."""

import functools

import pytest

pytest.importorskip(
    "transformers", reason="transformers is missing: the models of the extra 'models' are not run"
)
import torch
from tvm.target import Target

from bench.model_cases import TOLERANCE, make, measure_model
from bench.model_states import Prefill
from tests.relax.test_neighbours import elements
from tests.support.compiled import compile_cached
from tvm_scan.relax import FindScans, FuseScans, LegalizeScans, from_exported

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def measured(name, length, **options):
    told = []
    build = functools.partial(compile_cached, plainly=True)
    measure_model(told.append, name, (length,), timed=False, build=build, **options)
    return told[-1]


@pytest.mark.parametrize(
    ("name", "scans"),
    [
        ("mamba2", "reduce"),
        ("recurrent_gemma", "affine"),
        ("rwkv", "affine, clamp"),
        ("jamba", "affine"),
    ],
)
def test_prefill(name, scans):
    (row,) = measured(name, 5, decode=False)
    assert row.error < TOLERANCE
    assert scans in row.scans


@pytest.mark.parametrize(
    ("name", "scans"),
    {
        "mamba": "affine",
        "recurrent_gemma": "affine",
        "rwkv": "affine, clamp",
        "bamba": "",
        "jamba": "affine",
    }.items(),
)
def test_prefill_and_decode_are_one_long_prefill(name, scans):
    prefill, decode = measured(name, 6)
    assert max(prefill.error, decode.error, decode.error_long) < TOLERANCE
    assert prefill.scans != "none" and scans in prefill.scans


def test_nothing_as_large_as_the_states_is_left_around_the_scan_of_a_mamba():
    """``exp(delta A)`` and ``delta B u`` of every state and step are never stored."""
    ids = torch.zeros((1, 36), dtype=torch.int64)
    mod = from_exported(torch.export.export(Prefill(make("mamba"), keep=True), (ids,)))
    mod = LegalizeScans()(mod)
    channels, size, length = 128, 16, 36
    assert elements(mod) == channels * size * length
    after = FuseScans(Target.from_device("cpu"))(mod)
    assert elements(after) < channels * size * length // 4
    # Both layers call the same function.
    (report,) = FindScans(after)
    assert len(report.recurrences) == 1
