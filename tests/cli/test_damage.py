"""Every file that a command reads, damaged in every way: one sentence, and nothing else is lost.

The commands run in this process, so that an exception of any other kind is a failure of the test.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.meta.test_database import CPU, FUNC, commit
from tests.support.damage import DAMAGES, copied, damaged, denied, full_disk, snapshot
from tvm_scan import _resources, default_plan, extract
from tvm_scan.cli.demo import _bytes
from tvm_scan.cli.support.arrays import read_npz
from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.load import load_file
from tvm_scan.cli.support.models import import_model
from tvm_scan.cli.support.terminal import print_json
from tvm_scan.meta import RecordStore
from tvm_scan.meta.store.exchange import export_archive
from tvm_scan.meta.store.failure import RecordError
from tvm_scan.schedules.choose import shipped
from tvm_scan.schedules.choose.plan_of import plan_of

WAYS = [*DAMAGES, "unreadable", "in a read-only folder"]
TARGET = json.dumps({"kind": "llvm", "num-cores": 2})
WHAT = ("library:cumsum", "--shape", "4,4096", "--target", TARGET)
RECORD_FILES = ["database_tuning_record.json", "database_workload.json", "manifest.json"]
#: Done, bad input, no such record.
SAID = (0, 2, 4)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Two records of one function, with a lock, a journal that is empty, and files of others."""
    store = RecordStore(tmp_path_factory.mktemp("damage") / "records")
    for seconds in (2.0, 1.0):
        commit(store, seconds)
    return store.folder


@pytest.fixture
def said(command):
    """Run a command; it may fail with one sentence."""

    def run(*arguments, codes=SAID):
        code, out, err = command(*arguments)
        assert code in codes, err
        assert "Traceback" not in err and len(err) < 20_000, err
        if code:
            assert ("tvm-scan: " in err and "got" in err) or "found" in err, err
        return code, out

    return run


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", [*RECORD_FILES, "journal.json", ".lock"])
def test_files_of_records(sound, tmp_path, said, name, how):
    folder, other = copied(sound, tmp_path / "records"), copied(sound, tmp_path / "other")
    path = folder / name
    path.touch()
    with damaged(path, how):
        before = snapshot(folder) if how != "unreadable" else None
        code, out = said("list", folder, "--json")
        rows = json.loads(out)["records"] if code == 0 else []
        said("best", folder, *WHAT)
        said("merge", other, folder)
        assert before is None or snapshot(folder) == before, "who reads changes nothing"
        assert len(RecordStore(other).entries()) == 2 and RecordStore(other).best(FUNC, CPU)
    if how == "in a read-only folder":
        assert len(rows) == 2 and all(row["unusable"] is None for row in rows)
        return
    if how == "a folder":
        with pytest.raises(RecordError, match=r"found a folder or a device|a folder to write to"):
            commit(RecordStore(folder), 0.5)
        return
    # All else gives way to what is written next.
    commit(RecordStore(folder), 0.5)
    seconds = [entry.seconds for entry in RecordStore(folder).entries()]
    assert seconds[-1] == 0.5 and len(seconds) >= (len(rows) if code == 0 else 0)
    assert RecordStore(folder).best(FUNC, CPU).seconds == 0.5


def poison(folder, change):
    """Change the fastest record, and let the manifest know it by its new name."""
    records, manifest = folder / RECORD_FILES[0], folder / RECORD_FILES[2]
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    facts = json.loads(manifest.read_text())
    store = RecordStore(folder)
    (bad,) = (e for e in store.entries() if e.seconds == 1.0)
    for line in lines:
        if line[1][1] == [1.0]:
            change(line[1])
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (renamed,) = (e for e in RecordStore(folder).entries() if e.facts is None)
    facts["records"][renamed.digest] = facts["records"].pop(bad.digest)
    manifest.write_text(json.dumps(facts))
    return renamed.digest


def decided(name, value):
    """A change of one decision of the plan that a record spells."""

    def change(body):
        for inst in body[0][0]:
            if inst[0] == "Annotate" and inst[2] == [f"tvm_scan.plan.{name}"]:
                inst[1][1] = json.dumps(value) if isinstance(value, str) else value

    return change


def renamed(body):
    for inst in body[0][0]:
        if inst[0] == "Annotate" and inst[2] == ["tvm_scan.plan.prefetch"]:
            inst[2] = ["tvm_scan.plan.pieces"]


