"""What the tools of test_turns.py do in their processes."""

import os
import time


def prepare(name, *workload):
    """A short call, one that fails, and one that ends the process."""
    calls = {
        "short": lambda: None,
        "long": lambda: time.sleep(0.01),
        "fails": lambda: [][0],
        "dies": lambda: os._exit(7),
    }
    return calls, {"process": os.getpid(), "name": name, "workload": workload}
