"""The on-disk cache of kernels: whole or absent, private, limited, and locked."""

import os
import stat
import threading

import pytest

torch = pytest.importorskip("torch")

from tests.support.damage import full_disk, read_only  # noqa: E402
from tvm_scan.torch import entries, store  # noqa: E402
from tvm_scan.torch.kernels import cache as kernels  # noqa: E402
from tvm_scan.torch.kernels import digest  # noqa: E402
from tvm_scan.torch.kernels.spec import KernelSpec  # noqa: E402
from tvm_scan.torch.trace import stored_traces  # noqa: E402

#: Labels that are none, of an entry whose content is there.
LABELS = [
    b"",
    b"[]",
    b"3",
    b"null",
    b'"word"',
    b"[" * 200_000,
    b"\xff\xfe",
    b'{"size": NaN}',
    b"9" * 9000,
]
K = "0123456789abcdef" * 2 + "01234567"


def key(index):
    return f"{index:03d}{K[3:]}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_SCAN_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_what_is_inserted_is_found(folder):
    assert entries.fetch(K, ".so") is None
    path = entries.insert(K, ".so", b"content")
    assert entries.fetch(K, ".so") == path == folder / f"{K}.so"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert store.info().entries == 1
    assert store.clear() == 1
    assert entries.fetch(K, ".so") is None


@pytest.mark.parametrize("damage", [b"", b"conten", b"CONTENT", None])
def test_a_damaged_entry_is_removed(folder, damage):
    path = entries.insert(K, ".so", b"content")
    (folder / f"{K}.json" if damage is None else path).write_bytes(damage or b"{")
    assert entries.fetch(K, ".so") is None
    assert not path.exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files")
def test_what_others_may_write_is_not_used(folder, monkeypatch):
    path = entries.insert(K, ".so", b"content")
    path.chmod(0o666)
    assert entries.fetch(K, ".so") is None
    path.chmod(0o600)
    assert entries.fetch(K, ".so") is not None
    folder.chmod(0o777)
    assert store.cache_folder() is None
    folder.chmod(0o700)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert store.cache_folder() is None


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links")
def test_a_link_is_not_followed(folder, tmp_path):
    path = entries.insert(K, ".so", b"content")
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    assert entries.fetch(K, ".so") is None


def test_the_oldest_go_first(folder, monkeypatch):
    monkeypatch.setenv("TVM_SCAN_CACHE_MB", "1")
    for index in range(3):
        entries.insert(key(index), ".so", bytes(400_000))
        os.utime(folder / f"{key(index)}.json", (index, index))
    assert entries.fetch(key(0), ".so") is None  # evicted by the third
    assert entries.fetch(key(1), ".so") is not None  # used now, so k2 is the oldest
    entries.insert(key(3), ".so", bytes(400_000))
    assert entries.fetch(key(2), ".so") is None
    assert store.info().bytes <= 1 << 20


def test_the_limit_holds_and_the_folder_is_not_looked_at_each_time(folder, monkeypatch):
    monkeypatch.setenv("TVM_SCAN_CACHE_MB", "1")
    looks = []
    look = entries.stored
    monkeypatch.setattr(entries, "stored", lambda folder: looks.append(folder) or look(folder))
    for index in range(40):
        entries.insert(key(index), ".so", bytes(1_000))
    assert len(looks) == 1
    for index in range(40, 160):
        entries.insert(key(index), ".so", bytes(10_000))
        assert sum(size for _, size, _ in look(folder)) <= 1 << 20
    assert entries.fetch(key(0), ".so") is None


def test_a_bad_limit_says_what_to_do(folder, monkeypatch):
    monkeypatch.setenv("TVM_SCAN_CACHE_MB", "much")
    with pytest.raises(ValueError, match="number of megabytes in TVM_SCAN_CACHE_MB, got 'much'"):
        store.info()


def test_one_at_a_time(folder):
    order = []

    def work(name):
        with entries.locked(K):
            order.append(name)
            threading.Event().wait(0.05)
            order.append(name)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [order[i] == order[i + 1] for i in (0, 2, 4)] == [True] * 3


@pytest.mark.parametrize("setting", ["off", "folder", "unwritable"])
def test_kernels_with_and_without_a_cache(tmp_path, monkeypatch, setting):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    folders = {"off": "off", "folder": str(tmp_path / K), "unwritable": str(blocked / K)}
    monkeypatch.setenv("TVM_SCAN_CACHE", folders[setting])
    options = (("dtype", "float32"), ("exclusive", False), ("op", "add"), ("reverse", False))
    spec = KernelSpec("cumulative", (*options, ("time_last", True)), ("outer", "inner", "length"))
    monkeypatch.setattr(kernels, "_calls", {})
    monkeypatch.setattr(kernels, "_libraries", {})
    x = torch.ones(1, 2, 9)
    y = torch.empty_like(x)
    kernels.run_kernel(spec, (1, 2, 9), x, y)
    assert torch.equal(y, x.cumsum(2))
    assert (store.info().entries == 2) == (setting == "folder")  # a plan and a library


