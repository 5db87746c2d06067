"""A forked child takes every lock of the project, whoever held it in the parent."""

import multiprocessing
import threading

import pytest

from tests.support.children import answer_of
from tvm_scan import cuda_math
from tvm_scan._locks import ForkSafeLock

SECONDS = 30

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="forks"
)


def exact(queue):
    with cuda_math.exact_math():
        queue.put("taken")


def free(lock):
    """Whether another thread can take a lock now."""
    found = []

    def take():
        taken = lock._lock.acquire(blocking=False)
        found.append(taken)
        if taken:
            lock._lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found[0]


def test_compiling_in_a_child_forked_while_another_thread_compiles(monkeypatch):
    monkeypatch.setattr(cuda_math, "has_nvrtc", lambda: False)
    held, done = threading.Event(), threading.Event()

    def compiling():
        with cuda_math.exact_math():
            held.set()
            done.wait(SECONDS)

    thread = threading.Thread(target=compiling)
    thread.start()
    held.wait(SECONDS)
    try:
        assert answer_of(exact, seconds=SECONDS) == "taken"
    finally:
        done.set()
        thread.join()


def test_a_thread_that_forks_while_it_holds_the_lock():
    lock = ForkSafeLock()

    def child(queue):
        lock.__exit__()  # of the parent's with, which the child leaves, too
        with lock, lock:  # re-entrant
            inside = free(lock)
        queue.put((inside, free(lock)))

    with lock:
        assert answer_of(child, seconds=SECONDS) == (False, True)
        assert not free(lock)
    assert free(lock)
