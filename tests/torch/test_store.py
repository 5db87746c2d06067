"""The on-disk cache of kernels: whole or absent, private, limited, and locked."""

import os
import stat
import threading

import pytest

torch = pytest.importorskip("torch")

from tvm_scan.torch import kernels, store  # noqa: E402

K = "0123456789abcdef" * 2 + "01234567"


def key(index):
    return f"{index}{K[1:]}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_SCAN_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_what_is_inserted_is_found(folder):
    assert store.fetch(K, ".so") is None
    path = store.insert(K, ".so", b"content")
    assert store.fetch(K, ".so") == path == folder / f"{K}.so"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert store.info().entries == 1
    assert store.clear() == 1
    assert store.fetch(K, ".so") is None


@pytest.mark.parametrize("damage", [b"", b"conten", b"CONTENT", None])
def test_a_damaged_entry_is_removed(folder, damage):
    path = store.insert(K, ".so", b"content")
    (folder / f"{K}.json" if damage is None else path).write_bytes(damage or b"{")
    assert store.fetch(K, ".so") is None
    assert not path.exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files")
def test_what_others_may_write_is_not_used(folder, monkeypatch):
    path = store.insert(K, ".so", b"content")
    path.chmod(0o666)
    assert store.fetch(K, ".so") is None
    path.chmod(0o600)
    assert store.fetch(K, ".so") is not None
    folder.chmod(0o777)
    assert store.cache_folder() is None
    folder.chmod(0o700)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert store.cache_folder() is None


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links")
def test_a_link_is_not_followed(folder, tmp_path):
    path = store.insert(K, ".so", b"content")
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    assert store.fetch(K, ".so") is None


def test_the_oldest_go_first(folder, monkeypatch):
    monkeypatch.setenv("TVM_SCAN_CACHE_MB", "1")
    for index in range(3):
        store.insert(key(index), ".so", bytes(400_000))
        os.utime(folder / f"{key(index)}.json", (index, index))
    assert store.fetch(key(0), ".so") is None  # evicted by the third
    assert store.fetch(key(1), ".so") is not None  # used now, so k2 is the oldest
    store.insert(key(3), ".so", bytes(400_000))
    assert store.fetch(key(2), ".so") is None
    assert store.info().bytes <= 1 << 20


def test_a_bad_limit_says_what_to_do(folder, monkeypatch):
    monkeypatch.setenv("TVM_SCAN_CACHE_MB", "much")
    with pytest.raises(ValueError, match="number of megabytes in TVM_SCAN_CACHE_MB, got 'much'"):
        store.info()


def test_one_at_a_time(folder):
    order = []

    def work(name):
        with store.locked(K):
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
    places = {"off": "off", "folder": str(tmp_path / K), "unwritable": str(blocked / K)}
    monkeypatch.setenv("TVM_SCAN_CACHE", places[setting])
    options = (("dtype", "float32"), ("exclusive", False), ("op", "add"), ("reverse", False))
    spec = kernels.KernelSpec(
        "cumulative", (*options, ("time_last", True)), ("outer", "inner", "length")
    )
    monkeypatch.setattr(kernels, "_calls", {})
    monkeypatch.setattr(kernels, "_libraries", {})
    x = torch.ones(1, 2, 9)
    y = torch.empty_like(x)
    kernels.run_kernel(spec, (1, 2, 9), x, y)
    assert torch.equal(y, x.cumsum(2))
    assert (store.info().entries == 2) == (setting == "folder")  # a plan and a library


def test_sources_versions_and_threads_are_in_the_key(monkeypatch):
    spec = kernels.KernelSpec("cumulative", (("op", "add"),), ("length",))
    before = kernels._key("library", spec, "plan")
    assert kernels._key("library", spec, "other plan") != before
    kernels._environment.cache_clear()
    monkeypatch.setattr(kernels, "source_digest", lambda: "changed")
    assert kernels._key("library", spec, "plan") != before
    kernels._environment.cache_clear()
