"""The machine that this process runs on, by what needs no TVM."""

from __future__ import annotations

import platform


def host_facts() -> dict[str, str]:
    """Name, architecture and processor of the machine."""
    return {"host": platform.node(), "machine": platform.machine(), "processor": _processor()}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
