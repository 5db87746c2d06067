"""Every script of docs/benchmarks.md runs, in its quick form, compares what it measures with
float64, and says in its result what it was measured on and how."""

import importlib
import json
import os
import re
import sys

import pytest

from tests import ROOT
from tests.devices.table import DRIVERS
from tests.gpu import test_bench
from tests.support import forks
from tests.support.cusim import nvcc

pytest.importorskip("tabulate")
pytest.importorskip("torch")

#: Arguments of the quick form; ``{out}`` is a file for the result, without which there is none.
QUICK = {
    "cpu": "--largest 40000 --only affine --seconds 0.1 --json {out}",
    "defaults": "--quick --json {out}",
    "regret": "--quick --json {out}",
    "ablation": "--only affine --largest 16384 --seconds 0.01 --json {out}",
    "tuned": "--only cumsum --trials 2 --minutes 0.2 --seconds 0.1 --json {out}",
    "torch_bench": "--quick --seconds 0.05 --out {out}",
    "torch_overhead": "--calls 1 --rounds 3 --json {out}",
    "torch_first_call": "--only cumsum --json {out}",
    "relax_cumulative": "--quick --json {out}",
    "relax_fuse": "--quick --json {out}",
    "relax_overhead": "--rounds 1 --json {out}",
    "delta": "--quick --json {out}",
    "targets": "--quick --json {out}",
    "machine_code": "--quick --json {out}",
    "extraction": "--quick --json {out}",
    "numerics": "--only product --longest 64 --json {out}",
    "train_mamba": "--steps 2 --batch 2 --length 8 --width 8 --depth 1 --states 2 --json {out}",
    "relax_models": "--small --models mamba --lengths 4 --plain-up-to 4 --seconds 400 --json {out}",
    "roofline": "--out {out}.svg",
}
#: What a script needs of the machine: why it is not there, or None.
NEEDED = {
    "targets": lambda: next((w for d in DRIVERS.values() if (w := d.why_unavailable())), None),
    "machine_code": lambda: None if nvcc.nvdisasm_path() else "no nvdisasm: no code to read",
}
#: Run on the simulated device, by this test.
ON_A_DEVICE = {
    "gpu": test_bench.test_a_dry_run_compares_every_plan_with_float64_and_times_the_ladders,
    "gpu_choice": test_bench.test_every_plan_of_a_shortlist_is_built_and_timed,
}
#: Not run: the page says so, and why.
NOT_RUN = ("search",)
#: Predicts, and so measures nothing; what it prints is on the page (tests/gpu/test_roofline.py).
WITHOUT_RESULT = ("roofline",)


def rows_of_the_page():
    return re.findall(r"^\| `python -m bench\.(\w+)`", page(), re.M)


def page():
    return (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def test_every_script_of_the_page_is_run():
    assert sorted(rows_of_the_page()) == sorted([*QUICK, *ON_A_DEVICE, *NOT_RUN])
    assert "quick form\nof every script but `bench.search`" in page()
    for name, test in ON_A_DEVICE.items():
        assert test.__globals__[name] is importlib.import_module(f"bench.{name}")


def test_the_page_says_which_results_are_there():
    there = {path.stem for path in (ROOT / "bench" / "results").glob("*.json")}
    named = set(re.findall(r"\]\(\.\./bench/results/(\w+)\.json\)", page()))
    assert named == there


@pytest.mark.parametrize("name", QUICK)
def test_quick_forms(name, tmp_path):
    if name in NEEDED and (reason := NEEDED[name]()):
        pytest.skip(reason)
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", f"bench.{name}", *QUICK[name].format(out=out).split()]
    done = forks.run(
        command,
        torch=True,
        cwd=ROOT,
        env={**os.environ, "TVM_SCAN_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if name in WITHOUT_RESULT:
        return
    machine = json.loads(out.read_text())["machine"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", machine["date"])
    assert machine["command"].startswith(f"python -m bench.{name} ")
    assert str(tmp_path) not in json.dumps(machine)
    assert {"cpu", "cores", "cache_bytes", "tvm", "commit", "TVM_NUM_THREADS"} <= machine.keys()
    if (ROOT / ".git").exists():
        assert re.fullmatch(r"[0-9a-f]{12}\+?", machine["commit"])
