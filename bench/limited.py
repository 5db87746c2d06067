"""``within``: run a function in a process of its own, and take what it has told by a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

__all__ = ["within"]


def within(seconds: float, func: Callable[..., None], *args: Any) -> Any:
    """Last value that ``func(tell, *args)`` has told in that time; None if it told nothing.

    Parameters
    ----------
    seconds : float
        After which the process is ended.
    func : callable
        Of a module, so that a fresh process finds it. An error in it is printed there.
    *args
        What can be pickled.

    Returns
    -------
    object or None
    """
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, func, args))
    process.start()
    sender.close()
    deadline, last = time.monotonic() + seconds, None
    try:
        while (left := deadline - time.monotonic()) > 0 and receiver.poll(left):
            last = receiver.recv()
    except EOFError:
        pass
    finally:
        if process.is_alive() and time.monotonic() >= deadline:
            process.kill()
        process.join()
        receiver.close()
    return last


def _run(sender: Any, func: Callable[..., None], args: tuple[Any, ...]) -> None:
    func(sender.send, *args)
    sender.close()
