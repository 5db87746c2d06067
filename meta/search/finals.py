"""The choice of what is measured again at a search's end: what may be fastest, and the default."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_scan.meta.search.result import Trial

#: Rounds that each contender gets, and how often the field may change.
ROUNDS, PASSES = 3, 8
#: How far behind the first one a contender may be, and how many there are.
_NEAR, _MOST = 1.1, 3


def contenders(trials: Sequence[Trial], default: Trial | None) -> list[Trial]:
    """The candidates between which one more measurement has to decide.

    Parameters
    ----------
    trials : sequence of Trial
        All of them.
    default : Trial, optional
        The one of the default plans, where they were measured.

    Returns
    -------
    list of Trial
        The fastest, those that are nearly as fast, and the default plans; none where the
        fastest has a confirmed time, or is the default with nothing near it.
    """
    timed = [(trial.seconds, trial) for trial in trials if trial.seconds is not None]
    ran = sorted(timed, key=lambda pair: pair[0])
    if not ran or ran[0][1].confirmed:
        return []
    near = [trial for seconds, trial in ran if seconds <= ran[0][0] * _NEAR][:_MOST]
    if default is not None and default.seconds is not None and default not in near:
        near.append(default)
    return near if len(near) > 1 else []
