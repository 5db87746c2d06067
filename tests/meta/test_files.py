"""A database whose disk is full, whose writer dies, or whose files are cut short: at every step."""

import errno
import json
import os
import tempfile

import pytest
import tvm
from tvm.s_tir import meta_schedule as ms

from tests.meta.test_database import CPU, FUNC, RECORDS, WORKLOADS, commit, times
from tvm_scan import library
from tvm_scan.meta import RecordStore
from tvm_scan.meta import files as files_module
from tvm_scan.meta.files import RecordError
from tvm_scan.schedules.splice import ensure_blocks

OTHER = library.cumsum(4, 512)
MOD = tvm.IRModule({"main": ensure_blocks(OTHER)})
BEFORE = [3.0, 1.0, 2.0]


@pytest.fixture
def store(tmp_path):
    made = RecordStore(tmp_path / "records")
    for seconds in BEFORE:
        commit(made, seconds)
    return made


def is_whole(store, after):
    """Every earlier record is read, applied, and read by stock TVM; so is what came after."""
    found = times(RecordStore(store.folder))
    assert found == BEFORE or (after and found == [*BEFORE, 7.0])
    assert RecordStore(store.folder).best(FUNC, CPU).seconds == 1.0
    database = ms.database.JSONDatabase(
        str(store.folder / WORKLOADS), str(store.folder / RECORDS), allow_missing=False
    )
    assert len(database) == len(found)
    assert not list(store.folder.glob("*.part"))


def full_at(monkeypatch, module, name, when):
    """Let the call number ``when`` of a function find no room; how many calls there were."""
    real, calls = getattr(module, name), []

    def full(*args, **options):
        calls.append(args)
        if len(calls) - 1 == when:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **options)

    monkeypatch.setattr(module, name, full)
    return calls


@pytest.mark.parametrize("step", [(tempfile, "mkstemp"), (os, "fsync"), (os, "replace")])
@pytest.mark.parametrize("when", range(4))
def test_a_disk_that_is_full_at_any_step(store, monkeypatch, step, when):
    """A record of a new function changes all three files."""
    with monkeypatch.context() as patch:
        calls = full_at(patch, *step, when)
        if when < 3:
            with pytest.raises(RecordError, match=r"No space left .* make room; every earlier"):
                commit(store, 7.0, mod=MOD)
        else:
            commit(store, 7.0, mod=MOD)
        assert len(calls) == min(when + 1, 3)
    is_whole(store, after=when == 3)
    commit(store, 7.0, mod=MOD)
    is_whole(store, after=True)
    assert RecordStore(store.folder).best(OTHER, CPU).seconds == 7.0


@pytest.mark.parametrize("when", range(3))
def test_a_writer_that_dies_between_two_files(store, monkeypatch, when):
    class Died(BaseException):
        pass

    real, calls = files_module.replace_file, []

    def dying(path, text):
        if len(calls) == when:
            raise Died
        calls.append(path)
        real(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(files_module, "replace_file", dying)
        with pytest.raises(Died, match=r"^$"):
            commit(store, 7.0, mod=MOD)
    is_whole(store, after=False)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", '{"database_workload.json": 1}', '{"../escape.json": "x"}', "[" * 99999],
)
def test_a_hostile_journal(store, text, caplog):
    (store.folder / "journal.json").write_text(text)
    is_whole(store, after=False)
    assert "expected what a writer left to do" in caplog.text
    assert (store.folder / "journal.json.rejected").read_text() == text
    assert not (store.folder.parent / "escape.json").exists()
    commit(store, 7.0, mod=MOD)
    is_whole(store, after=True)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_truncated_manifest_keeps_what_is_whole_in_it(store, share):
    path = store.folder / "manifest.json"
    text = path.read_text()
    left = text[: int(share * len(text))]
    path.write_text(left)
    assert times(store) == BEFORE
    good, others = store.usable(CPU)
    assert len(good) == left.count("\n  }"), "the facts of so many records are closed"
    assert share < 0.5 or good
    assert all("whose versions the manifest names" in why for _, why in others)
    commit(store, 7.0, mod=MOD)
    assert times(store) == [*BEFORE, 7.0]
    assert len(store.usable(CPU)[0]) == len(good) + 1
    assert store.rejected == []
    assert json.loads(path.read_text())["records"]


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch):
    full_at(monkeypatch, os, "mkdir", 0)
    with pytest.raises(RecordError, match=r"expected a folder to write to .*No space left"):
        commit(RecordStore(tmp_path / "new"), 1.0)
