"""Tuning on other machines: a real tracker, two servers on this machine, one of which is killed."""

import contextlib
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import psutil
import pytest
from tvm.rpc.base import RPC_TRACKER_MAGIC
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tests.support.forks import Forked
from tvm_scan import library
from tvm_scan.algebra import Reduce
from tvm_scan.errors import ScanError
from tvm_scan.meta import RecordStore, tune
from tvm_scan.meta.measure import rpc
from tvm_scan.meta.measure.rpc import parse_tracker, rpc_runner

pytest.importorskip("tornado")
CPU = Target.from_device("cpu")
QUICK = ms.runner.EvaluatorConfig(number=1, repeat=2, min_repeat_ms=1)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextlib.contextmanager
def started(*arguments):
    process = Forked(
        [sys.executable, "-m", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        workers=True,
    )
    try:
        yield process
    finally:
        signal_tree(process, signal.SIGKILL)
        process.wait()


def signal_tree(process, number):
    """To a program and to the workers that it has."""
    with contextlib.suppress(psutil.Error):
        first = psutil.Process(process.pid)
        for each in (*first.children(recursive=True), first):
            each.send_signal(number)


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
    with contextlib.suppress(OSError):
        return len(rpc._known_to("127.0.0.1", port))
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
            signal_tree(doomed, signal.SIGKILL)

        killer = threading.Thread(target=kill_after_the_first_record)
        killer.start()
        runner = rpc_runner("127.0.0.1", tracker, "here", config=QUICK, timeout=6)
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
        runner = rpc_runner("127.0.0.1", tracker, "here", config=QUICK, timeout=6)
        func = library.cumsum(1, 4096)
        result = tune(func, CPU, tmp_path, trials=3, runner=runner, progress=False)
    assert result.wrong
    assert all("three_phase" not in str(e.plans) for e in RecordStore(tmp_path).entries())


@contextlib.contextmanager
def own_tracker():
    port = free_port()
    place = ("--host", "127.0.0.1", "--port", port, "--port-end", port + 1)
    with started("tvm.exec.rpc_tracker", *place) as process:
        wait_for(lambda: is_open(port))
        yield port, process


GONE = {
    "killed": (signal.SIGKILL, "that it is gone"),
    "stopped": (signal.SIGSTOP, "that it is gone .timed out"),
    "no machine": (None, "no machine of the key here there"),
}


@pytest.mark.parametrize("how", GONE)
def test_a_tracker_or_a_last_machine_that_goes_away_ends_the_search(
    tmp_path, caplog, monkeypatch, how
):
    """Said once; what was measured is kept; nothing is tried for ever."""
    number, said = GONE[how]
    monkeypatch.setattr(rpc, "_ANSWER", 3.0)
    monkeypatch.setattr(rpc, "_PAUSE", 0.1)
    monkeypatch.setattr(rpc, "_LOOK", 0.3)
    with own_tracker() as (port, process), server(port) as machine:
        wait_for(lambda: servers(port) == 1)
        gone = []

        def go_away():
            wait_for(lambda: (tmp_path / "database_tuning_record.json").is_file(), 120)
            victim = machine if number is None else process
            signal_tree(victim, number or signal.SIGKILL)
            gone.append(time.monotonic())

        killer = threading.Thread(target=go_away)
        killer.start()
        runner = rpc_runner("127.0.0.1", port, "here", config=QUICK, timeout=6)
        func = library.cumsum(64, 4096)
        result = tune(func, CPU, tmp_path, trials=60, runner=runner, progress=False)
        killer.join()
        assert time.monotonic() - gone[0] < 120
    assert re.search(said, result.stopped) and not result.interrupted
    assert caplog.text.count("expected the RPC tracker at") == 1
    ran = [t for t in result.functions[0].trials if t.error is None]
    assert 1 <= len(ran) < 60
    assert len(RecordStore(tmp_path).entries()) == len(ran)


def test_what_answers_is_no_tracker():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        answers = iter([b"HTTP/1.1 400 Bad Request", b"", struct.pack("<i", RPC_TRACKER_MAGIC)])

        def answer():
            for text in answers:
                connection, _ = listening.accept()
                connection.sendall(text)
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        for _ in range(3):
            with pytest.raises(ScanError, match=r"expected TVM's RPC tracker at .* found none"):
                rpc_runner("127.0.0.1", listening.getsockname()[1], "here")


def test_what_is_missing_is_named(tracker):
    with pytest.raises(ScanError, match=r"expected TVM's RPC tracker at .* found none"):
        rpc_runner("127.0.0.1", free_port(), "here")
    with pytest.raises(ScanError, match=r"expected machines of the key moon .* start one there"):
        rpc_runner("127.0.0.1", tracker, "moon")
    assert parse_tracker("host:9190") == ("host", 9190)
    for text in ("host", "host:", ":1", "host:99999", "host:port"):
        with pytest.raises(ScanError, match="expected --tracker as host:port, got"):
            parse_tracker(text)
