"""What holds of every command: --json, an example in its help, one sentence for what is bad."""

import json
import re
from types import SimpleNamespace

import pytest
import tvm
import typer
from tvm.target import Target

from tests.meta.test_nearest import CHUNKS, PAIRS, commit
from tvm_scan import library
from tvm_scan.cli.app import app
from tvm_scan.meta import RecordStore

CPU = Target.from_device("cpu")
WHAT = ("library:cumsum", "--shape", "4,4000")


def commands():
    """Every command by its words, with those of a group."""
    found = {}
    table = typer.main.get_command(app)
    for name in table.commands:
        found[name] = command = table.get_command(None, name)
        for inner, sub in getattr(command, "commands", {}).items():
            found[f"{name} {inner}"] = sub
    return found


COMMANDS = commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json_and_an_example(name):
    options = {word for p in COMMANDS[name].params for word in p.opts}
    assert "--json" in options
    text = " ".join(COMMANDS[name].help.split())
    assert f"Example: tvm-scan {name}" in text
    assert all(p.help for p in COMMANDS[name].params if p.param_type_name == "option")


#: Arguments, exit code, and what the one sentence says; every command is among them.
BAD = [
    ("run nowhere.py inputs.npz", 2, "found nothing at nowhere.py; check the path"),
    ("explain library:nothing", 2, "expected one of .*; choose one"),
    (
        "explain library:cumsum --target tpu",
        2,
        "expected --target cpu, cuda, rocm, opencl, metal, vulkan or webgpu, got tpu; choose",
    ),
    ("verify nowhere.py", 2, "found nothing at nowhere.py; check the path"),
    ("verify library:cumsum --plan quickly", 2, "expected device/algorithm.*, got .quickly.; "),
    ("demo --length 0", 2, "Invalid value for .--length.*; see tvm-scan demo --help"),
    ("demo --text nowhere.txt", 2, "expected a text file, found nothing"),
    ("compile nowhere.pt2 -o built", 2, "found nothing at nowhere.pt2; check the path"),
    (
        "compile library:cumsum -o built",
        2,
        "expected a function for a page alone, got the target cpu; pass --target webgpu, or",
    ),
    ("compile model.txt --plan x -o built", 2, "expected --plan for a page alone, got the target"),
    (
        "compile library:cumsum --target webgpu --out built --shape 4,",
        2,
        "expected --shape rows,length as numbers, or letters for what the page chooses, got 4,; ",
    ),
    (
        "compile library:selective_scan --target webgpu --out built",
        2,
        "at most 8 buffers in a kernel of webgpu, got 9",
    ),
    (
        "compile library:cumsum --target webgpu --out b --plan cuda/lanes(threads_per_block=999)",
        2,
        "expected 1 to 256 threads, got threads_per_block=999; use fewer",
    ),
    (
        "compile library:cumsum --target webgpu --out model.txt/page",
        2,
        "compile: expected a folder at .*model.txt, found a file; name another one",
    ),
    (
        "compile library:cumsum --target webgpu --out built --report x.html",
        2,
        "expected --report for a model of the runtime, got a page, .*; leave --report out",
    ),
    (
        "compile library:cumsum --target webgpu --out built --database {records}",
        2,
        "expected no --database for the page of a function, got .*; leave it out",
    ),
    ("compile model.txt -o built", 2, "expected a model as .pt2, .onnx or .py, got model.txt; "),
    ("tune library:cumsum --budget 0", 2, "trials .64. or minutes .10m., got 0; give one"),
    ("tune library:cumsum --seed -1", 2, "Invalid value for .--seed"),
    ("tune library:cumsum --tracker host --key x", 2, "--tracker as host:port, got host; for"),
    (
        "tune library:cumsum --target tpu",
        2,
        "expected --target cpu, cuda, rocm, opencl, metal, vulkan or webgpu, got tpu; choose",
    ),
    (
        "tune library:cumsum --target webgpu",
        2,
        "expected a device of webgpu that TVM can reach, found none.*; tune .* --tracker",
    ),
    ("list nowhere", 2, "found nothing; give the folder of a tuning run"),
    ("show nowhere 1", 2, "found nothing; give the folder of a tuning run"),
    ("show {records} zzz", 4, "expected the id of one record.*; "),
    ("best nowhere library:cumsum", 2, "found nothing; give the folder of a tuning run"),
    ("best {records} library:cumprod", 4, "expected a record of cumprod .*; "),
    ("apply nowhere library:cumsum -o x.so", 2, "found nothing; give the folder"),
    ("apply {records} library:cumprod -o x.so", 4, "expected a record .*; "),
    ("merge {records} nowhere", 2, "found nothing; give the folder of a tuning run"),
    ("prune nowhere", 2, "found nothing; give the folder of a tuning run"),
    ("prune {records} --top none", 2, "Invalid value for .--top.*; see tvm-scan prune --help"),
    ("export nowhere -o x.zip", 2, "found nothing; give the folder of a tuning run"),
    ("import nowhere.zip into", 2, "found nothing at nowhere.zip; check the path"),
    ("compare library:cumsum loop", 2, "at least two sides, got 1 and 1; "),
    ("doctor --database nowhere", 1, "1 thing.s. missing: database"),
    ("calibrate --wide", 2, "No such option: --wide.*; see tvm-scan calibrate --help"),
    ("report nowhere -o x.html", 2, "found nothing; give the folder of a tuning run"),
    ("bench nothing", 2, "expected one of .*, got .nothing.; "),
    ("cache limit much", 2, "(?i)Invalid value for .MEGABYTES.*; see tvm-scan cache limit --help"),
    ("cache sideways", 2, "No such command .sideways.; see tvm-scan cache --help"),
    ("cache path --wide", 2, "No such option: --wide.*; see tvm-scan cache path --help"),
    ("cache clear now", 2, "unexpected extra argument.*; see tvm-scan cache clear --help"),
    ("cache show all", 2, "unexpected extra argument.*; see tvm-scan cache show --help"),
    ("nothing", 2, "No such command .nothing.; see tvm-scan --help"),
]


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Two records of one function; what a command writes lands beside them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TVM_SCAN_CACHE", str(tmp_path / "kernels"))
    (tmp_path / "model.txt").write_text("")
    store = RecordStore(tmp_path / "records")
    for plan, seconds in ((PAIRS, 2e-6), (CHUNKS, 3e-6)):
        commit(store, library.cumsum(4, 4000), plan, seconds)
    return store.folder