def test_sources_versions_and_threads_are_in_the_key(monkeypatch):
    spec = KernelSpec("cumulative", (("op", "add"),), ("length",))
    before = kernels._key("library", spec, "plan")
    assert kernels._key("library", spec, "other plan") != before
    digest.environment.cache_clear()
    monkeypatch.setattr(digest, "source_digest", lambda *_: "changed")
    assert kernels._key("library", spec, "plan") != before
    digest.environment.cache_clear()


@pytest.mark.parametrize("label", LABELS)
def test_a_label_that_is_none_is_no_entry(folder, label):
    path = entries.insert(K, ".so", b"content", "what")
    (folder / f"{K}.json").write_bytes(label)
    assert [entry.what for entry in store.entries()] == [""]
    assert store.info().entries == 1
    assert entries.fetch(K, ".so") is None and not path.exists()
    assert entries.insert(K, ".so", b"content") == path == entries.fetch(K, ".so")


@pytest.mark.parametrize("name", [f"{K}.json", f"{K}.so", f"{K}.lock", "limit.txt"])
def test_a_folder_in_the_place_of_a_file(folder, name):
    assert store.cache_folder() == folder
    (folder / name).mkdir()
    assert entries.fetch(K, ".so") is None
    with entries.locked(K):
        stored = entries.insert(K, ".so", b"content")
    assert (stored is None) == name.startswith(f"{K}.") or name.endswith("lock")
    assert store.info().limit == 256 << 20
    store.entries(), store.clear()


def test_files_of_others_are_never_touched(folder, monkeypatch):
    """``TVM_SCAN_CACHE`` may name any folder."""
    assert store.cache_folder() == folder
    theirs = ["package.json", "package.so", "key.json", ".new-notes", "limit.json", f"{K}.json.bak"]
    for name in [*theirs, f".tvm-scan-{'a' * 16}"]:
        (folder / name).write_bytes(bytes(2_000_000))
        os.utime(folder / name, (1, 1))
    monkeypatch.setenv("TVM_SCAN_CACHE_MB", "1")
    entries.insert(K, ".so", bytes(400_000))
    entries.insert(key(7), ".so", bytes(800_000))  # makes room
    assert entries.fetch(K, ".so") is None and store.info().entries == 1
    assert store.clear() == 1
    assert {path.name for path in folder.iterdir()} == {*theirs}


@pytest.mark.parametrize("damage", ["full", "read-only"])
def test_a_cache_that_cannot_be_written_is_done_without(folder, damage):
    assert store.cache_folder() == folder
    with full_disk() if damage == "full" else read_only(folder):
        with entries.locked(K):
            assert entries.insert(K, ".so", b"content" * 10) is None
        assert entries.fetch(K, ".so") is None
        with pytest.raises(ValueError, match=r"expected to write|expected a cache"):
            store.set_limit(12_345_678_901)
    assert store.entries() == [] and not list(folder.glob(".tvm-scan-*"))


def test_a_name_that_is_no_text_is_no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_SCAN_CACHE", os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    assert store.cache_folder() is None
    assert entries.insert(K, ".so", b"content") is None and store.entries() == []


@pytest.mark.parametrize("text", ["-5", "many", "", "9" * 9000, "\u00b2", "1.5"])
def test_a_limit_that_is_no_number_is_none(folder, text, monkeypatch):
    monkeypatch.delenv("TVM_SCAN_CACHE_MB", raising=False)
    assert store.cache_folder() == folder
    (folder / "limit.txt").write_text(text)
    assert store.info().limit == 256 << 20


PLANS = [
    "",
    "nonsense",
    "cpu/lanes(time_vector=banana)",
    "cpu/spiral()",
    "cpu/lanes(time_vector=7)",
]


@pytest.mark.parametrize("plan", [*PLANS, "cuda/lanes(threads_per_block=32)", b"\xff\xfe"])
def test_a_plan_in_the_cache_that_is_none_is_made_anew(folder, plan, monkeypatch):
    import tvm_scan.torch as ts
    from tvm_scan.torch.kernels.devices import CPU

    monkeypatch.setattr(kernels, "_calls", {})
    monkeypatch.setattr(kernels, "_libraries", {})
    x = torch.randint(-9, 9, (3, 700)).float()  # sums are exact
    with kernels.kernels_asked_for() as asked:
        ts.cumsum(x, 1)
    ((spec, sizes),) = asked
    bits = tuple(size.bit_length() for size in sizes)
    name = kernels._plan_key(spec, bits, CPU)
    entries.insert(name, ".txt", plan if isinstance(plan, bytes) else plan.encode())
    kernels._libraries.clear()
    kernels.forget_plans()
    torch.testing.assert_close(ts.cumsum(x, 1), x.cumsum(1))
    assert "(" in kernels._plan_text(spec, bits)


@pytest.mark.parametrize(
    "text", ["", "3", "[]", "[1, 2]", '["a"]', '["a", "("]', "[" * 99999, '["a", 3]']
)
def test_a_trace_in_the_cache_that_is_none(folder, text):
    entries.insert(K, ".txt", text.encode())
    assert stored_traces.stored_trace(K) is None
    stored_traces.store_trace(K, "graph", [1, "a"], "what")
    assert stored_traces.stored_trace(K) == ("graph", [1, "a"])