POISONS = {
    "a word for a number": (decided("lane_block", "banana"), "expected int for lane_block"),
    "a word for a flag": (decided("vectorize", "banana"), "expected bool for vectorize"),
    "a number for a flag": (decided("vectorize", 7), "expected bool for vectorize, got 7"),
    "a fraction": (decided("prefetch", 1.5), "expected int for prefetch"),
    "a number for a word": (decided("algorithm", 3), "expected str for algorithm"),
    "a vector of 7 steps": (decided("time_vector", 7), "4, 8, 16, 32 or 64 steps"),
    "a vector without end": (decided("time_vector", 2**40), "4, 8, 16, 32 or 64 steps"),
    "a block of -4 lanes": (decided("lane_block", -4), "lanes per block, got lane_block=-4"),
    "a block without end": (decided("lane_block", 2**40), "lanes per block"),
    "no algorithm": (decided("algorithm", "nonsense"), "expected one of sequential, lanes"),
    "another device": (decided("device", "cuda"), "for cuda/lanes, got the field"),
    "another version's word": (renamed, "got the field 'pieces'"),
    "no time at all": (lambda body: body[1].__setitem__(0, 1e-300), "expected a time of at least"),
    "a failed time": (lambda body: body[1].__setitem__(0, 1e10), "a failed measurement"),
    "no target": (lambda body: body[2].update(kind="nothing"), "a record that TVM can read"),
    "a trace of nothing": (
        lambda body: body[0].__setitem__(0, []),
        "a trace that replays to a plan, got one without",
    ),
    "another block": (lambda body: body[0][0][0].__setitem__(2, ["none", "main"]), "TVM can read"),
}


@pytest.mark.parametrize("name", POISONS)
def test_a_poisoned_record_with_a_consistent_manifest(sound, tmp_path, said, name):
    change, reason = POISONS[name]
    folder, other = copied(sound, tmp_path / "records"), tmp_path / "other"
    digest = poison(folder, change)
    code, out = said("list", folder, "--json")
    assert code == 0
    rows = {row["id"]: row["unusable"] for row in json.loads(out)["records"]}
    assert reason in rows.pop(digest) and list(rows.values()) == [None]
    code, out = said("best", folder, *WHAT, "--json")
    assert code == 0 and json.loads(out)["cumsum"]["seconds"] == 2.0
    assert said("show", folder, digest)[0] in (2, 4)
    assert said("merge", other, folder)[0] == 0
    assert [entry.seconds for entry in RecordStore(other).entries()] == [2.0], "it is not spread"
    assert "1 dropped" in said("prune", folder, "--bad")[1]
    assert [entry.seconds for entry in RecordStore(folder).entries()] == [2.0]


def test_a_poisoned_record_ends_no_other_command(sound, tmp_path, said):
    folder = copied(sound, tmp_path / "records")
    digest = poison(folder, decided("time_vector", 7))
    assert said("apply", folder, *WHAT, "-o", tmp_path / "scan.so")[0] == 0
    assert said("report", folder, "-o", tmp_path / "page.html", "--no-roof")[0] == 0
    code, out = said("verify", folder, "--json")
    results = {row["id"]: row["result"] for row in json.loads(out)["records"]}
    assert code == 0 and results.pop(digest) == "passed over"
    assert list(results.values()) == ["right"]
    told = said("doctor", "--database", folder)[1]
    assert "1 others" in " ".join(told.split())
    assert said("export", folder, "-o", tmp_path / "records.zip")[0] == 0
    assert said("compare", "library:cumsum", "--shape", "4,64", "loop", f"{folder}@{digest}")[0]


def encrypted(path):
    data = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(mark)
        while at >= 0:
            data[at + flags] |= 1
            at = data.find(mark, at + 4)
    path.write_bytes(bytes(data))


def unpacking(path):
    """Names and sums are right, and what is packed is not."""
    data = bytearray(path.read_bytes())
    data[60:90] = bytes(30)
    path.write_bytes(bytes(data))


ARCHIVES = {**dict.fromkeys(WAYS), "encrypted": encrypted, "unpacking": unpacking}


@pytest.mark.parametrize("how", ARCHIVES)
def test_an_archive(sound, tmp_path, said, how):
    path, into = tmp_path / "sent" / "records.zip", tmp_path / "into"
    path.parent.mkdir()
    export_archive(RecordStore(sound), path)
    if ARCHIVES[how] is not None:
        ARCHIVES[how](path)
        how = "encrypted"
    if how == "encrypted":
        assert said("import", path, into)[0] == 2
        return
    with damaged(path, how):
        code, out = said("import", path, into)
        assert code == 2 or "2 added" in out


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", ["arrays.npz", "program.py", "model.onnx", "text.txt"])
def test_inputs_of_other_commands(tmp_path, said, name, how):
    path = tmp_path / "given" / name
    path.parent.mkdir()
    buffer = io.BytesIO()
    np.savez(buffer, X=np.zeros((4, 4), "float32"))
    path.write_bytes(buffer.getvalue() if name == "arrays.npz" else b"X = 1\n" * 20)
    if name == "model.onnx":
        pytest.importorskip("onnx")
    readers = {"arrays.npz": read_npz, "model.onnx": import_model, "text.txt": _bytes}
    # Of what may not be opened the system says so itself, and `run` has a sentence for that.
    known = (CommandError, PermissionError) if how == "unreadable" else CommandError
    with damaged(path, how), contextlib.suppress(known):
        readers.get(name, lambda path: load_file(path, None))(path)


