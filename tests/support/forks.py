"""Python programs of tests, forked from a process that has loaded TVM, and torch where asked.

For programs that begin with these imports, which take longer than all else that they do. A test of
imports themselves, of how long a start takes, or of what becomes of a process group starts a real
interpreter by ``subprocess``.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from tests import ROOT
from tests.support.fork_server import LARGEST

__all__ = ["Forked", "run", "serve_workers"]

#: What a server imports: what most programs would, and takes long.
_TVM = (
    "tvm",
    "tvm.s_tir.meta_schedule",
    "tvm.relax",
    "tvm_scan.library",
    "tvm_scan.schedules",
    "tvm_scan.meta",
    "tvm_scan.meta.measure.workers",
    "tvm_scan.cli.app",
)
_TORCH = ("torch", *_TVM, "tvm_scan.torch")

#: Variables that are read when something is loaded: a program with others of these starts anew.
_READ_ONCE = ("CUDA", "CUSIM", "GOMP", "KMP", "LD_", "MKL", "OMP", "OPENBLAS", "PYTHON", "TORCH")

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
_lock = threading.Lock()
_clients: dict[bool, socket.socket] = {}


class Forked(subprocess.Popen):
    """As `subprocess.Popen` of this interpreter, forked where that makes no difference.

    Parameters
    ----------
    words : sequence of str
        ``[sys.executable, "-c", code, ...]``, ``[.., "-m", module, ...]`` or a file.
    torch : bool
        Whether torch is loaded as well; else TVM is loaded without it.
    workers : bool
        Whether the worker processes of searches in it are forked, too.
    **options : object
        Of `subprocess.Popen`: streams, ``cwd``, ``env``, ``pass_fds``, ``start_new_session``.

    Raises
    ------
    ValueError
        If it is not this interpreter that is to run.
    """

    def __init__(
        self, words: Sequence[str], *, torch: bool = False, workers: bool = False, **options: Any
    ) -> None:
        self._torch, self._workers, self._options = torch, workers, options
        if words[0] != sys.executable or len(words) < 2:
            raise ValueError(f"Forked: expected a program for {sys.executable}, got {words}")
        super().__init__(words, **options)

    def _execute_child(self, args: Sequence[str], *others: Any) -> None:
        env = {**(self._options.get("env") or os.environ)}
        if not _is_loaded_alike(env):
            super()._execute_child(args, *others)
            return
        # These positions are the same in Python 3.10 to 3.13.
        in_read, in_write, out_read, out_write, err_read, err_write = others[9:15]
        streams = (in_read, out_write, err_write)
        streams = [place if each == -1 else each for place, each in enumerate(streams)]
        kept = list(self._options.get("pass_fds", ()))
        request = {
            "words": list(args[1:]),
            "cwd": os.path.abspath(self._options.get("cwd") or os.getcwd()),
            "env": env,
            "places": [0, 1, 2, *kept],
            "workers": self._workers,
            # Of the thread that asks: the server may have been started where others are blocked.
            "blocked": [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
            "start_new_session": bool(self._options.get("start_new_session")),
        }
        answer, answers = os.pipe()
        try:
            message = json.dumps(request).encode()
            assert len(message) < LARGEST
            socket.send_fds(_client(self._torch), [message], [answers, *streams, *kept])
        finally:
            os.close(answers)
            self._close_pipe_fds(in_read, in_write, out_read, out_write, err_read, err_write)
        with os.fdopen(answer, "rb") as file:
            number = file.read()  # to its end: until the program is a child of this process
        if len(number) < 8:
            raise ChildProcessError("expected the number of a forked process, got none")
        self.pid = int.from_bytes(number, "little")
        self._child_created = True


def run(
    words: Sequence[str],
    *,
    torch: bool = False,
    workers: bool = False,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program as `subprocess.run` does, by `Forked`."""
    if capture_output:
        options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Forked(words, torch=torch, workers=workers, **options) as process:
        try:
            out, error = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words, out, error)
    return subprocess.CompletedProcess(words, process.returncode, out, error)


def serve_workers(client: socket.socket | None = None) -> None:
    """Fork the worker processes of searches in this process.

    Parameters
    ----------
    client : socket, optional
        Of a server that is there; else one is started when it is needed.
    """
    from tvm_scan import _lean

    if client is not None:
        _clients[False] = client

    def start(_: object, command: Sequence[str], **options: Any) -> Forked:
        return Forked(_lean.without_torch(command), **options)

    _lean._Subprocess.Popen = start


def _is_loaded_alike(env: dict[str, str]) -> bool:
    if sys.platform != "linux":
        return False
    names = {
        name
        for name in env.keys() | os.environ.keys()
        if name.startswith(_READ_ONCE)
        or (name.startswith("TVM_") and not name.startswith("TVM_SCAN_"))
    }
    return all(env.get(name) == os.environ.get(name) for name in names)


def _client(torch: bool) -> socket.socket:
    """The socket of a server, which is started by the first who asks."""
    with _lock:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # what is forked twice becomes our child
        if torch not in _clients:
            _clients[torch] = _start(torch)
        return _clients[torch]


def _start(torch: bool) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own = theirs.fileno()
    words = ["-m", "tests.support.fork_server", str(own), *(_TORCH if torch else _TVM)]
    server = subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[own]
    )
    theirs.close()
    atexit.register(_end, server, ours)
    return ours


def _end(server: subprocess.Popen[bytes], client: socket.socket) -> None:
    client.close()
    try:
        server.wait(5)
    except subprocess.TimeoutExpired:  # a forked child of the tests still holds the socket
        server.kill()
        server.wait()
