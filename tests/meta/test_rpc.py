"""Tuning on other machines: a real tracker, two servers on this machine, one of which is killed."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_scan import library
from tvm_scan.algebra import Reduce
from tvm_scan.errors import ScanError
from tvm_scan.meta import RecordStore, tune
from tvm_scan.meta.rpc import parse_tracker, rpc_runner

pytest.importorskip("tornado")
CPU = Target.from_device("cpu")
QUICK = ms.runner.EvaluatorConfig(number=1, repeat=2, min_repeat_ms=1)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextlib.contextmanager
def started(*arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(question, seconds=60):
    limit = time.monotonic() + seconds
    while not question():
        assert time.monotonic() < limit
        time.sleep(0.1)


def is_open(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def servers(port):
    from tvm import rpc

    with contextlib.suppress(RuntimeError, OSError):
        return len(rpc.connect_tracker("127.0.0.1", port).summary()["server_info"])
    return 0


@pytest.fixture(scope="module")
def tracker():
    port = free_port()
    place = ("--host", "127.0.0.1", "--port", port, "--port-end", port + 1)
    with started("tvm.exec.rpc_tracker", *place):
        wait_for(lambda: is_open(port))
        yield port


def server(port):
    first = free_port()
    return started(
        "tvm.exec.rpc_server",
        "--host=127.0.0.1",
        f"--port={first}",
        f"--port-end={first + 1}",
        f"--tracker=127.0.0.1:{port}",
        "--key=here",
    )


def test_one_of_two_machines_is_killed_and_nothing_is_lost(tracker, tmp_path, caplog):
    with server(tracker) as doomed, server(tracker):
        wait_for(lambda: servers(tracker) == 2)

        def kill_after_the_first_record():
            wait_for(lambda: (tmp_path / "database_tuning_record.json").is_file(), 120)
            os.killpg(doomed.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill_after_the_first_record)
        killer.start()
        runner = rpc_runner("127.0.0.1", tracker, "here", config=QUICK, timeout=30)
        func = library.cumsum(8, 5000)
        result = tune(func, CPU, tmp_path, trials=8, seed=2, runner=runner, progress=False)
        killer.join()
        assert doomed.wait(timeout=10) == -signal.SIGKILL
    trials = result.functions[0].trials
    assert len(trials) == 8
    assert [t for t in trials if t.error] == []
    assert len(RecordStore(tmp_path).entries()) == 8


def test_a_wrong_candidate_is_seen_from_afar(tracker, tmp_path, monkeypatch):
    monkeypatch.setattr(Reduce, "combine", lambda self, earlier, later: later)
    monkeypatch.setattr(Reduce, "plainly", lambda self: None)
    with server(tracker):
        wait_for(lambda: servers(tracker) == 1)
        runner = rpc_runner("127.0.0.1", tracker, "here", config=QUICK, timeout=30)
        func = library.cumsum(1, 4096)
        result = tune(func, CPU, tmp_path, trials=3, runner=runner, progress=False)
    assert result.wrong
    assert all("three_phase" not in str(e.plans) for e in RecordStore(tmp_path).entries())


def test_what_is_missing_is_named(tracker):
    with pytest.raises(ScanError, match=r"expected TVM's RPC tracker at .* found none"):
        rpc_runner("127.0.0.1", free_port(), "here")
    with pytest.raises(ScanError, match=r"expected machines of the key moon .* start one there"):
        rpc_runner("127.0.0.1", tracker, "moon")
    assert parse_tracker("host:9190") == ("host", 9190)
    for text in ("host", "host:", ":1", "host:99999", "host:port"):
        with pytest.raises(ScanError, match="expected --tracker as host:port, got"):
            parse_tracker(text)
