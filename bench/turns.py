"""Methods that take turns, each tool in a process of its own.

Two pools of threads in one process disturb each other: who waits by spinning takes the cores of
who works, and who sleeps is woken on somebody else's time. Here every tool has a process, which is
stopped by a signal while it is not its turn; so whoever is timed has the machine for itself. A
process is woken before it is timed, by calls that do not count.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from bench.memory import peak_bytes
from bench.timing import Times, batches_of, is_short, times_of, undisturbed

__all__ = ["Prepared", "Tool", "in_turns", "tools"]

#: Seconds of calls by which a process is woken: its threads may go on on one core, the one that its
#: parent does not have, until a scheduler moves them apart some of its ticks later. Sums of one row
#: of 2^24 take two cores of a Zen 4 2.2 to 3.0 ms, and took 4.4 behind a single call.
_WAKING = 0.03
Calls = dict[str, Callable[[], Any]]
#: What a tool makes of a workload: its calls, and what it has to say about it.
Prepared = tuple[Calls, dict[str, Any]]


class Tool:
    """A process with one tool's library and threads.

    Parameters
    ----------
    prepare : callable
        ``prepare(name, *workload)`` in the process: the tool's calls, which it checks, and facts.
        A function of a module, which the process imports.
    name : str
        Of the tool.
    """

    def __init__(self, prepare: Callable[..., Prepared], name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, prepare, name), daemon=True)
        self._process.start()
        other.close()

    def prepare(self, *workload: Any) -> tuple[list[str], dict[str, Any]]:
        """Make the calls of a workload; their names, and the tool's facts."""
        return self._ask("prepare", *workload)

    def sample(self, name: str, count: int, *, wake: bool) -> float:
        """Seconds of one call, of ``count`` in a row."""
        return self._ask("sample", name, count, wake)

    def peak(self, name: str) -> int | None:
        """Bytes that a call takes at its peak."""
        return self._ask("peak", name)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _ask(self, *question: Any) -> Any:
        _signal(self._process.pid, signal.SIGCONT)
        self._pipe.send(question)
        try:
            kind, answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(
                f"{self.name}: expected an answer, got the end of its process "
                f"({self._process.exitcode}) at {question[0]}"
            ) from None
        _stop(self._process.pid)
        if kind == "failed":
            raise RuntimeError(f"{self.name}: {answer}")
        return answer


def _signal(process: int | None, number: int) -> None:
    assert process is not None
    os.kill(process, number)


def _stop(process: int | None) -> None:
    """Stop a child, and wait until it is: on a loaded machine it may run on for a while."""
    _signal(process, signal.SIGSTOP)
    if hasattr(os, "waitid"):  # not on macOS before Python 3.13
        os.waitid(os.P_PID, process, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


@contextmanager
def tools(prepare: Callable[..., Prepared], names: Sequence[str]) -> Iterator[list[Tool]]:
    """A process for every name; all are ended behind it."""
    made: list[Tool] = []
    try:
        for name in names:
            made.append(Tool(prepare, name))
        yield made
    finally:
        for tool in made:
            tool.end()


def in_turns(found: dict[str, Tool], *, seconds: float, least: int) -> dict[str, Times]:
    """Time methods that are prepared.

    Parameters
    ----------
    found : dict of str to Tool
        Every method, and who has it.
    seconds : float
        For all of them together.
    least : int
        Rounds to make in any case.
    """
    once = {name: tool.sample(name, 1, wake=True) for name, tool in found.items()}
    batches, samples = batches_of(once), {name: [first] for name, first in once.items()}
    begin, rounds = time.perf_counter(), 0
    while rounds < least or (time.perf_counter() - begin < seconds and rounds < 1000):
        for name, tool in found.items():
            wake = is_short(min(samples[name]))
            samples[name].append(tool.sample(name, batches[name], wake=wake))
        rounds += 1
    # The first sample chose the batch, and was one of a single call.
    return {name: times_of(values[1:]) for name, values in samples.items()}


def _serve(pipe: Connection, prepare: Callable[..., Prepared], name: str) -> None:
    _end_with_the_parent()
    calls: Calls = {}
    while True:
        question, *arguments = pipe.recv()
        try:
            if question == "prepare":
                calls.clear()
                made, facts = prepare(name, *arguments)
                calls.update(made)
                answer: Any = (list(calls), facts)
            elif question == "peak":
                answer = peak_bytes(calls[arguments[0]])
            else:
                answer = _sampled(calls[arguments[0]], *arguments[1:])
        except Exception as error:
            pipe.send(("failed", f"{type(error).__name__}: {error}"))
            continue
        pipe.send(("done", answer))


def _sampled(call: Callable[[], Any], count: int, wake: bool) -> float:
    with undisturbed():
        awake = time.perf_counter() + _WAKING
        while wake and time.perf_counter() < awake:
            call()
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count


def _end_with_the_parent() -> None:
    """A stopped process would outlive a parent that is killed."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:  # Linux
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
