"""A database whose disk is full, whose writer dies, or whose files are cut short: at every step."""

import errno
import json
import os
import stat
import time

import pytest
import tvm
from tvm.s_tir import meta_schedule as ms

from tests.meta.test_database import CPU, FUNC, RECORDS, WORKLOADS, commit, times
from tests.support.damage import copied, read_only, snapshot
from tvm_scan import _files, library
from tvm_scan.meta import RecordStore
from tvm_scan.meta.store import files as files_module
from tvm_scan.meta.store.failure import RecordError
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
    assert not list(store.folder.glob(".tvm-scan-*"))


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


@pytest.mark.parametrize("step", [(_files, "_write"), (os, "fsync"), (os, "replace")])
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
    [
        "",
        "{",
        "[1]",
        '{"other.json": "x"}',
        '{"manifest.json": "\\ud800"}',
        '{"database_workload.json": 1}',
        '{"../escape.json": "x"}',
        "[" * 99999,
    ],
)
def test_a_hostile_journal(store, text, caplog):
    (store.folder / "journal.json").write_text(text)
    is_whole(store, after=False)
    assert "expected what a writer left to do" in caplog.text
    assert (store.folder / "journal.json").read_text() == text, "who reads changes nothing"
    commit(store, 7.0, mod=MOD)
    assert (store.folder / "journal.json.rejected").read_text() == text
    assert not (store.folder.parent / "escape.json").exists()
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


#: Names that only a writer of ours gives; and names that somebody else may give.
OURS = [f".tvm-scan-{'0123456789abcdef'}.json", f".tvm-scan-{'f' * 16}"]
THEIRS = [
    "notes.part",
    "manifest.json.part",
    ".tvm-scan-notes",
    f".tvm-scan-{'f' * 15}.json",
    "a.tmp",
]


def test_files_of_others_are_left_alone(store):
    for name in [*OURS, *THEIRS]:
        (store.folder / name).write_text("mine")
    (store.folder / f".tvm-scan-{'a' * 16}").mkdir()
    before = snapshot(store.folder)
    assert times(store) == BEFORE
    assert snapshot(store.folder) == before, "who reads removes nothing, not even what is ours"
    commit(store, 7.0, mod=MOD)
    left = {path.name for path in store.folder.iterdir()}
    assert left >= {*THEIRS, f".tvm-scan-{'a' * 16}"} and not left & {*OURS}


def test_a_folder_that_may_not_be_written_to_is_read(store, tmp_path):
    with read_only(store.folder):
        assert times(RecordStore(store.folder)) == BEFORE
        assert RecordStore(store.folder).best(FUNC, CPU).seconds == 1.0
        with pytest.raises(RecordError, match=r"expected a folder to write to .*Read-only"):
            commit(store, 7.0)
    folder = copied(store.folder, tmp_path / "fresh")
    (folder / ".lock").unlink()
    assert times(RecordStore(folder)) == BEFORE
    assert not (folder / ".lock").exists(), "who reads makes no lock"


def test_a_journal_is_read_where_it_cannot_be_carried_out(store):
    """A compaction that died in its middle, on a disk that is full since."""
    texts = {
        name: (store.folder / name).read_text() for name in (WORKLOADS, "manifest.json", RECORDS)
    }
    texts[RECORDS] = "".join(texts[RECORDS].splitlines(keepends=True)[:1])
    (store.folder / "journal.json").write_text(json.dumps(texts))
    (store.folder / WORKLOADS).write_text("half")
    with read_only(store.folder):
        assert times(RecordStore(store.folder)) == BEFORE[:1]
    assert times(RecordStore(store.folder)) == BEFORE[:1]
    commit(store, 7.0)
    assert times(RecordStore(store.folder)) == [*BEFORE[:1], 7.0]
    assert not (store.folder / "journal.json").exists()


@pytest.mark.skipif(not hasattr(os, "umask"), reason="no modes of files")
@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_modes_of_files_are_those_of_their_users(tmp_path, umask):
    before = os.umask(umask)
    try:
        made = RecordStore(tmp_path / "records")
        commit(made, 1.0)
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in made.folder.iterdir()}
        assert set(modes.values()) == {0o666 & ~umask}, modes
        assert set(modes) == {".lock", WORKLOADS, RECORDS, "manifest.json"}
        path = made.folder / RECORDS
        path.chmod(0o664)
        commit(made, 2.0)
        assert stat.S_IMODE(path.stat().st_mode) == 0o664, "a shared file stays shared"
    finally:
        os.umask(before)


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs other groups")
def test_a_file_keeps_its_group(store):
    path = store.folder / RECORDS
    os.chown(path, -1, 12345)
    commit(store, 7.0)
    assert path.stat().st_gid == 12345


def test_a_link_is_followed(store, tmp_path):
    path, place = store.folder / RECORDS, tmp_path / "elsewhere.json"
    path.rename(place)
    path.symlink_to(place)
    commit(store, 7.0)
    assert path.is_symlink() and place.read_text().count("\n") == 4
    assert times(store) == [*BEFORE, 7.0]


def test_what_is_no_file_is_written_to_as_it_is(tmp_path):
    """``-o /dev/stdout`` must not put a file in the place of the device."""
    reader, writer = os.pipe()
    _files.write_file(tmp_path / "x", "file")
    device = f"/dev/fd/{writer}"
    if not os.path.exists(device):
        pytest.skip("no /dev/fd")
    _files.write_file(_files.Path(device), "text")
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == "text"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]


def test_very_many_bad_lines_are_few_words(store, caplog):
    path = store.folder / RECORDS
    path.write_text(path.read_text() + "hello\n" * 100_000 + "[1]\n" * 10)
    begin = time.process_time()
    assert times(store) == BEFORE and times(store) == BEFORE
    assert store.bad_lines == 100_010 and len(store.rejected) == 11
    assert "100000 more lines" in store.rejected[-1]
    assert len(caplog.text) < 10_000, "said once"
    commit(store, 7.0)
    assert times(store) == [*BEFORE, 7.0] and store.bad_lines == 0
    assert time.process_time() - begin < 30
    assert (store.folder / f"{RECORDS}.rejected").read_text() == "hello\n[1]\n"


def test_bytes_that_are_no_text_are_set_aside_as_they_are(store):
    path = store.folder / RECORDS
    good = path.read_bytes()
    bad = good.splitlines()[0].replace(b'"main"', b'"ma\xff\xfein"', 1)
    path.write_bytes(good + bad + b"\n")
    assert times(store) == BEFORE
    commit(store, 7.0)
    assert (store.folder / f"{RECORDS}.rejected").read_bytes() == bad + b"\n"


def test_a_program_that_was_damaged_is_not_given_to_tvm(store, caplog):
    """TVM ends the process over an index in its graph that is one too large."""
    import base64

    path = store.folder / WORKLOADS
    (digest, packed) = json.loads(path.read_text())
    text = base64.b64decode(packed).decode("latin-1")
    for number in range(40):
        at = [i for i, c in enumerate(text) if c.isdigit() and i > 100][number * 7]
        other = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
        path.write_text(json.dumps([digest, base64.b64encode(other.encode("latin-1")).decode()]))
        again = RecordStore(store.folder)
        assert len(again.entries()) in (0, 3)
        assert again.usable(CPU)[0] == [] and again.best(FUNC, CPU) is None
        assert all("its text changed" in why for _, why in again.usable(CPU)[1])
        (store.folder / "manifest.json").rename(store.folder / "aside")
        assert again.best(FUNC, CPU) is None and again.usable(CPU)[0] == []
        (store.folder / "aside").rename(store.folder / "manifest.json")
