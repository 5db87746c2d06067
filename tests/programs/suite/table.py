"""docs/suite.md: every program of the suite with its answer."""

from __future__ import annotations

from tests.programs.suite.classes import ACCEPTED, CLASSES, NEAR_MISSES, REFUSED
from tests.programs.suite.running import families_of
from tvm_scan import Recurrence, extract

__all__ = ["table"]

_HEAD = """# The suite

{accepted} recurrences that are taken and {refused} near misses that are refused, after the classes
of the literature. `tests/programs/suite/` has the loops; `tests/programs/test_suite.py` runs every
accepted one against its own sequential loop, and mutants of each. This page is made by

```bash
python -m tests.programs.suite table --write
```

and a test holds it against the answers. `python -m tests.programs.suite mutate --per-program 50`
makes more mutants than CI does.
"""


def table() -> str:
    """The page in Markdown, from the answers that extraction gives now."""
    out = [_HEAD.format(accepted=len(ACCEPTED), refused=len(REFUSED))]
    for title, programs in CLASSES.items():
        out.append(
            f"\n## {title}\n\n| program | answer | families of the levels |\n|---|---|---|\n"
        )
        for program in programs:
            found = extract(program.func)
            taken = isinstance(found, Recurrence)
            text = families_of(found) if isinstance(found, Recurrence) else found.kind.value
            out.append(f"| {_words(program.name)} | {'taken' if taken else 'refused'} | {text} |\n")
    for title, misses in NEAR_MISSES.items():
        out.append(f"\n## {title}\n\n| program | answer | kind | why |\n|---|---|---|---|\n")
        for miss in misses:
            found = extract(miss.func)
            taken = isinstance(found, Recurrence)
            kind = "" if isinstance(found, Recurrence) else found.kind.value
            answer = "taken" if taken else "refused"
            out.append(f"| {_words(miss.name)} | {answer} | {kind} | {miss.why} |\n")
    return "".join(out)


def _words(name: str) -> str:
    return name.replace("_", " ")
