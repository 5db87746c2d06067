"""tune, list, show, best, apply, merge, prune, export and import, as a user meets them."""

import json
import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from tests.cli.test_command import REFUSED, SOURCE
from tests.support import forks

MODULE = """
import tvm
from tvm import relax
from tvm.script import ir as I, relax as R


@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2, 300), "float32")) -> R.Tensor((2, 300), "float32"):
        with R.dataflow():
            y = R.cumsum(x, axis=1)
            z = R.add(y, x)
            R.output(z)
        return z
"""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli_records")
    (folder / "decay.py").write_text(SOURCE)
    (folder / "refused.py").write_text(REFUSED)
    (folder / "model.py").write_text(MODULE)
    program = "from tvm_scan.cli import main\nif __name__ == '__main__': main()"
    done = forks.run(
        [sys.executable, "-c", program, "tune", "library:linear_recurrence", "--shape", "2,300"]
        + ["--budget", "3", "--database", str(folder / "records"), "--json"],
        workers=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


WHAT = ("library:linear_recurrence", "--shape", "2,300")


def test_tune_reports_default_loop_and_best(tuned):
    (found,) = tuned[1]["functions"]
    assert found["function"] == "linear_recurrence"
    assert len(found["trials"]) == 3 < found["space"]
    assert found["best_seconds"] == min(t["seconds"] for t in found["trials"])
    assert found["sequential_seconds"] is not None
    assert not tuned[1]["interrupted"]


def test_list_show_best(tuned, command, tmp_path):
    records = tuned[0] / "records"
    code, text, _ = command("list", records, "--json")
    rows = json.loads(text)["records"]
    assert (code, len(rows)) == (0, 3)
    assert all(row["unusable"] is None and row["shapes"] == "2x300" for row in rows)
    code, text, _ = command("list", records)
    assert "3 usable records, 0 others, 0 bad lines" in text
    picture = tmp_path / "tree.svg"
    code, text, _ = command("show", records, rows[0]["id"][:10], "--details", "--svg", picture)
    assert code == 0
    plan = re.search(r"^plan +((?:.|\n {10})*)", text, re.MULTILINE)[1]
    assert " ".join(plan.split()) == rows[0]["plans"][0]
    assert "sch.annotate" in text and "seed" in text and "us, predicted" in text
    assert picture.read_text().startswith("<svg")
    code, text, _ = command("show", records, rows[0]["id"], "--details", "--json")
    assert json.loads(text)["recurrences"][0]["costs"]["work"] >= 600
    code, text, _ = command("best", records, *WHAT, "--json")
    assert (code, json.loads(text)["linear_recurrence"]["id"]) == (0, rows[0]["id"])


def test_apply_writes_a_library_that_the_runtime_loads(tuned, command, tmp_path):
    library = tmp_path / "scan.so"
    code, text, _ = command("apply", tuned[0] / "records", *WHAT, "-o", library, "--json")
    assert code == 0
    assert json.loads(text)["functions"]["linear_recurrence"]["plans"]
    program = (
        "import sys, ctypes, numpy as np, tvm_ffi\n"
        "from tvm_scan.artifact import _installed_runtime\n"
        "ctypes.CDLL(str(_installed_runtime()), ctypes.RTLD_GLOBAL)\n"
        "def aligned(value):\n"
        "    raw = np.zeros(value.nbytes + 64, 'uint8')\n"
        "    start = -raw.ctypes.data % 64\n"
        "    view = raw[start : start + value.nbytes].view(value.dtype).reshape(value.shape)\n"
        "    view[...] = value\n"
        "    return view\n"
        "rng = np.random.default_rng(0)\n"
        "a, x, h = (aligned(rng.random((2, 300), dtype='float32')) for _ in range(3))\n"
        "scan = tvm_ffi.load_module(sys.argv[1])['linear_recurrence']\n"
        "scan(*(tvm_ffi.from_dlpack(v) for v in (a, x, h)))\n"
        "np.save(sys.argv[2], np.stack([a, x, h]))\n"
        "assert 'tvm' not in sys.modules\n"
    )
    out = tmp_path / "out.npy"
    subprocess.run([sys.executable, "-c", program, library, out], check=True)
    a, x, h = np.load(out).astype("float64")
    state = np.zeros(2)
    for t in range(300):
        state = a[:, t] * state + x[:, t]
        np.testing.assert_allclose(h[:, t], state, rtol=1e-5)


def test_merge_prune_export_import(tuned, command, tmp_path):
    records = tuned[0] / "records"
    mine, other = tmp_path / "mine", tmp_path / "other"
    assert json.loads(command("merge", mine, records, "--json")[1]) == {"added": 3, "records": 3}
    assert json.loads(command("merge", mine, records, "--json")[1]) == {"added": 0, "records": 3}
    best = json.loads(command("best", mine, *WHAT, "--json")[1])["linear_recurrence"]["id"]
    code, text, _ = command("prune", mine)
    assert (code, text.strip()) == (0, f"2 dropped; 1 records in {mine}")
    assert json.loads(command("best", mine, *WHAT, "--json")[1])["linear_recurrence"]["id"] == best
    archive = tmp_path / "records.zip"
    assert command("export", records, "-o", archive)[0] == 0
    assert json.loads(command("import", archive, other, "--json")[1]) == {"added": 3, "records": 3}
    assert json.loads(command("import", archive, mine, "--json")[1]) == {"added": 2, "records": 3}


def test_a_hostile_archive(command, tmp_path):
    bad = tmp_path / "bad.zip"
    bad.write_text("no archive")
    code, _, error = command("import", bad, tmp_path / "into")
    assert (code, "expected a file of tvm-scan export" in error) == (2, True)
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("../../escape", "x")
        archive.writestr("database_tuning_record.json", "hello\n")
    code, text, _ = command("import", bad, tmp_path / "into", "--json")
    assert (code, json.loads(text)["added"]) == (0, 0)
    assert not (tmp_path.parent / "escape").exists()


def test_a_module_is_tuned_as_its_pipeline_looks_it_up(tuned, command, tmp_path):
    import tvm
    from tvm.target import Target

    from tests.meta.test_database import FACTS
    from tests.meta.test_search import pretend
    from tvm_scan import ScanPlan
    from tvm_scan.cli.support.load import load_module
    from tvm_scan.cli.support.programs import load_program
    from tvm_scan.meta import RecordStore
    from tvm_scan.meta.search.candidates import candidate_of
    from tvm_scan.relax import get_pipeline

    target = Target.from_device("cpu")
    path = tuned[0] / "model.py"
    program = load_program(str(path), None, None, "float32", target)
    assert list(program) == ["fused_add_cumsum"]
    result = pretend(tmp_path / "records", program, trials=3)
    assert [f.name for f in result.functions] == ["fused_add_cumsum"]
    store = RecordStore(tmp_path / "records")
    (func,) = program.values()
    entry = store.entries()[0]
    plan = ScanPlan.of("cpu", "three_phase", chunks=2)
    made = candidate_of(entry.mod, (plan,), target)
    fast = tvm.s_tir.meta_schedule.database.TuningRecord(
        made.measure.sch.trace,
        tvm.s_tir.meta_schedule.database.Workload(entry.mod),
        [1e-9],
        target,
        made.measure.args_info,
    )
    store.commit(entry.mod, fast, FACTS)
    assert store.best(func, target).plans == [plan]
    mod = load_module(path)
    from tvm_scan.relax import scan_passes

    text = scan_passes(target, store)(mod).script()
    assert "scan_reduce" in text, "the record's plan, not the default one"
    vm = tvm.relax.VirtualMachine(
        tvm.compile(mod, target=target, relax_pipeline=get_pipeline(target, store)), tvm.cpu()
    )
    x = np.random.default_rng(0).integers(-3, 4, (2, 300)).astype("float32")
    np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(x)).numpy(), np.cumsum(x, 1) + x)


