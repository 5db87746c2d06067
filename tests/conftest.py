"""Tiers, caches and the simulated CUDA device, before any test imports TVM; the command line."""

import gc
import importlib
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.support import cusim, durations, environment, forks, quick_script, tiers
from tests.support.turns import Turns

environment.install()
if cusim.available():
    cusim.install()
quick_script.install()
forks.serve_workers()

# Of torch, TVM and the tests there are millions of objects, which each full collection visits: an
# eighth of the time of all tests with Python's own thresholds.
gc.set_threshold(50_000, 20, 20)

HERE = ROOT / "tests"
BEGAN = pytest.StashKey[float]()
TURNS = pytest.StashKey[Turns | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` writes the golden files anew, to be read as a diff."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew")


def pytest_configure(config: pytest.Config) -> None:
    """Look up what passed before on the same sources."""
    turns = config.stash[TURNS] = Turns.of_this_run()
    if turns is not None:
        config.pluginmanager.register(turns)


def pytest_report_header() -> str:
    """Return the tier, the seed of what is drawn, and where results of compilers are kept."""
    folder = environment.cache_folder()
    return f"tier: {tiers.TIER}, TVM_SCAN_TEST_SEED={tiers.SEED}, cache: {folder}"


def _folder(path: Path) -> tuple[str, tiers.Folder]:
    name = path.relative_to(HERE).parts[0]
    return name, importlib.import_module(f"tests.{name}.conftest").FOLDER


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave files out that have no test in the quick tier: reading all takes longer than it."""
    if tiers.TIER != "quick" or not collection_path.name.startswith("test_"):
        return None
    _, folder = _folder(collection_path)
    return None if any(p.startswith(collection_path.name) for p in folder.quick) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what the folders say, and leave out what is not in this tier."""
    spared = _spared(items) if tiers.TIER == "default" else set()
    taken: list[pytest.Item] = []
    left: list[pytest.Item] = []
    names: dict[str, list[str]] = {}
    for item in items:
        where, folder = _folder(item.path)
        name = item.nodeid.partition("/")[2].partition("/")[2]
        names.setdefault(where, []).append(name)
        if folder.has("gpu", name):
            item.add_marker(pytest.mark.gpu)
        # What was named on the command line runs, whatever its tier.
        named = any("::" in argument for argument in config.args)
        takes = folder.takes(name, tiers.TIER) and item.nodeid not in spared
        (taken if named or takes else left).append(item)
    if config.args == ["tests"]:
        for where, found in names.items():
            stale = importlib.import_module(f"tests.{where}.conftest").FOLDER.stale(
                tiers.TIER, found
            )
            if stale:
                raise pytest.UsageError(f"tests/{where}/conftest.py: no test is named {stale}")
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = taken


def _spared(items: list[pytest.Item]) -> set[str]:
    """Cases whose like are taken; the full tier has them, and the quick tier's are not among them.

    They are of products of parameters whose values all occur in others, or of tests whose cases
    their folder says to be alike.
    """
    tests: dict[tuple[str, str, int], list[pytest.Item]] = {}
    for item in items:
        folder = _folder(item.path)[1]
        name = item.nodeid.partition("/")[2].partition("/")[2]
        # What the quick tier has, the default tier has; what is not in it is not counted on.
        if folder.takes(name, tiers.TIER) and not folder.has("quick", name):
            test = item.nodeid.partition("[")[0]
            tests.setdefault((test, *folder.share(name)), []).append(item)
    found: set[str] = set()
    for (test, pattern, share), cases in tests.items():
        parameters = [tiers.parameters_of(case) for case in cases]
        several = len(parameters[0]) > 1
        kept = sorted(tiers.meeting(parameters)) if several else range(len(cases))
        taken = {kept[i] for i in tiers.part(test + pattern, len(kept), share)}
        found |= {case.nodeid for i, case in enumerate(cases) if i not in taken}
    return found


def pytest_collection_finish() -> None:
    """Leave what was imported out of later garbage collections: it stays to the end."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of kernels for GPUs where there is none; give torch the same numbers each time."""
    if torch := sys.modules.get("torch"):
        # A sum that rounds to just above a tolerance fails one run of many, and not the next one.
        torch.manual_seed(0)
    if item.get_closest_marker("gpu") is None:
        return
    import tvm

    if not tvm.cuda(0).exist:
        pytest.skip(cusim.why_unavailable() or "expected a CUDA device, got none")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember when the run began."""
    session.config.stash[BEGAN] = time.monotonic()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print seconds and tests of each folder; keep them for docs/tests.md where all ran."""
    found = durations.of_reports(terminalreporter.stats)
    if not found:
        return
    terminalreporter.section("seconds and tests of each folder")
    terminalreporter.write_line(durations.as_text(found))
    turns = config.stash[TURNS]
    part = turns is not None and turns.passed
    chosen = config.option.keyword or config.option.markexpr or config.args != ["tests"]
    if not chosen and not part and not terminalreporter.stats.get("failed"):
        wall = time.monotonic() - config.stash[BEGAN]
        durations.keep(tiers.TIER, found, wall, getattr(config.option, "numprocesses", 0) or 1)


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line in this process: exit code, output, errors."""

    from tvm_scan.cli.app import run

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["tvm-scan", *map(str, arguments)])
        with pytest.raises(SystemExit, match=r"^\d+$") as done:
            run()
        text = capsys.readouterr()
        return done.value.code, text.out, text.err

    return call
