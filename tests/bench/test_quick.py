"""Every script of docs/benchmarks.md runs, in its quick form, compares what it measures with
float64, and says in its result what it was measured on and how."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests import ROOT

pytest.importorskip("tabulate")
pytest.importorskip("torch")

#: Arguments of the quick form; ``{out}`` is a file for the result, without which there is none.
QUICK = {
    "cpu": "--largest 40000 --only affine --seconds 0.1 --json {out}",
    "defaults": "--quick --json {out}",
    "ablation": "--only affine --largest 16384 --seconds 0.01 --json {out}",
    "tuned": "--only cumsum --trials 2 --minutes 0.2 --seconds 0.1 --json {out}",
    "torch_bench": "--quick --seconds 0.05 --out {out}",
    "torch_overhead": "--calls 1 --rounds 3 --json {out}",
    "torch_first_call": "--only cumsum --json {out}",
    "relax_cumulative": "--quick --json {out}",
    "relax_fuse": "--quick --json {out}",
    "relax_overhead": "--rounds 1 --json {out}",
    "delta": "--quick --json {out}",
    "extraction": "--quick --json {out}",
    "numerics": "--only product --longest 64 --json {out}",
}
#: Run by other tests, under the name that is imported there.
ELSEWHERE = {
    "gpu": "tests/gpu/test_bench.py",
    "roofline": "tests/gpu/test_roofline.py",
    "train_mamba": "tests/bench/test_train.py",
    "relax_models": "tests/relax/test_models.py",
}
#: Not run: the page says so, and why.
NOT_RUN = ("search",)


def rows_of_the_page():
    return re.findall(r"^\| `python -m bench\.(\w+)`", page(), re.M)


def page():
    return (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def test_every_script_of_the_page_is_run():
    assert sorted(rows_of_the_page()) == sorted([*QUICK, *ELSEWHERE, *NOT_RUN])
    assert "quick form\nof every script but `bench.search`" in page()
    for name, path in ELSEWHERE.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"bench\.{name}\b|bench import .*\b{name}\b|bench\.model_cases", text)


def test_the_page_says_which_results_are_there():
    there = {path.stem for path in (ROOT / "bench" / "results").glob("*.json")}
    named = set(re.findall(r"\]\(\.\./bench/results/(\w+)\.json\)", page()))
    assert named == there


@pytest.mark.parametrize("name", QUICK)
def test_quick_forms(name, tmp_path):
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", f"bench.{name}", *QUICK[name].format(out=out).split()]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TVM_SCAN_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    machine = json.loads(out.read_text())["machine"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", machine["date"])
    assert machine["command"].startswith(f"python -m bench.{name} ")
    assert str(tmp_path) not in json.dumps(machine)
    assert {"cpu", "cores", "cache_bytes", "tvm", "commit", "TVM_NUM_THREADS"} <= machine.keys()
    if (ROOT / ".git").exists():
        assert re.fullmatch(r"[0-9a-f]{12}\+?", machine["commit"])
