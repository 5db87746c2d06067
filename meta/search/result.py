"""The result of a search: every trial, and the best of each function."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tvm_scan.schedules.plan import ScanPlan


@dataclass(frozen=True)
class Trial:
    """One candidate that was measured.

    Attributes
    ----------
    plans : tuple of ScanPlan
        One for each recurrence of the function.
    seconds : float or None
        Median time; None where it did not run, or gave a wrong result.
    error : str or None
        Why there is no time.
    wrong : bool
        Whether its result differed from the loop's.
    confirmed : bool
        Whether the time is that of the finals, in turns with the other fastest candidates.
    recorded : bool
        Whether an earlier search measured it; unless ``confirmed``, the time is that of its record.
    """

    plans: tuple[ScanPlan, ...]
    seconds: float | None
    error: str | None = None
    wrong: bool = False
    confirmed: bool = False
    recorded: bool = False

    def __str__(self) -> str:
        return " + ".join(str(plan) for plan in self.plans)


@dataclass
class FunctionResult:
    """The trials of one function, in order.

    Attributes
    ----------
    name : str
        Of the function.
    space : int
        Number of combinations of plans that fit.
    trials : list of Trial
        In the order in which they were measured, or read.
    default_plans : tuple of ScanPlan
        What is used without a search.
    """

    name: str
    space: int
    trials: list[Trial] = field(default_factory=list)
    default_plans: tuple[ScanPlan, ...] = ()

    @property
    def best(self) -> Trial | None:
        """The fastest; None where nothing ran."""
        ran = [trial for trial in self.trials if trial.seconds is not None]
        return min(ran, key=lambda trial: trial.seconds or 0.0, default=None)

    @property
    def default(self) -> Trial | None:
        """The default plans; None where they were not measured."""
        return next((t for t in self.trials if t.plans == self.default_plans), None)

    @property
    def sequential(self) -> Trial | None:
        """The loop; None where it was not measured."""
        loops = (t for t in self.trials if all(p.keeps_loop for p in t.plans))
        return next(loops, None)

    @property
    def measured(self) -> int:
        """Number of trials that this search measured: the others are from records."""
        return sum(not trial.recorded for trial in self.trials)

    @property
    def wrong(self) -> list[Trial]:
        """Candidates whose results differed from the loop's."""
        return [trial for trial in self.trials if trial.wrong]

    def curve(self) -> list[float]:
        """Best time after each trial; infinity before the first one that ran."""
        out, best = [], float("inf")
        for trial in self.trials:
            best = min(best, trial.seconds if trial.seconds is not None else float("inf"))
            out.append(best)
        return out


@dataclass
class TuningResult:
    """The result of ``tune``.

    Attributes
    ----------
    database : Path
        Folder of the records.
    functions : list of FunctionResult
        One for each function with a recurrence.
    seconds : float
        Duration of the search.
    interrupted : bool
        Whether Ctrl-C ended it; everything that was measured is kept.
    stopped : str or None
        Why it ended before its time, where the machines to measure on went away; everything that
        was measured is kept.
    """

    database: Path
    functions: list[FunctionResult] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    stopped: str | None = None

    @property
    def wrong(self) -> list[Trial]:
        """Every candidate whose result differed from its loop's."""
        return [trial for function in self.functions for trial in function.wrong]