BAD = [
    (("list", "nowhere"), 2, r"expected database_tuning_record.json in nowhere, found nothing"),
    (("show", "{records}", "zzz"), 4, "expected the id of one record, got 'zzz', which 0"),
    (("best", "{records}", "library:cumsum"), 4, "expected a record of cumsum .* found none"),
    (("best", "{records}", "library:cumsum", "--shape", "3"), 2, "--shape rows,length as numbers"),
    (("best", "{records}", *WHAT, "--target", "cuda"), 4, "passed over: expected a record for"),
    (("tune", "library:cumsum", "--budget", "soon"), 2, "trials .64. or minutes .10m., got soon"),
    (("tune", "library:nothing"), 2, "expected one of cummax"),
    (("tune", "{folder}/refused.py"), 3, r"(?s)refused.*\^\^\^"),
    (("tune", "{folder}/decay.py", "--shape", "3,4"), 2, "--shape for library:NAME alone"),
    (("tune", "{folder}/none.py"), 2, "expected a Python file, found nothing"),
    (("tune", "library:cumsum", "--key", "gpu"), 2, "--tracker host:port and --key NAME together"),
    (("apply", "{records}", *WHAT, "-o", "x.txt"), 2, "expected --output as a .so file"),
    (("merge", "{folder}/new", "{folder}"), 2, "found a folder without one"),
    (("export", "{records}", "-o", "/nowhere/x.zip"), 2, "expected to write /nowhere/x.zip"),
    (("prune", "{records}", "--top", "0"), 2, "Invalid value for '--top'"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), BAD)
