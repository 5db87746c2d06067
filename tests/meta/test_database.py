"""Databases, by doing it: two writers, a kill in the middle, full disks, hostile files."""

import base64
import json
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tests import ROOT
from tests.support import forks
from tests.support.cuda_harness import CUDA_TARGET
from tests.support.forks import Forked
from tvm_scan import ScanPlan, library
from tvm_scan._versions import why_foreign
from tvm_scan.meta import RecordStore
from tvm_scan.meta.search.candidates import candidate_of
from tvm_scan.meta.store import files as files_module
from tvm_scan.meta.store.failure import RecordError
from tvm_scan.meta.store.provenance import provenance
from tvm_scan.meta.store.replay import replay
from tvm_scan.schedules.splice import ensure_blocks

CPU = Target({"kind": "llvm", "num-cores": 2})
FUNC = library.cumsum(4, 4096)
MOD = tvm.IRModule({"main": ensure_blocks(FUNC)})
FACTS = provenance(CPU, 0)
RECORDS, WORKLOADS = "database_tuning_record.json", "database_workload.json"


def record_of(seconds, plan=None, mod=MOD, target=CPU):
    made = candidate_of(mod, (plan or ScanPlan.of("cpu", "lanes", lane_block=2),), target)
    workload = ms.database.Workload(mod)
    return ms.database.TuningRecord(
        made.measure.sch.trace, workload, [seconds], target, made.measure.args_info
    )


def commit(store, seconds, **options):
    mod = options.get("mod", MOD)
    return store.commit(mod, record_of(seconds, **options), FACTS)


@pytest.fixture
def store(tmp_path):
    made = RecordStore(tmp_path / "records")
    for seconds in (3.0, 1.0, 2.0):
        commit(made, seconds)
    return made


def times(store):
    return [entry.seconds for entry in store.entries()]


def test_what_is_committed_is_read(store):
    assert times(store) == [3.0, 1.0, 2.0]
    assert store.best(FUNC, CPU).seconds == 1.0
    assert store.best(FUNC.with_attr("global_symbol", "other"), CPU).seconds == 1.0
    assert store.best(library.cumsum(4, 4095), CPU) is None
    assert store.best(library.cumprod(4, 4096), CPU) is None
    again = RecordStore(store.folder)
    assert [e.digest for e in again.entries()] == [e.digest for e in store.entries()]
    assert (store.folder / WORKLOADS).read_text().count("\n") == 1
    assert not list(store.folder.glob(".tvm-scan-*"))


def test_stock_tvm_reads_it(store):
    database = ms.database.JSONDatabase(
        str(store.folder / WORKLOADS), str(store.folder / RECORDS), allow_missing=False
    )
    assert sorted(float(r.run_secs[0]) for r in database.get_all_tuning_records()) == [1, 2, 3]


def test_a_record_of_another_target_or_version_is_not_applied(store, caplog):
    assert store.best(FUNC, Target({"kind": "llvm", "num-cores": 3})) is None
    assert store.best(FUNC, CUDA_TARGET) is None
    assert replay(store, FUNC, CUDA_TARGET) is None
    assert replay(store, FUNC, CPU) is not None
    path = store.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for facts in manifest["records"].values():
        facts["tvm"] = "0.26.1"
    path.write_text(json.dumps(manifest))
    with caplog.at_level("INFO", "tvm_scan"):
        assert store.best(FUNC, CPU) is None
    assert "found one of 0.26.1" in caplog.text
    good, others = store.usable(CPU)
    assert (len(good), len(others)) == (0, 3)
    path.unlink()
    assert store.best(FUNC, CPU) is None
    assert "whose versions the manifest names" in store.usable(CPU)[1][0][1]


def test_reasons():
    assert why_foreign(FACTS) is None
    assert "tvm_scan" in why_foreign({**FACTS, "tvm_scan": "9.0"})
    assert "found none" in why_foreign(None)


