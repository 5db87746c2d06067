"""``tvm-scan cache``, as a user meets it."""

import json

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from tvm_scan.cli.app import app
from tvm_scan.cli.support.failure import CommandError
from tvm_scan.torch import entries, store


def key(index):
    return f"{index:040x}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_SCAN_CACHE", str(tmp_path / "kernels"))
    monkeypatch.delenv("TVM_SCAN_CACHE_MB", raising=False)
    for i in range(3):
        entries.insert(key(i), ".so", bytes(600 << 10), f"affine({i})")
    return tmp_path / "kernels"


def run(*arguments):
    done = CliRunner().invoke(app, ["cache", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_show_and_path(folder):
    assert run("path").strip() == str(folder)
    text = run()
    assert "affine(2)" in text
    assert text.splitlines()[0] == "3 entries, 1.8 of at most 256 MiB", "the totals come first"
    assert max(map(len, text.splitlines()[2:])) <= 80
    shown = json.loads(run("show", "--json"))
    assert [entry["what"] for entry in shown["entries"]] == ["affine(2)", "affine(1)", "affine(0)"]


def test_limit_holds_for_later_entries(folder):
    assert "of at most 1 MiB" in run("limit", 1)
    assert [entry.key for entry in store.entries()] == [key(2)]
    entries.insert(key(3), ".so", bytes(600 << 10))
    assert [entry.key for entry in store.entries()] == [key(3)]
    assert entries.fetch(key(3), ".so") is not None


def test_the_environment_comes_first(folder, monkeypatch):
    run("limit", 1)
    monkeypatch.setenv("TVM_SCAN_CACHE_MB", "7")
    assert store.info().limit == 7 << 20


def test_clear(folder):
    assert "removed 3 entries" in run("clear")
    assert store.entries() == []
    assert "0 entries" in run("show")


def test_no_cache(monkeypatch):
    monkeypatch.setenv("TVM_SCAN_CACHE", "off")
    assert "the cache is off" in run("show")
    with pytest.raises(CommandError, match="expected a cache, found that it is off"):
        run("path")
    with pytest.raises(CommandError, match="got a cache that is off or not writable"):
        run("limit", 5)
