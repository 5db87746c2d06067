"""Tests that passed on the very same sources take turns: each later run has a quarter of them.

A run of unchanged sources has one answer, but for tests whose outcome changes by chance: turns find
these in four runs. What passed is kept under a hash of all that an outcome depends on: every file
of the repository, the packages, compilers and processor, what the environment sets. Any change
makes all tests run.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.support.cusim import _toolchain
from tests.support.environment import cache_folder

#: Set by ``python -m tests`` without arguments; what is asked for by name always runs.
SWITCH = "TVM_SCAN_TEST_TURNS"
#: Runs in which every test that passed had its turn.
TURNS = 4
#: What a run leaves behind, in folders whose names do not begin with a dot.
_LEFT_BEHIND = ("__pycache__", "build", "dist")
#: Environment variables that change no outcome.
_OTHERS = ("PYTEST_", "_", "OLDPWD", "SHLVL", "TERM", "COLUMNS", "LINES", "SSH_", "TVM_SCAN_TEST_")


def sources(root: Path = ROOT) -> Iterator[Path]:
    """Yield every file of the repository, in order, whether git knows it or not."""
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.is_symlink():
            hidden = path.name.startswith(".") and path.name not in (".ci", ".github")
            if not hidden and path.name not in _LEFT_BEHIND and path.suffix != ".egg-info":
                yield from sources(path)
        elif path.is_file():
            yield path


def digest(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str:
    """Return a hash of all that the outcome of a test depends on."""
    found = hashlib.sha256()
    for path in sources(root):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        found.update(f"{path.relative_to(root)} {content}\n".encode())
    found.update(repr(_machine()).encode())
    chosen = {k: v for k, v in environ.items() if not k.startswith(_OTHERS)}
    chosen |= {k: environ[k] for k in ("TVM_SCAN_TEST_TIER", "TVM_SCAN_TEST_SEED") if k in environ}
    found.update(json.dumps(chosen, sort_keys=True).encode())
    return found.hexdigest()[:32]


def _machine() -> list[Any]:
    packages = sorted(f"{d.name} {d.version}" for d in importlib.metadata.distributions())
    processor = Path("/proc/cpuinfo")
    lines = processor.read_text().splitlines() if processor.exists() else []
    chip = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    cores = os.cpu_count()
    return [sys.version, platform.platform(), chip, cores, packages, _toolchain.fingerprint()]


class Turns:
    """What passed on these sources, and whose turn it is.

    Parameters
    ----------
    folder : Path
        Where it is kept, a file for each hash.
    key : str
        The hash.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._path = folder / f"{key}.json"
        kept = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.runs: int = kept.get("runs", 0)
        self.passed: set[str] = set(kept.get("passed", ()))
        self._new: dict[str, bool] = {}

    @classmethod
    def of_this_run(cls) -> Turns | None:
        """Return those of the repository and this machine; None where all tests are asked for."""
        if os.environ.get(SWITCH) != "on":
            return None
        folder = cache_folder() / "passed"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _toolchain.remove_unused(folder.iterdir())
        # Workers ask after tests of the controller have set variables of their own.
        key = os.environ.setdefault(f"{SWITCH}_KEY", digest())
        return cls(folder, key)

    def left_out(self, names: Iterable[str]) -> set[str]:
        """Return those that passed before and whose turn it is not."""
        turn = self.runs % TURNS
        return {n for n in names if n in self.passed and zlib.crc32(n.encode()) % TURNS != turn}

    def _said(self) -> list[str]:
        if not self.passed:
            return []
        return [
            f"{len(self.left_out(self.passed))} tests that passed before on these very sources "
            f"are left out: of those that did, another {1 / TURNS:.0%} runs each time; "
            "--no-cache runs all"
        ]

    def pytest_report_header(self) -> list[str]:
        """Say how many tests are left out."""
        return self._said()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave those out whose turn it is not."""
        known = self.left_out(item.nodeid for item in items)
        if known:
            config.hook.pytest_deselected(items=[i for i in items if i.nodeid in known])
            items[:] = [item for item in items if item.nodeid not in known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """See whether a test passed, with all its parts; what was skipped runs each time."""
        passed = report.outcome == "passed"
        self._new[report.nodeid] = passed and self._new.get(report.nodeid, True)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep what passed: a worker has told its controller."""
        if self._new and not hasattr(session.config, "workerinput"):
            self.keep()

    def keep(self) -> None:
        """Write what passed, at once or not at all."""
        passed = {name for name, good in self._new.items() if good}
        failed = set(self._new) - passed
        kept = {"runs": self.runs + 1, "passed": sorted((self.passed | passed) - failed)}
        _toolchain.publish(json.dumps(kept).encode(), self._path)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say it again where the results stand."""
        for line in self._said():
            terminalreporter.write_line(line)