def test_a_failed_measurement_of_stock_tvm_is_not_applied(tmp_path):
    store = RecordStore(tmp_path)
    commit(store, 1e10)
    assert store.best(FUNC, CPU) is None
    assert "failed measurement" in store.usable(CPU)[1][0][1]


HOSTILE = {
    "truncated": lambda text: text[:-50],
    "no json": lambda text: text + "hello\n",
    "deep": lambda text: text + "[" * 200_000 + "\n",
    "binary": lambda text: text + "\x00\x01\ufffd\n",
    "another shape": lambda text: text + '{"a": 1}\n[0]\n[0, 1]\n[0, [1, 2, 3, 4]]\nnull\n',
    "a workload that is not there": lambda text: text + text.replace("[0,", "[7,", 1),
    "a negative workload": lambda text: text + text.replace("[0,", "[-1,", 1),
    "times that are none": lambda text: (
        text + '[0,[[[],[]],[NaN],{},[]]]\n[0,[[[],[]],["a"],{},[]]]\n[0,[[[],[]],[-1],{},[]]]\n'
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_record_file_loses_no_record(store, name, caplog):
    path = store.folder / RECORDS
    before = times(store)
    path.write_text(HOSTILE[name](path.read_text()))
    after = times(store)
    assert after == before or (name == "truncated" and after == before[: len(after)] != [])
    assert store.rejected
    assert f"{RECORDS}:" in caplog.text
    commit(store, 0.5)
    assert times(store) == [*after, 0.5]
    assert store.rejected == []
    assert (path.parent / f"{RECORDS}.rejected").read_text().strip()
    assert store.best(FUNC, CPU).seconds == 0.5


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        '["1","AAAA"]',
        '["1","!!"]',
        json.dumps(["x", "AAAA"]),
        json.dumps(["1", base64.b64encode((99).to_bytes(8, "little") + b"{}").decode()]),
        json.dumps(["1", base64.b64encode((2).to_bytes(8, "little") + b"{}").decode()]),
        "truncat",
    ],
)
def test_a_hostile_workload_keeps_the_numbers_of_the_others(store, line):
    other = library.cumsum(4, 512)
    mod = tvm.IRModule({"main": ensure_blocks(other)})
    path = store.folder / WORKLOADS
    good = path.read_text()
    path.write_text(line + "\n" + good)
    records = store.folder / RECORDS
    records.write_text(records.read_text().replace("[0,", "[1,", 3))
    assert times(store) == [3.0, 1.0, 2.0]
    commit(store, 7.0, mod=mod)
    assert times(store) == [3.0, 1.0, 2.0, 7.0]
    assert store.best(other, CPU).seconds == 7.0
    assert (store.folder / f"{WORKLOADS}.rejected").read_text() == line + "\n"


def test_a_hostile_manifest_costs_the_provenance_alone(store):
    (store.folder / "manifest.json").write_text('{"records": {"a": 1}}')
    assert times(store) == [3.0, 1.0, 2.0]
    assert store.best(FUNC, CPU) is None
    commit(store, 4.0)
    assert store.best(FUNC, CPU).seconds == 4.0


def test_no_database_is_one_sentence(tmp_path):
    with pytest.raises(RecordError, match=r"expected .*json in .*, found nothing; give the folder"):
        RecordStore(tmp_path / "none").entries()
    with pytest.raises(RecordError, match="found a folder without one"):
        RecordStore(tmp_path).entries()
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="expected a folder to write to"):
        commit(RecordStore(tmp_path / "file" / "x"), 1.0)


