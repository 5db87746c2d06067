"""The bench for GPUs: its path without one, its bounds, and its peers in CUDA."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from itertools import product

import numpy as np
import pytest

from bench import (
    gpu,
    gpu_answers,
    gpu_checks,
    gpu_choice,
    gpu_fetch,
    gpu_gelu,
    gpu_native,
    gpu_page,
    gpu_peers,
    gpu_worker,
)
from bench.gpu_answers import Answers
from bench.gpu_cases import Case, check_cases, dry_cases, ladder, timed_cases
from bench.gpu_checks import Clock, checked, checked_peers, is_wrong
from bench.gpu_ours import Times, affordable, target_of
from bench.gpu_rows import Timing
from bench.gpu_table import table
from bench.gpu_worker import Worker
from tests.support import cusim
from tests.support.cuda_harness import CUDA_TARGET


def test_a_dry_run_compares_every_plan_with_float64_and_times_the_ladders():
    lines, saved = [], []
    save = lambda found: saved.append(len(found["times"]))  # noqa: E731
    found = gpu.run(dry_run=True, seconds=500, say=lines.append, save=save)
    checked = {row["plan"] for row in found["errors"]}
    ours = {name for case in check_cases(True) for name in ladder(case)}
    assert checked == {"default", *ours} and len(ours) > 12
    assert all(0 < row["error"] <= row["bound"] for row in found["errors"])
    first, rest = dry_cases()
    rows = found["times"]
    timed = {row["name"] for row in rows if "median" in row and row["case"] == str(first[0])}
    assert timed == {"default", *ladder(first[0])}
    steps = [row for row in rows if row["case"].startswith("gelu")]
    assert [row["name"] for row in steps] == list(gpu_gelu.LADDER)
    # Rounding of results below 4, and tanh's 2 ulp.
    assert all(row["error"] < 4 * 4 * 2.0**-24 for row in steps)
    assert any(line.endswith("  shuffles") for line in lines)
    # Peers are asked for, and each says why it has no time here.
    failed = {row["name"]: row["failed"] for row in rows if row.get("peer")}
    assert failed["CUB DeviceScan"] == "NotImplementedError: not compiled in a dry run"
    assert {"Triton associative_scan", "mamba-ssm", "torch.cumsum"} <= failed.keys()
    assert saved == sorted(saved) and len(saved) > len(first) + len(rest)
    assert {"date", "commit", "command", "tvm"} <= found["machine"].keys()


def test_every_plan_of_a_shortlist_is_built_and_timed(monkeypatch, tmp_path, capsys):
    """Small, on the simulated device: the times mean nothing, all else does."""
    monkeypatch.setattr(gpu_choice, "cases", lambda: [Case("cumsum", (2, 300))])
    monkeypatch.setattr(gpu_choice, "_COPIED", 1 << 12)
    monkeypatch.setattr(gpu_choice, "_COMPARED", 2)
    monkeypatch.setattr(gpu_choice, "_REPEAT", 1)
    gpu_choice.build(tmp_path, target_of("sm_90", "H100"), 1)
    gpu_choice.time_all(tmp_path, tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert all("median" in row and row["predicted"] > 0 for row in found["rows"]), found["rows"]
    kinds = [row["kind"] for row in found["rows"]]
    assert kinds[0] == "default" and "shortlist" in kinds
    assert {"commit", "command", "gpu", "date"} <= found["machine"].keys()
    assert "default over best" in capsys.readouterr().out
    assert "| cumsum 2x300 float32 |" in gpu_page.choices(found)


class Fixed:
    """A worker that knows all answers."""

    def __init__(self, **answers):
        self.answers, self.lost = answers, {}

    def plan_error(self, case, plan, seconds):
        return self.answers["plan"]

    def plan_times(self, case, plan, repeat, seconds):
        return self.answers["times"]

    def peer_errors(self, case, seconds):
        return iter(self.answers["peers"].items())


@pytest.mark.parametrize(
    ("answer", "said"),
    [(0.5, "error 0.5, at most"), (float("inf"), "not finite, or"), ("hung", "hung")],
)
def test_a_wrong_result_is_told(answer, said):
    lines = []
    rows = checked(Fixed(plan=answer), CUDA_TARGET, True, Clock(60), lines.append, 60)
    assert all(map(is_wrong, rows))
    assert sum(line.startswith("WRONG") and said in line for line in lines) == len(rows) > 12
    json.dumps(rows, allow_nan=False)


def test_a_peer_that_is_wrong_is_not_timed():
    worker = Fixed(peers={"right": 0.0, "wrong": 0.5, "missing": "ImportError: none"})
    lines = []
    rows = checked_peers(worker, Clock(60), lines.append, 60)
    assert {row["peer"] for row in rows} == {"right", "wrong", "missing"}
    assert {name for _, name in worker.lost} == {"wrong"}
    assert ("rwkv6 float32", "wrong") in worker.lost
    assert lines and all("WRONG" in line and "wrong" in line for line in lines)


def test_a_plan_that_would_take_too_long_is_not_timed():
    """A row of 2^28 steps by one thread: half a minute for every call."""
    bench = Timing(Fixed(times=Times(1.0, 0.0)), CUDA_TARGET, Clock(60), 4e12, 25, 60)
    case = Case("cumsum", (1, 1 << 28))
    rows = {row["name"]: row for row in bench.plans(case, dict(ladder(case)))}
    assert re.match(r"not timed: \d\d\.\d s by the model", rows["thread per lane"]["failed"])
    assert rows["shuffles"]["median"] == 1.0
    assert affordable(30.0, 25) == 1 and affordable(0.5, 25) == 4 and affordable(1e-5, 25) == 25


def test_nothing_begins_when_the_time_is_over():
    found = gpu.run(dry_run=True, seconds=0, say=lambda _: None)
    assert found["errors"] == found["times"] == []
    assert {str(case) for cases in dry_cases() for case in cases} <= set(found["left_out"])


def test_every_size_that_is_asked_for_is_timed():
    cases = [case for part in timed_cases() for case in part]
    sizes = {(c.family, c.sizes, c.dtype) for c in cases}
    for dtype in ("float32", "bfloat16"):
        for k in range(7, 17):
            assert ("affine", (8 * 1536, 1 << k), dtype) in sizes
        for b, d, k in product((1, 8), (2048, 4096), range(9, 17)):
            fits = b * d << k <= 1 << 30
            assert (("selective", (b, d, 1 << k, 16), dtype) in sizes) == fits
    for shape in (*((1, 1 << k) for k in range(16, 29)), (64, 32768), (2048, 4096)):
        assert ("cumsum", shape, "float32") in sizes
    for k in range(7, 14):
        assert ("rwkv6", (32, 1 << k, 64), "float32") in sizes
    assert len(sizes) == len(cases)


def test_without_the_sanitizer_it_is_said(monkeypatch):
    monkeypatch.setattr(gpu_checks.shutil, "which", lambda _: None)
    lines = []
    assert gpu_checks.sanitized(lines.append) is None
    assert lines == ["compute-sanitizer: none on the PATH, nothing checked"]


def test_the_ladders_plans_fit_their_cases():
    for case in {(c.family, c.dtype): c for c in timed_cases()[0]}.values():
        recurrence = case.recurrence
        for plan in ladder(case).values():
            plan.check(CUDA_TARGET, recurrence)


def test_bytes_are_those_of_every_array_once():
    assert Case("affine", (3, 10)).moved == 3 * 3 * 10 * 4
    assert Case("affine", (3, 10), "bfloat16").moved == 3 * 3 * 10 * 2


FAKE = """
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <thread>
typedef size_t n;
extern "C" int peer_block_per_row(void*, void*, void*, n, n, int count, float* ms) {
  for (int i = 0; i < count; ++i) ms[i] = 2;
  return 0;
}
extern "C" int peer_thread_per_row(void*, void*, void*, n, n, int, float*) { abort(); }
extern "C" int peer_cub_affine(void*, void*, void*, n, n, int, float*) {
  return std::this_thread::sleep_for(std::chrono::seconds(60)), 0;
}
extern "C" int peer_cub_sum(void*, void*, n, int, float*) { return 2; }
"""


@pytest.mark.skipif(not cusim.is_simulated(), reason="a real device would run the real peers")
def test_a_peer_that_crashes_or_hangs_takes_nobody_with_it(tmp_path):
    source, library = tmp_path / "fake.cc", tmp_path / "fake.so"
    source.write_text(FAKE)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    worker = Worker({"peers": library, "mamba": "no compiler"}, [], "sm_90", simulated=True)
    case, scan = Case("affine", (2, 64)), Case("selective", (1, 8, 32, 16))
    try:
        answer = worker.peer_times(Case("cumsum", (1, 70)), "CUB DeviceScan", 1, 300)
        assert answer == "RuntimeError: CUDA error 2", "out of memory, say"
        process = worker._process
        answer = worker.peer_times(scan, "mamba-ssm's kernel", 1, 300)
        assert answer == "NotImplementedError: no compiler"
        assert worker._process is process and worker.lost == {}, "nothing was lost"
        assert worker.peer_times(case, "CUDA, sequential", 1, 300) == "its process ended with -6"
        # What is lost is not asked again, and the others are, in another process.
        assert worker.peer_times(case, "CUDA, sequential", 1, 0) == "its process ended with -6"
        assert worker.peer_times(case, "block per row (scheme)", 3, 300) == Times(0.002, 0.0)
        assert worker.peer_times(case, "CUB DeviceScan", 1, 0.5) == "not done in 0 s"
        # Ended from outside, while it waits for a question.
        assert worker.peer_times(case, "block per row (scheme)", 1, 300) == Times(0.002, 0.0)
        worker._process.kill()
        worker._process.join()
        assert isinstance(worker.plan_error(case, None, 300), str)
        assert worker.plan_error(Case("affine", (2, 65)), None, 300) < 1e-6
    finally:
        worker.close()


@pytest.mark.skipif(not cusim.is_simulated(), reason="spoils the device for the process")
def test_a_device_that_a_kernel_has_spoilt_gets_another_process(monkeypatch):
    """An error that stays: every later call in the process would fail, too."""
    answers = Answers({}, "sm_90")
    assert answers.device_works()
    monkeypatch.setattr(Answers, "device_works", lambda _: False)
    refused = gpu_worker._answer(answers, "peer_times", (Case("cumsum", (1, 70)), "none", 1))
    assert refused[0] == "lost"
    monkeypatch.setattr(gpu_worker, "Answers", None)
    worker = Worker({}, [], "sm_90")
    monkeypatch.setattr(worker, "_sent", lambda *_: refused)
    case = Case("affine", (2, 64))
    plan = ladder(case)["shuffles"]
    assert worker.plan_times(case, plan, 1, 60) == refused[1]
    monkeypatch.setattr(worker, "_sent", lambda *_: ("done", Times(1.0, 0.0)))
    assert worker.plan_times(Case("affine", (3, 9)), plan, 1, 60) == refused[1], "of the family"
    assert worker.plan_times(case, None, 1, 60) == Times(1.0, 0.0)


def test_too_little_memory_is_told(monkeypatch):
    def fail(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu_answers, "device_tensors", fail)
    worker = Worker({}, [], "sm_90", inside=True)
    bench = Timing(worker, CUDA_TARGET, Clock(60), 1.0, 1, 60)
    (row,) = bench.plans(Case("affine", (2, 64)), {"default": None})
    assert row["failed"] == "RuntimeError: out of memory"


def test_peers_in_python_are_compared_with_float64():
    """By the loop in torch, the only one that runs on a CPU."""
    torch = pytest.importorskip("torch")
    case = Case("affine", (3, 40))
    inputs = case.inputs(np.random.default_rng(1))
    (want,) = case.expected(inputs).values()
    tensors = [torch.from_numpy(array) for array in inputs.values()]
    call = gpu_peers.PEERS["affine"]["torch, sequential"](case, tensors)
    assert 0 < gpu_peers.error_of(case, call, want) < 1e-6
    wrong = gpu_peers.Call(lambda: tensors[1])
    assert gpu_peers.error_of(case, wrong, want) > 0.1
    turned = gpu_peers.Call(call.run, lambda h: h.T)
    with pytest.raises(ValueError, match=r"shape \(3, 40\), got \(40, 3\)"):
        gpu_peers.error_of(case, turned, want)


def test_what_is_there_is_saved_when_the_bench_is_interrupted(monkeypatch):
    """The file is written after every case, so that a run that ends early leaves what it has."""
    saved = []

    def interrupt(self, case):
        raise KeyboardInterrupt("by hand")

    monkeypatch.setattr(Timing, "peers", interrupt)
    monkeypatch.setattr(gpu_checks, "check_cases", lambda _: [Case("affine", (2, 40), "bfloat16")])
    save = lambda found: saved.append(json.dumps(found, allow_nan=False))  # noqa: E731
    with pytest.raises(KeyboardInterrupt, match="by hand"):
        gpu.run(dry_run=True, seconds=300, say=lambda _: None, save=save)
    assert json.loads(saved[-1])["errors"] and json.loads(saved[-1])["copy"] > 0


def test_the_table_says_what_is_missed():
    def row(case, name, median, **more):
        found = {"case": case, "name": name, "median": median, "spread": 0.0}
        return {**found, "gbps": 1.0, "of_copy": 0.5 / median, **more}

    large, scan = "affine 12288x4096 float32", "selective 8x2048x2048x16 float32"
    rows = [
        row(large, "default", 1.0),
        row(large, "CUB DeviceScan", 0.5, peer=True),
        row(large, "shuffles", 3.0, step=True),
        row(scan, "default", 1.0),
        row(scan, "mamba-ssm's kernel", 1.5, peer=True),
        {"case": scan, "name": "mamba-ssm", "failed": "ImportError: none"},
    ]
    text = "\n".join(table(rows, 4e12))
    assert f"{large}: 50 % of a copy, 90 % asked for" in text
    assert f"{large}: 0.50 times CUB DeviceScan, 1.0 asked for" in text
    assert f"{scan}: 1.50 times mamba-ssm's kernel, 2.0 asked for" in text
    assert "targets missed: 3" in text
    assert "mamba-ssm: ImportError: none" in text
    assert "ladder of affine" in text


def test_a_compiler_that_hangs_or_cannot_write_is_given_up(tmp_path, monkeypatch):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\nsleep 100 & wait\n")
    nvcc.chmod(0o755)
    found = gpu_native.build(tmp_path / "built", "sm_90", str(nvcc), seconds=0.3)
    assert found == {"peers": "gpu_peers.cu is not compiled in 0 s"}
    nvcc.write_text("#!/bin/sh\necho no such thing; exit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    carried, lines = tmp_path / "carried", []
    carried.write_text("a file, in which there can be no folder")
    found = gpu_native.compiled(tmp_path / "other", "sm_90", carried, lines.append, 60)
    assert found == {"peers": "nvcc rejects gpu_peers.cu: no such thing\n"}
    assert lines == ["peers in CUDA, peers: nvcc rejects gpu_peers.cu: no such thing\n"]


def test_without_nvcc_the_peers_say_so(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_native.shutil, "which", lambda _: None)
    lines = []
    found = gpu_native.compiled(tmp_path, "sm_90", None, lines.append, 60)
    assert set(found.values()) == {"no nvcc on the PATH"}
    assert lines == ["no nvcc on the PATH: no peers in CUDA"]


def test_carried_sources_are_unpacked_and_found(tmp_path):
    archives = tmp_path / "archives"
    archives.mkdir()
    with zipfile.ZipFile(archives / "some-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("accelerated_scan/warp.cuh", "kernel")
    gpu_fetch.unpack(tmp_path)
    found = gpu_native.sources(tmp_path)
    assert found["accelerated"] == tmp_path / "packages" / "accelerated_scan"
    assert "mamba" not in found and gpu_native.sources(None) == {"peers": None}


def test_the_sanitizer_runs_the_comparisons(tmp_path, monkeypatch):
    """The command that it is given runs, on the simulated device here."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        '#!/bin/sh\necho "$@" >> "$(dirname "$0")/told"\n[ "$2" = racecheck ] && exit 9\nexit 0\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    lines = []
    assert not gpu_checks.sanitized(lines.append)
    clean = [line.removeprefix("compute-sanitizer ").split(":") for line in lines]
    assert [kind for kind, said in clean if said == " clean"] == [
        "memcheck",
        "synccheck",
        "initcheck",
    ]
    told = (tmp_path / "told").read_text().split("\n")
    assert told[0].startswith("--tool memcheck --error-exitcode 9 ")
    assert told[0].endswith(f"{sys.executable} -m bench.gpu --check-only")
    lines.clear()
    monkeypatch.setattr(gpu_checks, "check_cases", lambda _: [Case("affine", (2, 40))])
    found = gpu.run(dry_run=False, check_only=True, seconds=300, say=lines.append)
    assert found["times"] == [] and len(found["errors"]) == 11
    assert lines[-1] == f"compared with float64: {len(found['errors'])} plans, 0 wrong"


def test_the_peers_in_cuda_compile(tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is missing")
    made = gpu_native.build(tmp_path, "sm_90", nvcc)
    assert made.keys() == {"peers"} and made["peers"].parent == tmp_path
    assert gpu_native.build(tmp_path, "sm_90", "no compiler") == made, "what is there is kept"
    library = gpu_native.ctypes.CDLL(str(made["peers"]))
    for family in gpu_native.PEERS.values():
        assert all(kind in ("peers", "mamba", "accelerated") for kind, _ in family.values())
    assert library.peer_cub_affine and library.peer_cub_sum and library.peer_copy
