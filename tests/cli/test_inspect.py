"""compare, doctor, report and verify of a database; and every example of every help."""

import base64
import functools
import html
import json
import re
import shlex
import shutil
import sys
from xml.etree import ElementTree

import html5lib
import numpy as np
import pytest
import tvm
import typer
from tvm.target import Target

from tests.cli.test_command import SOURCE
from tests.meta.test_database import FACTS
from tests.meta.test_nearest import CHUNKS, PAIRS, commit
from tvm_scan import ScanPlan, default_plan, extract, library
from tvm_scan.cli import doctor as doctor_module
from tvm_scan.cli.app import app
from tvm_scan.cli.draw.plot import Axis, Series, chart
from tvm_scan.meta import RecordStore
from tvm_scan.schedules.calibration import calibrate as calibration
from tvm_scan.schedules.launch import opencl

CPU = Target.from_device("cpu")
LOOP = ScanPlan.of("cpu", "sequential")
WHAT = ("library:cumsum", "--shape", "4,4000")


@pytest.fixture
def records(tmp_path):
    """Three records of two functions, one of them with a name that is no HTML."""
    store = RecordStore(tmp_path / "records")
    func = library.cumsum(4, 4000)
    commit(store, func, default_plan(CPU, extract(func)), 4e-6)
    commit(store, func, LOOP, 8e-6)
    commit(store, func, PAIRS, 2e-6)
    named = {**FACTS, "function": "<b>&\"'"}
    commit(store, library.selective_scan(1, 4, 64, 8), LOOP, 1e-3, facts=named)
    return store


def test_compare_in_turns(records, command):
    best = records.best(library.cumsum(4, 4000), CPU)
    sides = ["loop", "default", str(CHUNKS), records.folder, f"{records.folder}@{best.digest[:6]}"]
    code, text, _ = command("compare", *WHAT, *sides, "--seconds", "0.05", "--json")
    report = json.loads(text)
    assert (code, report["wrong"]) == (0, [])
    rows = report["rows"]
    assert len(rows) == 5
    assert [row["plan"] for row in rows[2:]] == [str(CHUNKS), str(PAIRS), str(PAIRS)]
    assert rows[0]["ratio"] == rows[0]["low"] == rows[0]["high"] == 1.0
    for row in rows:
        assert row["low"] <= row["ratio"] <= row["high"]
        assert row["seconds"] > 0 and row["rounds"] >= 5
    near = ("library:cumsum", "--shape", "4,3600")
    code, text, _ = command("compare", *near, "loop", records.folder, "--seconds", "0")
    assert (code, "nearest" in text, "speed against loop" in text) == (0, True, True)


def test_compare_reports_a_wrong_side(records, command, monkeypatch):
    from tvm_scan.cli.support import sides as module

    wrong = library.cumsum(4, 4000, exclusive=True)
    monkeypatch.setattr(module, "parallelize", lambda *_: wrong)
    code, text, error = command("compare", *WHAT, "loop", "default", "--seconds", "0", "--json")
    assert code == 1
    assert "tvm_scan found a wrong candidate" in error
    assert json.loads(text)["wrong"][0].startswith("default")


TWO_LOOPS = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def two(X: T.Buffer((1024,), "float64"), H: T.Buffer((1024,), "float64")):
    for t in range(1024):
        H[t] = T.if_then_else(t > 0, H[t - 1], T.float64(0)) + X[t]
    for t in range(1024):
        H[1023 - t] = T.if_then_else(t > 0, H[1024 - t], T.float64(0)) + H[1023 - t]