def test_a_full_disk_loses_nothing(store):
    size = (store.folder / RECORDS).stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
    try:
        with pytest.raises(RecordError, match="every earlier record is still there"):
            commit(store, 0.1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert times(store) == [3.0, 1.0, 2.0]
    assert not list(store.folder.glob(".tvm-scan-*"))
    commit(store, 0.1)
    assert times(store)[-1] == 0.1


WRITER = """
import sys
import threading
sys.path.insert(0, {root!r})
from tests.meta.test_database import *
store = RecordStore(sys.argv[1])
entry = record_of(1.0)
print("ready", flush=True)
sys.stdin.readline()
i = 0
while i < int(sys.argv[3]):
    record = ms.database.TuningRecord(
        entry.trace, entry.workload, [float(sys.argv[2]) + i], CPU, entry.args_info)
    store.commit(MOD, record, FACTS)
    i += 1
    print(i, flush=True)
"""


def writer(folder, first, count):
    root = str(ROOT)
    return Forked(
        [sys.executable, "-c", WRITER.format(root=root), str(folder), str(first), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def go(process):
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_writers_and_a_kill_in_the_middle(store):
    with writer(store.folder, 1000, 25) as one, writer(store.folder, 5000, 100_000) as two:
        go(one)
        go(two)
        one.stdout.read()
        assert one.wait(timeout=120) == 0
        said = 0
        while said < 10:
            said = int(two.stdout.readline())
        two.send_signal(signal.SIGKILL)
        said += len(two.stdout.readlines())
    found = set(times(store))
    assert found >= {3.0, 1.0, 2.0, *(1000.0 + i for i in range(25))}
    kept = {t for t in found if t >= 5000}
    assert kept >= {5000.0 + i for i in range(said)}
    assert len(kept) <= said + 1
    commit(store, 9.0)
    assert not list(store.folder.glob(".tvm-scan-*"))
    database = ms.database.JSONDatabase(
        str(store.folder / WORKLOADS), str(store.folder / RECORDS), allow_missing=False
    )
    assert len(database) == len(found) + 1


@pytest.mark.parametrize("dies_at", range(5))
def test_a_death_between_two_files_of_a_compaction(store, monkeypatch, dies_at):
    """Workloads change their numbers when one is dropped: all files change, or none."""
    other = library.cumsum(4, 512)
    commit(store, 7.0, mod=tvm.IRModule({"main": ensure_blocks(other)}))
    calls = []
    real = files_module.replace_file

    class Died(BaseException):
        pass

    def dying(path, text):
        if len(calls) == dies_at:
            raise Died
        calls.append(path)
        real(path, text)

    monkeypatch.setattr(files_module, "replace_file", dying)
    keep = [7.0]
    try:
        store.update(lambda entries: [e for e in entries if e.seconds in keep], compact=True)
        assert dies_at >= 4
    except Died:
        pass
    monkeypatch.setattr(files_module, "replace_file", real)
    found = times(RecordStore(store.folder))
    assert found == ([3.0, 1.0, 2.0, 7.0] if dies_at == 0 else [7.0])
    assert RecordStore(store.folder).best(other, CPU).seconds == 7.0


def test_a_lock_that_is_held_is_named(store, monkeypatch):
    with files_module.locked(store.folder):
        begin = time.monotonic()
        code = (
            "import sys; from pathlib import Path\n"
            "from tvm_scan.meta.store.files import locked\n"
            "with locked(Path(sys.argv[1]), timeout=0.3): pass\n"
        )
        words = [sys.executable, "-c", code, str(store.folder)]
        done = forks.run(words, capture_output=True, text=True)
        assert time.monotonic() - begin < 60
    assert "found it held by another process" in done.stderr


@pytest.mark.parametrize("compact", [False, True])
def test_whoever_writes_waits_for_the_lock(store, compact):
    """Nothing is changed, nor even read, while another writer holds it."""
    asked = threading.Event()

    def change(entries):
        asked.set()
        return entries[:1]

    writing = threading.Thread(target=store.update, args=(change,), kwargs={"compact": compact})
    with files_module.locked(store.folder):
        writing.start()
        assert not asked.wait(0.5), "it did not wait"
    writing.join(30)
    assert asked.is_set() and times(store) == [3.0]