@pytest.mark.parametrize(("line", "code", "text"), BAD)
def test_what_is_bad_is_one_sentence_with_its_fix(records, command, line, code, text):
    got, out, error = command(*line.format(records=records).split())
    assert got == code, error
    assert re.search(text, error), error
    assert "Traceback" not in error and not error.startswith("tvm-scan: tvm-scan")
    assert error.count("tvm-scan: ") == 1 and len(error.strip().splitlines()) <= 2, error
    assert line.startswith("doctor") or not out


@pytest.mark.parametrize("target", ["cuda", "cuda:sm_100", '{"kind":"cuda","arch":"sm_80"}'])
def test_a_gpu_that_is_not_there_is_said_however_it_is_named(command, target, monkeypatch):
    monkeypatch.setattr(tvm, "device", lambda *_: SimpleNamespace(exist=False))
    got, out, error = command("tune", "library:cumsum", "--target", target)
    assert (got, out) == (
        2,
        "",
    ) and "expected a device of cuda that TVM can reach, found none" in error


def test_the_table_has_every_command():
    named = {" ".join(line.split()[:2]) for line, _, _ in BAD} | {
        line.split()[0] for line, _, _ in BAD
    }
    assert set(COMMANDS) <= named


#: What prints JSON nowhere else in the tests, by name.
JSON = [
    ("verify library:cumsum", set()),
    ("prune {records}", {"dropped", "records"}),
    ("export {records} -o x.zip", {"records"}),
    ("bench", set()),
    ("cache", {"folder", "bytes", "limit", "entries"}),
    ("cache show", {"folder", "bytes", "limit", "entries"}),
    ("cache path", {"folder"}),
    ("cache limit 7", {"bytes", "limit"}),
    ("cache clear", {"removed", "bytes"}),
]


@pytest.mark.parametrize(("line", "keys"), JSON)
def test_json_is_one_object(records, command, line, keys):
    if line.startswith("cache"):
        pytest.importorskip("torch")
    code, out, error = command(*line.format(records=records).split(), "--json")
    assert code == 0, error
    assert keys <= set(json.loads(out))
