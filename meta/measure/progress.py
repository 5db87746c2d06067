"""The progress of a search on the terminal, and its clean stop."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, TypeVar

from tvm_scan.errors import ScanError
from tvm_scan.meta.measure.duration import duration

_Result = TypeVar("_Result")


class MachinesGoneError(ScanError):
    """The error that nothing can be measured: the machines' tracker, or the last one, is gone."""


class Stop:
    """The request to stop: by Ctrl-C, when time is up, or when no machine to measure on is left.

    Attributes
    ----------
    interrupted : bool
        Whether Ctrl-C was pressed.
    deadline : float
        On the clock of ``time.monotonic``.
    reason : str or None
        Why nothing can be measured any more.
    """

    def __init__(self, deadline: float = float("inf")) -> None:
        self.interrupted = False
        self.deadline = deadline
        self.reason: str | None = None

    def __bool__(self) -> bool:
        return self.interrupted or self.reason is not None or monotonic() >= self.deadline


@contextlib.contextmanager
def stop_on_interrupt(stop: Stop) -> Iterator[None]:
    """Ctrl-C ends the search after the measurement in progress; a second one at once.

    Parameters
    ----------
    stop : Stop
        Whose flag is set.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_interrupt(_number: int, _frame: Any) -> None:
        if stop.interrupted:
            raise KeyboardInterrupt
        stop.interrupted = True
        print("stopping after this measurement; all records are kept", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def shielded(work: Callable[[], _Result]) -> _Result:
    """Run ``work`` where Ctrl-C does not reach it, nor the processes that it starts.

    A terminal sends Ctrl-C to every process. A blocked signal is inherited, so workers are shielded
    from their first instruction on, and the main thread still hears it.

    Parameters
    ----------
    work : callable
        Without arguments.

    Returns
    -------
    object
        What it returns.
    """
    with ThreadPoolExecutor(1, initializer=_block_interrupts) as pool:
        return pool.submit(work).result()


def _block_interrupts() -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


class Progress:
    """A bar with the trials, the best time so far and the time left; nothing where not wanted.

    Without a terminal, a line every few seconds.

    Parameters
    ----------
    shown : bool
        Whether to draw.
    every : float
        Seconds between two lines.
    """

    def __init__(self, shown: bool, every: float = 5.0) -> None:
        self.bar: Any = None
        self.lines = shown and not sys.stderr.isatty()
        if shown and not self.lines:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )
            from rich.progress import Progress as Bar

            self.bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("best {task.fields[best]}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(elapsed_when_finished=False),
                console=Console(stderr=True),
            )
        self.task: Any = None
        self.every, self.over = every, threading.Event()
        self.name, self.best, self.state = "", "none yet", ""
        self.done = self.total = 0
        self.began = monotonic()

    def __enter__(self) -> Progress:
        if self.bar is not None:
            self.bar.start()
        if self.lines:
            threading.Thread(target=self._tell_on, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.over.set()
        if self.bar is not None:
            self.bar.stop()

    def begin(self, name: str, total: int) -> None:
        """Start the bar of a function."""
        self.name, self.best, self.done, self.total = name, "none yet", 0, total
        self.began = monotonic()
        if self.bar is not None:
            self.task = self.bar.add_task(name, total=total, best=self.best, state="left")
        self._show("measuring", None)

    def advance(self, best: float | None) -> None:
        """One trial is done."""
        self.done += 1
        self._show("measuring", best)

    def confirm(self, count: int) -> None:
        """The trials are done, and the ``count`` fastest are measured again."""
        self._show(f"confirming {count}", None)

    def end(self, count: int, best: float | None) -> None:
        """The function is done, with ``count`` trials and its best time."""
        self.done = self.total = count
        self._show("done", best)
        if self.bar is not None:
            self.bar.stop_task(self.task)

    def _show(self, state: str, best: float | None) -> None:
        begins, self.state = state != self.state, state
        self.best = self.best if best is None else duration(best)
        if self.bar is not None:
            about = {"total": self.total, "completed": self.done}
            shown = "left" if state == "measuring" else state
            self.bar.update(self.task, best=self.best, state=shown, **about)
        elif self.lines and begins:
            self._tell()

    def _tell_on(self) -> None:
        """Print a line every few seconds, however long a build takes."""
        while not self.over.wait(self.every):
            if self.state not in ("", "done"):
                self._tell()

    def _tell(self) -> None:
        took = monotonic() - self.began
        line = f"{self.name}: {self.done} of {self.total}, best {self.best}, {took:.0f} s"
        print(f"{line}, {self.state}", file=sys.stderr, flush=True)