def test_bad_input_is_one_sentence(tuned, command, arguments, code, text):
    import re

    folder = str(tuned[0])
    filled = [a.format(records=f"{folder}/records", folder=folder) for a in arguments]
    got, _, error = command(*filled)
    assert got == code, error
    assert re.search(text, error), error
    assert "Traceback" not in error


def test_an_interrupted_search_has_an_exit_code_of_its_own(command, tmp_path, monkeypatch):
    from tvm_scan.meta.search import tune as module

    def interrupted(program, target, database, **_options):
        from tvm_scan.meta.search.result import TuningResult

        return TuningResult(database, interrupted=True)

    monkeypatch.setattr(module, "tune", interrupted)
    code, text, error = command("tune", "library:cumsum", "--database", tmp_path)
    assert (code, "every record is kept" in error) == (130, True)
    assert f"records     {tmp_path}" in text


def test_help_builds_each_command_once_and_imports_nothing_heavy():
    program = """
import collections, sys
import typer.main
sys.argv = ["tvm-scan", "--help"]
built = collections.Counter()
build = typer.main.get_command_from_info
def counted(*infos, **options):
    built[(*infos, options.get("command_info"))[0].callback] += 1
    return build(*infos, **options)
typer.main.get_command_from_info = counted
from tvm_scan.cli import main
try: main()
except SystemExit as done: assert not done.code
heavy = {"tvm", "tvm_ffi", "numpy", "torch", "filelock"} & set(sys.modules)
assert not heavy, heavy
assert len(built) >= 20 and max(built.values()) == 1, built
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", ["tune", "list", "show", "best", "apply", "merge", "prune", "export", "import"]
)
def test_help_has_an_example(command, name):
    code, text, _ = command(name, "--help")
    assert code == 0
    assert f"Example: tvm-scan {name}" in " ".join(text.split())


BOUND = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def bound(X: T.Buffer((5, 300), "float32"), H: T.Buffer((5, 300), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        for tx in T.thread_binding(8, thread="threadIdx.x"):
            for t in range(300):
                with T.sblock("scan"):
                    vb = T.axis.spatial(5, tx)
                    vt = T.axis.opaque(300, t)
                    T.where(tx < 5)
                    H[vb, vt] = T.if_then_else(vt > 0, H[vb, vt - 1], T.float32(0)) + X[vb, vt]
"""


def test_a_function_bound_to_threads_is_tuned(command, tmp_path):
    (tmp_path / "bound.py").write_text(BOUND)
    where = ["--database", tmp_path / "records", "--budget", "2", "--json"]
    code, text, error = command("tune", tmp_path / "bound.py", *where)
    assert code == 0, error
    (found,) = json.loads(text)["functions"]
    assert [t["error"] for t in found["trials"]] == [None, None]
    assert found["sequential_seconds"] > 0 and found["default_seconds"] > 0
    output = tmp_path / "bound.so"
    code, _, error = command("apply", tmp_path / "records", tmp_path / "bound.py", "-o", output)
    assert code == 0, error
