"""Measuring on other machines, by TVM's own tracker and servers.

One machine runs ``python -m tvm.exec.rpc_tracker``, every machine with a device runs ``python -m
tvm.exec.rpc_server --tracker=HOST:PORT --key=NAME``, and the search asks the tracker for machines
of that name. The servers need TVM alone. Inputs are sent, results are fetched and compared here, so
a wrong candidate is seen wherever it ran.
"""

from __future__ import annotations

import logging
import re
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tvm.rpc import base
from tvm.s_tir import meta_schedule as ms

from tvm_scan.errors import ScanError
from tvm_scan.meta.measure.check import WRONG
from tvm_scan.meta.measure.progress import MachinesGoneError
from tvm_scan.meta.measure.scratch import worker_initializer
from tvm_scan.meta.measure.workers import allocate, evaluator_config, run_checked

_LOG = logging.getLogger("tvm_scan")
#: How often a candidate is given to another machine after one failed it.
_RETRIES = 3
#: Seconds for a tracker to answer, between two looks at it while a candidate is measured, and
#: before it is asked again; so many times in a row must it be gone.
_ANSWER, _LOOK, _PAUSE, _TRIES = 10.0, 5.0, 2.0, 3


def parse_tracker(text: str) -> tuple[str, int]:
    """Split ``host:port``.

    Parameters
    ----------
    text : str
        As on the command line.

    Returns
    -------
    host : str
    port : int

    Raises
    ------
    ScanError
        For any other text.
    """
    match = re.fullmatch(r"\[?([^\[\]]+)\]?:(\d{1,5})", text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ScanError(f"expected --tracker as host:port, got {text}; for instance 127.0.0.1:9190")
    return match[1], int(match[2])


def rpc_runner(
    host: str,
    port: int,
    key: str,
    *,
    config: ms.runner.EvaluatorConfig | None = None,
    timeout: int = 60,
    initializer: Callable[[], None] | None = None,
) -> Callable[[Path], RemoteRunner]:
    """Runner of ``tune`` for the machines that a tracker knows under a key.

    Parameters
    ----------
    host, port : str, int
        Of the tracker.
    key : str
        Of the machines.
    config : EvaluatorConfig, optional
        How often a candidate runs.
    timeout : int
        Seconds for one candidate, and for the tracker to answer.
    initializer : callable, optional
        Runs first in every process here that talks to a machine.

    Returns
    -------
    callable
        For the argument ``runner`` of ``tune``.

    Raises
    ------
    ScanError
        If there is no tracker, or it has no machine of that name.
    """
    count = _servers(host, port, key)
    rpc = ms.runner.RPCConfig(host, port, key, session_timeout_sec=timeout)
    return lambda cases: RemoteRunner(
        cases, rpc, config or evaluator_config(), at_once=count, initializer=initializer
    )


def _servers(host: str, port: int, key: str) -> int:
    try:
        names = _known_to(host, port)
    except OSError as error:
        raise ScanError(
            f"tune: expected TVM's RPC tracker at {host}:{port}, found none ({error}); start it "
            f"with python -m tvm.exec.rpc_tracker --port {port}"
        ) from error
    if key not in names:
        raise ScanError(
            f"tune: expected machines of the key {key} at the tracker {host}:{port}, found "
            f"{', '.join(sorted(set(names))) or 'none'}; start one there with python -m "
            f"tvm.exec.rpc_server --tracker={host}:{port} --key={key}"
        )
    return names.count(key)


def _known_to(host: str, port: int) -> list[str]:
    """Keys of the machines that a tracker knows; an ``OSError`` where it does not answer.

    TVM's own client tries again for a minute, and waits for ever for one that is stopped.
    """
    try:
        with socket.create_connection((host, port), timeout=_ANSWER) as sock:
            sock.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            if struct.unpack("<i", base.recvall(sock, 4)) != (base.RPC_TRACKER_MAGIC,):
                raise ConnectionError("what answers is no tracker")
            base.sendjson(sock, [base.TrackerCode.SUMMARY])
            _, summary = base.recvjson(sock)
        return [re.sub(r"^server:", "", str(item["key"])) for item in summary["server_info"]]
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise ConnectionError("what answers is no tracker") from error


class RemoteRunner:
    """TVM's ``RPCRunner`` with the check in its evaluator, which does not lose a candidate.

    A machine that dies fails the candidate that it has; that is measured again on another one.

    Parameters
    ----------
    cases : Path
        What ``check.save_cases`` wrote.
    rpc : RPCConfig
        Tracker and key.
    config : EvaluatorConfig
        How often a candidate runs.
    at_once : int
        Machines that measure at the same time.
    initializer : callable, optional
        Runs first in every worker process.
    """

    def __init__(
        self,
        cases: Path,
        rpc: ms.runner.RPCConfig,
        config: ms.runner.EvaluatorConfig,
        *,
        at_once: int,
        initializer: Callable[[], None] | None = None,
    ) -> None:
        self.at_once, self.rpc = at_once, rpc
        self.inner = ms.runner.RPCRunner(
            rpc_config=rpc,
            evaluator_config=config,
            f_alloc_argument=partial(_allocate, cases),
            f_run_evaluator=partial(_run, cases),
            max_workers=at_once,
            initializer=worker_initializer(initializer),
        )

    @property
    def pool(self) -> Any:
        """The worker processes."""
        return self.inner.pool

    def run(self, inputs: list[ms.runner.RunnerInput]) -> list[_Future]:
        """Give every candidate to a machine; their results are waited for one by one.

        Raises
        ------
        MachinesGoneError
            If there is no tracker any more, or no machine.
        """
        self.check()
        futures = self.inner.run(inputs)
        return [_Future(self, item, f) for item, f in zip(inputs, futures, strict=True)]

    def check(self) -> None:
        """Raise a ``MachinesGoneError`` if there is no tracker any more, or no machine."""
        key, address = self.rpc.tracker_key, f"{self.rpc.tracker_host}:{self.rpc.tracker_port}"
        fix = "every record is kept; start it again, and tune with the same database"
        for _ in range(_TRIES):
            try:
                if key in _known_to(self.rpc.tracker_host, self.rpc.tracker_port):
                    return
                found = f"no machine of the key {key} there"
            except OSError as error:
                found = f"that it is gone ({error})"
            sleep(_PAUSE)
        raise MachinesGoneError(
            f"tune: expected the RPC tracker at {address} and its machines, found {found}; {fix}"
        )


class _Future:
    """A result, from another machine if the first one is gone."""

    def __init__(self, runner: RemoteRunner, item: ms.runner.RunnerInput, future: Any) -> None:
        self.runner, self.item, self.future = runner, item, future

    def result(self) -> ms.runner.RunnerResult:
        """Wait for it, but not for a tracker that is gone."""
        measured = self._awaited(self.future)
        for _ in range(_RETRIES):
            error = measured.error_msg
            if error is None or WRONG in str(error):
                break
            self.runner.check()
            _LOG.warning("a machine failed a candidate; it is measured again: %s", _last(error))
            (again,) = self.runner.inner.run([self.item])
            measured = self._awaited(again)
        return measured

    def _awaited(self, future: Any) -> ms.runner.RunnerResult:
        asked = monotonic()
        while not future.done():
            sleep(0.02)
            if monotonic() - asked > _LOOK:
                self.runner.check()
                asked = monotonic()
        return future.result()


def _last(error: Any) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else "no reason given"


def _allocate(cases: Path, _session: Any, device: Any, info: Any, repeat: int) -> list[list[Any]]:
    return allocate(cases, device, info, repeat)


def _run(
    cases: Path, _session: Any, module: Any, device: Any, config: Any, arguments: Any
) -> list[float]:
    return run_checked(cases, module, device, config, arguments)