"""


def test_each_loop_of_a_function_has_its_plan(records, command, tmp_path):
    file, data = tmp_path / "two.py", tmp_path / "data.npz"
    file.write_text(TWO_LOOPS)
    np.savez(data, X=np.ones(1024))
    # The plan of the first of them does not fit the second on a GPU.
    code, text, error = command("explain", file, "--target", "cuda", "--source", "--json")
    assert code == 0, error
    report = json.loads(text)
    assert report["source"].count("__global__") >= 2
    code, _, error = command(
        "explain", file, "--target", "cuda", "--source", "--plan", report["plan"]
    )
    assert (code, "the plan was given for every loop of the function" in error) == (2, True)
    code, text, error = command("run", file, data, "--json")
    assert (code, json.loads(text)["largest_error_to_loop"]["H"] < 1e-9) == (0, True)
    code, text, error = command("verify", file, "--json")
    assert (code, json.loads(text)["plan"].startswith("cpu/")) == (0, True)
    sides = ["loop", "default", "cpu/lanes()", "--seconds", "0", "--json"]
    code, text, error = command("compare", file, *sides)
    assert (code, json.loads(text)["wrong"]) == (0, [])
    one = records.best(library.cumsum(4, 4000), CPU).digest
    code, _, error = command("compare", file, "loop", f"{records.folder}@{one}")
    assert (code, "as many recurrences as this one, got" in error) == (2, True)


def test_verify_runs_every_record(records, command):
    code, text, _ = command("verify", records.folder, "--json")
    rows = json.loads(text)["records"]
    assert (code, [row["result"] for row in rows]) == (0, ["right"] * 4)
    code, text, _ = command("verify", records.folder)
    assert "4 right, 0 wrong, 0 passed over" in text
    path = records.folder / "manifest.json"
    path.write_text(path.read_text().replace(FACTS["tvm"], "0.26.0"))
    code, text, error = command("verify", records.folder)
    assert (code, "found none of 4" in error) == (4, True)
    assert "expected a record of tvm" in text


def test_verify_finds_a_wrong_record(records, command, monkeypatch):
    from tvm_scan.cli.support import rerun as module

    def replayed(_record, _mod, func, _target):
        is_sum = len(func.params) == 2
        return library.cumsum(4, 4000, exclusive=True) if is_sum else func

    monkeypatch.setattr(module, "replay_record", replayed)
    code, text, error = command("verify", records.folder)
    assert (code, "found 3 that do not" in error) == (1, True)
    assert "1 right, 3 wrong, 0 passed over" in text


def test_doctor(records, command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, text, _ = command("doctor", "--json", "--database", records.folder)
    report = json.loads(text)
    found = {finding["name"]: finding for finding in report["findings"]}
    assert (code, report["healthy"]) == (0, True)
    assert "apache-tvm 0.27" in found["tvm"]["found"]
    assert found["target"]["found"].startswith("llvm ")
    assert found["cpu constants"]["found"].split(";")[0] in ("calibrated", "shipped", "estimated")
    assert "4 usable records, 0 others, 0 bad lines" in found["database"]["found"]
    for finding in report["findings"]:
        assert finding["state"] in ("ok", "missing", "optional")
    have = doctor_module.installed
    gone = ("xgboost", "xgboost-cpu")
    monkeypatch.setattr(doctor_module, "installed", lambda d: None if d in gone else have(d))
    code, text, _ = command("doctor")
    assert code == 0
    assert re.search(r"optional  xgboost .*\n +.*-m pip install 'tvm_scan\[tune\]'", text)
    assert "tvm-scan tune library:cumsum" in text, "there is no database in this folder"


@pytest.mark.parametrize("wanted", ["", "1"])
def test_doctor_says_what_counting_the_processors_takes(command, monkeypatch, wanted):
    """TVM's pool asks the system at every call unless a variable says how many threads it has."""
    monkeypatch.setattr("tvm_scan.schedules.machine.machine._counting", lambda: 6.4e-6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("TVM_NUM_THREADS", wanted)
    _, text, _ = command("doctor", "--json")
    findings = {one["name"]: one["found"] for one in json.loads(text)["findings"]}
    said = "without TVM_NUM_THREADS every call of the pool takes 6 us more"
    assert (said in findings["cores"]) == (wanted == "")


def test_verify_on_a_driver(command):
    if opencl.why_unavailable():
        pytest.skip(opencl.why_unavailable())
    code, text, _ = command("verify", "library:cumsum", "--target", "opencl", "--json")
    said = json.loads(text)
    assert (code, said["instead_of"]) == (0, []) and said["plan"].startswith("cuda/")
    assert len(said["runs"]) > 5 and all(run["holds"] for run in said["runs"])


def test_doctor_names_what_brings_a_driver(command, monkeypatch):
    opencl.why_unavailable.cache_clear()
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    code, text, _ = command("doctor")
    opencl.why_unavailable.cache_clear()
    assert code == 0
    said = r"optional  opencl driver .*verify --target opencl\n +pip install pyopencl"
    assert re.search(said, text), text


@pytest.fixture
def quick_calibration(monkeypatch):
    """Each of a dozen measurements takes a hundredth of a second instead of a third."""
    quick = functools.partial(calibration.measured, 0.01)
    monkeypatch.setattr(calibration, "measured", lambda seconds: quick())


def test_calibrate(command, monkeypatch, tmp_path, quick_calibration):
    path = tmp_path / "machine.json"
    monkeypatch.setenv("TVM_SCAN_MACHINE", str(path))
    code, text, _ = command("calibrate", "--json")
    report = json.loads(text)
    assert (code, report["file"]) == (0, str(path))
    assert report["constants"] == json.loads(path.read_text())["constants"]
    _, text, _ = command("doctor", "--json")
    findings = {one["name"]: one["found"] for one in json.loads(text)["findings"]}
    assert findings["cpu constants"] == "calibrated"
    monkeypatch.setenv("TVM_SCAN_MACHINE", "off")
    code, _, error = command("calibrate")
    assert (code, "TVM_SCAN_MACHINE=off" in error) == (2, True)


@pytest.mark.parametrize(("version", "word"), [(None, "no apache-tvm"), ("0.26.0", "0.26.0")])
def test_doctor_on_a_tvm_that_does_not_fit(command, monkeypatch, version, word):
    have = doctor_module.installed
    monkeypatch.setattr(
        doctor_module, "installed", lambda d: version if d == "apache-tvm" else have(d)
    )
    monkeypatch.setattr(doctor_module, "_machine", lambda: pytest.fail("TVM was imported"))
    code, text, error = command("doctor")
    assert (code, "1 thing(s) missing: tvm" in error) == (1, True)
    assert re.search(r"missing +tvm +.*" + word, " ".join(text.split()))
    assert "-m pip install 'apache-tvm>=0.27.0,<0.28'" in text


def test_report_is_one_valid_page(records, command, tmp_path):
    page = tmp_path / "page.html"
    code, text, _ = command("report", records.folder, "-o", page, "--json")
    report = json.loads(text)
    assert (code, len(report["functions"]), report["passed_over"]) == (0, 2, 0)
    text = page.read_text(encoding="utf-8")
    tree = html5lib.HTMLParser(strict=True).parse(text)  # raises on any error of the standard
    elements = {
        tag: [e for e in tree.iter() if str(e.tag).endswith(f"}}{tag}")]
        for tag in ("img", "svg", "circle")
    }
    assert len(elements["svg"]) == 3, "a roofline and two searches"
    assert len(elements["circle"]) == 4 + 2, "each record, and each function under the roof"
    for image in elements["img"]:
        kind, _, data = image.get("src").partition(",")
        assert kind == "data:image/svg+xml;base64"
        ElementTree.fromstring(base64.b64decode(data))
    # Nothing is loaded: no address but those of the namespaces, no script, and a policy says so.
    addresses = set(re.findall(r"https?://[^\"' <]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "<script" not in text and "url(" not in text and "@import" not in text
    assert "default-src 'none'" in text
    assert "<b>&\"'" not in text and html.escape("<b>&\"'", quote=False) in text.replace(
        "&quot;", '"'
    ).replace("&#x27;", "'")
    assert "prefers-color-scheme: dark" in text
    assert "4.00x" in text and "2.00x" in text, "against loop and default"


def test_a_chart_keeps_its_points_inside():
    points = [(1.0, 0.001), (10.0, 5.0), (7.0, 900.0)]
    drawn = chart("t", Axis("x"), Axis("y", log=True), [Series("s", points, "dots")])
    root = ElementTree.fromstring(drawn).find("svg")
    width, height = (float(v) for v in root.get("viewBox").split()[2:])
    dots = [e for e in root.iter() if e.tag == "circle"]
    assert len(dots) == 3
    assert all(0 < float(d.get("cx")) < width and 0 < float(d.get("cy")) < height for d in dots)
    heights = [float(d.get("cy")) for d in dots]
    assert heights == sorted(heights, reverse=True), "larger values are higher up"
    one = chart("t", Axis("x"), Axis("y", log=True), [Series("", [(1.0, 3.0)], "steps", 2)])
    assert "nan" not in one and "inf" not in one


BAD = [
    (["bench", "nothing"], 2, "expected one of .*cpu.*, got .nothing"),
    (("compare", *WHAT, "loop"), 2, "at least two sides, got 1 and 1"),
    (("compare", *WHAT, "loop", "fast"), 2, "expected loop, default, a plan, a folder"),
    (
        ("compare", *WHAT, "loop", "cpu/serial_tiles()"),
        2,
        "lanes, three_phase, delta_walk on cpu, got algorithm=serial_tiles",
    ),
    (("compare", *WHAT, "loop", "{records}@zzz"), 4, "expected the id of one record"),
    (("compare", "library:cumprod", "loop", "{records}"), 4, "expected a record near this"),
    (("compare", *WHAT, "loop", "nowhere@"), 2, "found nothing"),
    (("report", "nowhere", "-o", "x.html"), 2, "found nothing"),
    (("report", "{records}", "-o", "/nowhere/x.html"), 2, "expected a folder at /nowhere"),
    (("verify", "/"), 2, "found a folder without one"),
    (("doctor", "--database", "nowhere"), 1, "1 thing.s. missing: database"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), BAD)
def test_bad_input_is_one_sentence(records, command, arguments, code, text):
    filled = [a.format(records=records.folder) for a in arguments]
    got, _, error = command(*filled)
    assert got == code, error
    assert re.search(text, error), error
    assert "Traceback" not in error


def examples():
    """The last line of every command's help, by name."""
    table = typer.main.get_command(app)
    helps = {name: " ".join(table.get_command(None, name).help.split()) for name in table.commands}
    return {name: text.rpartition("Example: ")[2] for name, text in helps.items()}


def test_every_example_runs(command, tmp_path, monkeypatch, quick_calibration):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TVM_SCAN_MACHINE", str(tmp_path / "machine.json"))
    (tmp_path / "recurrence.py").write_text(SOURCE)
    a, x = np.random.default_rng(0).random((2, 3, 50)).astype("float32")
    np.savez("inputs.npz", A=a, X=x)

    class Sum(torch.nn.Module):
        def forward(self, x):
            return torch.cumprod(torch.cumsum(x, 1), 0)

    torch.export.save(torch.export.export(Sum(), (torch.ones(2, 50),)), "model.pt2")
    found = examples()
    first = ["tune", "run", "explain", "verify", "demo", "compile", "export", "list", "best"]
    order = [*first, *(name for name in found if name not in first)]
    assert set(order) == set(found)
    for name in order:
        words = shlex.split(found[name])
        assert words[:2] == ["tvm-scan", name], found[name]
        if name == "merge":
            shutil.copytree("tvm_scan_records", words[-1])
        if name == "show":  # the id in the help is one of its author's
            words[-1] = RecordStore("tvm_scan_records").entries()[0].digest[:6]
        code, _, error = command(*words[1:])
        assert code == 0, f"{found[name]}\n{error}"
    for path in ("outputs.npz", "tree.svg", "model", "cumsum.so", "records.zip", "report.html"):
        assert (tmp_path / path).exists(), path
    assert (tmp_path / "machine.json").exists(), "and not the user's own"
    assert tvm.runtime.load_module(str(tmp_path / "cumsum.so"))
    # Every recurrence of an exported program.
    code, text, error = command("tune", "model.pt2", "--budget", "2", "--database", "m", "--json")
    assert code == 0, error
    tuned = json.loads(text)["functions"]
    assert len({f["function"] for f in tuned}) == 2
    assert all(len(f["trials"]) == 2 and f["best_seconds"] > 0 for f in tuned)
