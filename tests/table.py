"""docs/tests.md: seconds and number of tests of each folder and tier.

python -m tests.table --write     # of the last run of each tier on this machine
"""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from tests import ROOT
from tests.support import durations, environment
from tests.support.tiers import TIERS

PAGE = ROOT / "docs" / "tests.md"

_HEAD = """# Where the tests' time goes

Seconds of tests (set-up included, summed over workers) and number of tests of each folder, by
tier; `wall` is the whole run with {workers} workers on {machine}. Written by

```bash
python -m tests.table --write
```

after a run of each tier. A second run of the same sources finds what compilers made of them before,
and takes a quarter of the tests that passed ([tests/README.md](../tests/README.md)).

"""


def page() -> str:
    """Return the page for what was measured last on this machine."""
    environment.install()
    kept = durations.kept_tiers()
    folders = sorted({name for run in kept.values() for name in run["folders"]})
    known = [tier for tier in TIERS if tier in kept]
    lines = [
        "| folder | " + " | ".join(f"{tier}: tests | seconds" for tier in known) + " |",
        "|---|" + "---|---|" * len(known),
    ]
    for name in folders:
        cells = []
        for tier in known:
            taken = kept[tier]["folders"].get(name)
            cells += [f"{taken['tests']}", f"{taken['seconds']:.0f}"] if taken else ["", ""]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    sums = []
    for tier in known:
        each = kept[tier]["folders"].values()
        sums += [str(sum(t["tests"] for t in each)), f"{sum(t['seconds'] for t in each):.0f}"]
    lines.append("| all | " + " | ".join(sums) + " |")
    lines.append("| wall |" + "|".join(f" | {kept[tier]['wall']:.0f} " for tier in known) + "|")
    workers = max((kept[tier]["workers"] for tier in known), default=1)
    head = _HEAD.format(workers=workers, machine=_processor())
    return head + "\n".join(lines) + "\n"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"model name\s*: (.*)", text)
    cores = text.count("processor\t:")
    return f"{cores} cores of {found[1] if found else platform.machine()}"


def main(arguments: list[str]) -> int:
    """Print the page, or write it with ``--write``."""
    if arguments == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
