"""The process that tests' Python programs are forked from: TVM, and torch where asked, are loaded.

Started by tests/support/forks.py as ``python -m tests.support.fork_server SOCKET MODULES``. A
request on the socket is one message: what to run as JSON, and descriptors. The program becomes a
child of the process that asked, not of this one.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The largest request in bytes; its text is a program.
LARGEST = 1 << 20
#: Descriptors from here on are this process's own; programs are handed lower ones.
_OWN = 200


def serve(requests: socket.socket) -> None:
    """Fork for each request, and run it in the child; end when nobody holds the other end."""
    with requests:
        program = _asked(requests)
    if program is not None:
        program()


def _asked(requests: socket.socket) -> Callable[[], None] | None:
    """What to run in a child; None in the server, when nobody can ask any more."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, LARGEST, 64)
        if not message:
            return None
        request = json.loads(message)
        answer, *passed = (_moved(each) for each in descriptors)
        program = _fork(requests, request, passed, answer)
        if program is not None:
            return program
        for each in (answer, *passed):
            os.close(each)


def _moved(descriptor: int) -> int:
    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _OWN)
    os.close(descriptor)
    return high


def _fork(
    requests: socket.socket, request: dict[str, Any], passed: list[int], answer: int
) -> Callable[[], None] | None:
    """Fork twice, so that the system hands the program to the process that adopts orphans."""
    waits, goes = os.pipe()
    between = os.fork()
    if between == 0:
        program = os.fork()
        if program:
            os.write(answer, program.to_bytes(8, "little"))
            os._exit(0)
        os.close(goes)
        os.read(waits, 1)  # until the process between has ended, and its child is an orphan
        os.close(waits)
        os.close(answer)
        return _become(request, passed)
    os.close(waits)
    os.waitpid(between, 0)
    os.close(goes)
    return None


def _become(request: dict[str, Any], passed: list[int]) -> Callable[[], None]:
    """Take on what a program has of its own, and return how to run it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    if request["start_new_session"]:
        os.setsid()
    for descriptor, place in zip(passed, request["places"], strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # by the environment
    streams: list[Any] = [os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)]
    streams.append(os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False))
    sys.stdin, sys.stdout, sys.stderr = streams
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = streams
    if request["workers"] and (server := _server_of_workers()) is not None:
        return server
    return _program(*request["words"])


def _server_of_workers() -> Callable[[], None] | None:
    """Fork a server for the workers of this program, whose parent is to be this process."""
    from tests.support import forks

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        forks.serve_workers(_high(ours))
        return None
    ours.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = _high(theirs)
    return lambda: serve(requests)


def _high(end: socket.socket) -> socket.socket:
    """The same socket, out of the way of descriptors that programs are handed."""
    return socket.socket(fileno=_moved(end.detach()))


def _program(first: str, *rest: str) -> Callable[[], None]:
    """``-c CODE``, ``-m MODULE`` or a file, with its arguments, as Python's command line has it."""
    if first == "-m":
        sys.path[0] = os.getcwd()
        sys.argv[:] = rest
        return lambda: runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if first == "-c":
        sys.path[0] = ""
        name, text, sys.argv[:] = "<string>", rest[0], ["-c", *rest[1:]]
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        sys.argv[:] = [first, *rest]
        name = main.__file__ = first
        text = Path(first).read_text(encoding="utf-8")
    code = compile(text, name, "exec")
    return lambda: exec(code, main.__dict__)


def _main() -> None:
    own, *modules = sys.argv[1:]
    requests = _high(socket.socket(fileno=int(own)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: it ends with the tests
    # Python counts the threads of BLAS, which has handlers for a fork.
    warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
    if "torch" not in modules:
        from tvm_scan._lean import leave_torch_out

        leave_torch_out()
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy all pages
    serve(requests)


def _exit_code(program: Callable[[], None]) -> int:
    """Run a program; what it ends with as Python's command line has it."""
    try:
        program()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return int(ended.code or 0)
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    _code = _exit_code(_main)
    threading._shutdown()
    atexit._run_exitfuncs()
    for _stream in (sys.stdout, sys.stderr):
        _stream.flush()
    # To take torch and TVM apart takes longer than most programs.
    os._exit(_code)
