"""A process that uses the GPU: a kernel that crashes or hangs takes nobody else with it.

The bench itself never touches the device. It asks this process, waits for so long and no longer,
and begins another one where it ended: by a signal, by being ended when its time was over, or by
itself, because an error has left the device unusable for whatever comes next.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.gpu_answers import Answers
from bench.gpu_cases import Case
from bench.gpu_ours import Times
from tvm_scan import ScanPlan

__all__ = ["Worker", "peer_key"]

#: Seconds in which a process that was told to end must have ended.
_FAREWELL = 5.0
#: Of an answer: there is one; there is none, and why; there is none, and the process has ended.
_DONE, _NO, _LOST = "done", "no", "lost"


class Worker:
    """Asks a process for times and errors, and begins another one where it ended.

    Parameters
    ----------
    libraries : dict
        Of ``bench.gpu_native.build``; read at the first question.
    paths : list of str
        Where Python shall look for packages as well.
    arch : str
        Of the GPU, such as ``sm_90``.
    simulated : bool
        Whether it is the tests' simulated device.
    inside : bool
        Whether to answer in this very process: what compute-sanitizer watches.
    """

    def __init__(
        self,
        libraries: dict[str, Path | str],
        paths: list[str],
        arch: str,
        *,
        simulated: bool = False,
        inside: bool = False,
    ) -> None:
        self.libraries = libraries
        self._paths, self._arch, self._simulated = paths, arch, simulated
        self._inside = Answers(self._files(), arch) if inside else None
        self._process: Any = None
        self._connection: Connection | None = None
        #: What crashed, took too long or is wrong, and is not asked for again: (cases, name).
        self.lost: dict[tuple[str, str], str] = {}

    def names(self, family: str) -> list[str]:
        """Peers of a family of cases, those in CUDA first."""
        from bench import gpu_native, gpu_peers

        return [*gpu_native.PEERS.get(family, {}), *gpu_peers.PEERS.get(family, {})]

    def peer_times(self, case: Case, name: str, repeat: int, seconds: float) -> Times | str:
        """Time one peer.

        Parameters
        ----------
        case : Case
            What to run.
        name : str
            One of ``names``.
        repeat : int
            Calls.
        seconds : float
            When to give it up; its process is ended then.

        Returns
        -------
        Times or str
            Or why there are none.
        """
        key = peer_key(case, name)
        found: Times | str = self._asked(key, seconds, "peer_times", case, name, repeat)
        return found

    def peer_errors(self, case: Case, seconds: float) -> Iterator[tuple[str, float | str]]:
        """Name of every peer and its difference from float64, each within so many seconds."""
        for name in self.names(case.family):
            yield name, self._asked(peer_key(case, name), seconds, "peer_error", case, name)

    def plan_times(
        self, case: Case, plan: ScanPlan | None, repeat: int, seconds: float
    ) -> Times | str:
        """Time a plan of ours, None being the default one; as ``peer_times``."""
        found: Times | str = self._asked(
            _key(case, plan), seconds, "plan_times", case, plan, repeat
        )
        return found

    def plan_error(self, case: Case, plan: ScanPlan | None, seconds: float) -> float | str:
        """A plan's difference from float64; infinite if not finite, or if other bits came twice."""
        found: float | str = self._asked(_key(case, plan), seconds, "plan_error", case, plan)
        return found

    def copy_rate(self, count: int, repeat: int, seconds: float) -> float | str:
        """Bytes per second of a copy of so many floats: the best that is at hand."""
        found: float | str = self._asked(("copy", ""), seconds, "copy_rate", count, repeat)
        return found

    def gelu_rows(self, count: int, repeat: int, copy: float, seconds: float) -> list[Any] | str:
        """The ladder of GELU."""
        asked = ("gelu", "")
        found: list[Any] | str = self._asked(asked, seconds, "gelu_rows", count, repeat, copy)
        return found

    def close(self) -> None:
        """End the process; one that a device does not let go of is left behind."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            with contextlib.suppress(OSError):
                # With the compilers that it has started.
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join(_FAREWELL)
        self._process = self._connection = None

    def _files(self) -> dict[str, str]:
        return {name: str(made) for name, made in self.libraries.items()}

    def _asked(self, key: tuple[str, str], seconds: float, what: str, *arguments: Any) -> Any:
        if key in self.lost:
            return self.lost[key]
        if self._inside is not None:
            return _answer(self._inside, what, arguments)[1]
        how, answer = self._sent((what, arguments), max(0.0, seconds))
        if how == _LOST:
            self.close()
            self.lost[key] = answer
        return answer

    def _sent(self, request: Any, seconds: float) -> tuple[str, Any]:
        if self._process is None:
            context = get_context("spawn")
            self._connection, theirs = context.Pipe()
            arguments = (theirs, self._files(), self._paths, self._arch, self._simulated)
            self._process = context.Process(target=_serve, args=arguments, daemon=True)
            self._process.start()
            theirs.close()
        assert self._connection is not None
        try:
            self._connection.send(request)
            if self._connection.poll(seconds):
                found: tuple[str, Any] = self._connection.recv()
                return found
        except (EOFError, OSError):
            self._process.join(_FAREWELL)
            return _LOST, f"its process ended with {self._process.exitcode}"
        return _LOST, f"not done in {seconds:.0f} s"


def peer_key(case: Case, name: str) -> tuple[str, str]:
    """A peer that was lost is lost for its family in this dtype: it has a kernel for each."""
    return f"{case.family} {case.dtype}", name


def _key(case: Case, plan: ScanPlan | None) -> tuple[str, str]:
    """A plan that was lost is lost for its family; the default is another one in every case."""
    return (str(case), "") if plan is None else (case.family, str(plan))


def _serve(
    connection: Connection,
    libraries: dict[str, str],
    paths: list[str],
    arch: str,
    simulated: bool,
) -> None:
    """Answer requests until the other side is gone, or the device is."""
    os.setsid()
    sys.path[:0] = paths
    # Else JAX takes three quarters of the memory for itself.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if simulated:
        from tests.support import cusim

        cusim.install()
    # What packages print while they compile is not for the table.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    answers = Answers(libraries, arch)
    with contextlib.suppress(EOFError, OSError):
        while True:
            what, arguments = connection.recv()
            found = _answer(answers, what, arguments)
            connection.send(found)
            if found[0] == _LOST:
                # A context in which a kernel has failed fails ever after; nothing can mend it.
                os._exit(1)


def _answer(answers: Answers, what: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return _DONE, getattr(answers, what)(*arguments)
    except Exception as error:
        answers.forget()
        why = f"{type(error).__name__}: {str(error)[-300:]}"
        return (_NO if answers.device_works() else _LOST), why
