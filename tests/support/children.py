"""What a child process answers, with a limit: one that hangs is a failure, not a hang."""

import faulthandler
import multiprocessing
import os
import queue as queues
import signal
import tempfile
import time


def answer_of(target, *arguments, method="fork", seconds=120):
    """Run ``target(queue, *arguments)`` in a child, and return what it puts into the queue.

    Parameters
    ----------
    target : callable
        Puts one answer; found by name where the child is spawned.
    *arguments : object
        Its others.
    method : {"fork", "spawn"}
        How the child begins.
    seconds : float
        How long to wait for the answer.

    Returns
    -------
    object
        The answer.

    Raises
    ------
    AssertionError
        If the child ends without one.
    queue.Empty
        If there is none in time.
    """
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=target, args=(queue, *arguments))
    process.start()
    until = time.monotonic() + seconds
    try:
        while True:
            ended = process.exitcode
            try:
                return queue.get(timeout=1)
            except queues.Empty:
                assert ended is None, f"expected an answer, got the child's exit code {ended}"
                if time.monotonic() > until:
                    raise
    finally:
        process.join(10)
        if process.is_alive():
            process.kill()


def death_of(action, seconds=60):
    """Call ``action()`` in a child that is expected to die of it.

    Parameters
    ----------
    action : callable
        Without arguments.
    seconds : float
        How long it may take.

    Returns
    -------
    (int, str)
        The signal that ended the child, 0 if none did, and what it wrote to its standard error.
    """
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            os.dup2(errors.fileno(), 2)
            faulthandler.enable(errors)  # not to where pytest has it write
            signal.alarm(seconds)
            action()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        return os.WTERMSIG(status), errors.read().decode(errors="replace")
