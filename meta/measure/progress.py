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

__all__ = ["MachinesGoneError", "Progress", "Stop", "shielded", "stop_on_interrupt"]

_Result = TypeVar("_Result")


class MachinesGoneError(ScanError):
    """Nothing can be measured any more: the machines' tracker, or the last of them, is gone."""


class Stop:
    """Asked for by Ctrl-C, when time is up, or when the machines to measure on are gone.

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

    Parameters
    ----------
    shown : bool
        Whether to draw.
    """

    def __init__(self, shown: bool) -> None:
        self.bar: Any = None
        if shown:
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
                TextColumn("left"),
                TimeRemainingColumn(elapsed_when_finished=False),
                console=Console(stderr=True),
            )
        self.task: Any = None

    def __enter__(self) -> Progress:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def begin(self, name: str, total: int) -> None:
        """Start the bar of a function."""
        if self.bar is not None:
            self.task = self.bar.add_task(name, total=total, best="none yet")

    def advance(self, best: float | None) -> None:
        """One trial is done."""
        if self.bar is not None:
            shown = "none yet" if best is None else duration(best)
            self.bar.update(self.task, advance=1, best=shown)

    def end(self, count: int) -> None:
        """The function is done, with ``count`` trials."""
        if self.bar is not None:
            self.bar.update(self.task, total=count, completed=count)
