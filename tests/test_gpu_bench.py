"""The bench for GPUs: its path without one, its bounds, and its peers in CUDA."""

import shutil
from itertools import product

import pytest

from bench import gpu, gpu_peers
from bench.gpu_cases import Case, ladder, timed_cases
from tests.cuda_harness import CUDA_TARGET
from tvm_scan import extract

pytestmark = pytest.mark.gpu


def test_a_dry_run_compares_every_plan_with_float64():
    lines = []
    found = gpu.run(dry_run=True, seconds=300, say=lines.append)
    checked = {row["plan"] for row in found["errors"]}
    ours = {name for case in gpu.check_cases(True) for name in ladder(case)}
    assert checked == {"default", *ours} and len(ours) > 12
    assert all(0 < row["error"] <= row["bound"] for row in found["errors"])
    timed = {row["name"] for row in found["times"] if "median" in row}
    assert timed == {"default", *ladder(Case("affine", (2, 64)))}
    assert any(line.startswith("  shuffles") for line in lines)


def test_a_wrong_result_is_told(monkeypatch):
    monkeypatch.setattr(gpu, "error_of", lambda *_: 0.5)
    lines = []
    rows = gpu._checked(CUDA_TARGET, True, gpu._Clock(60), lines.append)
    assert all(row["error"] > row["bound"] for row in rows)
    assert sum(line.startswith("WRONG") for line in lines) == len(rows)


def test_nothing_begins_when_the_time_is_over():
    found = gpu.run(dry_run=True, seconds=0, say=lambda _: None)
    assert found["errors"] == found["times"] == []
    assert found["left_out"] == [str(Case("affine", (2, 64)))]


def test_every_size_that_is_asked_for_is_timed():
    sizes = {(c.family, c.sizes, c.dtype) for c in timed_cases()}
    for dtype in ("float32", "bfloat16"):
        for k in range(7, 17):
            assert ("affine", (8 * 1536, 1 << k), dtype) in sizes
        for b, d, k in product((1, 8), (2048, 4096), range(9, 17)):
            fits = b * d << k <= 1 << 30
            assert (("selective", (b, d, 1 << k, 16), dtype) in sizes) == fits
    for shape in ((1, 1 << 16), (1, 1 << 28), (64, 32768), (2048, 4096)):
        assert ("cumsum", shape, "float32") in sizes
    for k in range(7, 14):
        assert ("rwkv6", (32, 1 << k, 64), "float32") in sizes
    assert len(sizes) == len(timed_cases())


def test_without_the_sanitizer_it_is_said(monkeypatch):
    monkeypatch.setattr(gpu.shutil, "which", lambda _: None)
    lines = []
    assert gpu._sanitized(lines.append)
    assert lines == ["compute-sanitizer: none on the PATH, nothing checked"]


def test_the_ladders_plans_fit_their_cases():
    # With halves the share of polynomials is refused, and its row says so.
    singles = [case for case in timed_cases() if case.dtype == "float32"]
    for case in {c.family: c for c in singles}.values():
        recurrence = extract(case.func)
        for plan in ladder(case).values():
            plan.check(CUDA_TARGET, recurrence)


def test_bytes_are_those_of_every_array_once():
    assert Case("affine", (3, 10)).moved == 3 * 3 * 10 * 4
    assert Case("affine", (3, 10), "bfloat16").moved == 3 * 3 * 10 * 2


def test_a_peer_that_is_missing_says_why():
    for _, reason in gpu_peers.peer_times(Case("affine", (2, 64)), None, CUDA_TARGET, 1):
        assert isinstance(reason, str)
        assert "Error" in reason


@pytest.mark.slow
def test_the_peers_in_cuda_compile(tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is missing")
    library = gpu_peers.build_native(tmp_path, "sm_90", nvcc)
    assert library.peer_cub_affine and library.peer_cub_sum and library.peer_copy