@pytest.mark.parametrize("how", [way for way in WAYS if way != "in a read-only folder"])
def test_shipped_records(tmp_path, monkeypatch, how):
    """Every plan that is chosen asks for them."""
    monkeypatch.delenv("TVM_SCAN_RECORDS", raising=False)
    home = tmp_path / "meta"
    path = home / "records" / "here" / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"machine": {}, "records": {}, "defaults": [], "tvm": "0"}))
    monkeypatch.setattr(_resources, "files", lambda _name: home)
    for cached in (_resources.shipped_text, shipped._known):
        cached.cache_clear()
    found = extract(FUNC)
    try:
        with denied(path) if how == "unreadable" else damaged(path, how):
            assert plan_of(found, CPU) == default_plan(CPU, found)
    finally:
        for cached in (_resources.shipped_text, shipped._known):
            cached.cache_clear()


@pytest.mark.parametrize("shapes", [[["k", 1]], [["k", "1", 2]], "word", [[1, 2, 3]], None, [1]])
def test_a_shipped_record_that_is_none(shapes):
    facts = {"plans": ["cpu/lanes()"], "shapes": shapes, "seconds": 1.0}
    assert shipped._read("digest", facts) == []
    assert shipped._read("digest", {**facts, "shapes": [["k", 1, 2]]})
    for bad in ({}, [], {"plans": 3}, {**facts, "seconds": "soon", "shapes": [["k", 1, 2]]}):
        assert shipped._read("digest", bad) == []


@pytest.mark.parametrize("exists", [False, True])
def test_a_full_disk_leaves_what_was_there_and_names_the_file(
    sound, tmp_path, said, command, exists
):
    out = tmp_path / "out"
    out.mkdir()
    writers = {
        "page.html": lambda p: ("report", sound, "-o", p, "--no-roof"),
        "tree.svg": lambda p: ("explain", "library:cumsum", "--svg", p),
        "records.zip": lambda p: ("export", sound, "-o", p),
    }
    for name, arguments in writers.items():
        path = out / name
        if exists:
            path.write_text("before")
        with full_disk():
            code, _, err = command(*arguments(path))
        assert code == 2 and str(path) in err and "expected to write" in err, err
        assert path.read_text() == "before" if exists else not path.exists()
        assert not [p for p in out.iterdir() if p.name.startswith(".")], "nothing half written"
        assert said(*arguments(path))[0] == 0 and path.stat().st_size > 100


def test_a_disk_without_room_for_a_library(sound, tmp_path, command, monkeypatch):
    """LLVM ends the process where it cannot write an object file, so that it is not asked to."""
    path = tmp_path / "scan.so"
    full = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: full)
    code, _, err = command("apply", sound, *WHAT, "-o", path)
    assert code == 2 and f"expected to write {path}" in err and "MiB are free" in err
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")] and not path.exists()


def test_a_full_disk_behind_the_output():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    program = "from tvm_scan.cli import main\nif __name__ == '__main__': main()"
    for where, code in (("/dev/full", 2), ("| head -c 0", 1)):
        redirect = f"> {where}" if code == 2 else where
        text = f'{sys.executable} -c "{program}" bench --json {redirect}; exit ${{PIPESTATUS[0]}}'
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
        assert ("No space left" in done.stderr) == (code == 2)


NAMES = ["[/red]", "[bold]x[/bold]", "a\x1b]0;title\x07b", "line\nbreak", "\ud800", "‮", ":smile:"]


def test_names_are_text(sound, tmp_path, said):
    for number, name in enumerate(NAMES):
        folder = copied(sound, tmp_path / str(number))
        manifest = folder / "manifest.json"
        facts = json.loads(manifest.read_text())
        for one in facts["records"].values():
            one |= {"function": name, "host": name, "date": name, name: name}
        manifest.write_text(json.dumps(facts))
        code, out = said("list", folder)
        assert code == 0 and "\x1b" not in out and "2 usable records" in out
        if name.isprintable():
            assert name in "".join(out.split()) or len(name) > 12
        digest = RecordStore(folder).entries()[0].digest
        code, out = said("show", folder, digest)
        assert code == 0 and "\x1b" not in out
        code, out = said("report", folder, "-o", tmp_path / "page.html", "--no-roof")
        assert code == 0 and "\x1b" not in (tmp_path / "page.html").read_text()


def strictly(text):
    def refuse(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def test_json_has_no_nan(capsys, command):
    values = {"a": [float("nan"), float("inf"), (-float("inf"), 1.5)], "b": None, "c": True}
    print_json(values)
    found = strictly(capsys.readouterr().out)
    assert found == {"a": ["nan", "inf", ["-inf", 1.5]], "b": None, "c": True}
    code, out, _ = command("verify", "library:linear_recurrence", "--json")
    assert code == 0 and strictly(out)["runs"]
