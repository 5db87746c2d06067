"""The exception types of tvm_scan."""

from tvm.s_tir import ScheduleError

__all__ = ["PlanError", "RefusalError", "ScanError", "WriteError"]


class ScanError(ScheduleError):
    """Base class of every error that tvm_scan raises on a user's behalf.

    A subclass of TVM's ``ScheduleError``, so that code which tolerates a failing schedule
    primitive tolerates ours too.
    """


class RefusalError(ScanError):
    """A loop was to be parallelised that is not provably a supported recurrence.

    Attributes
    ----------
    refusal : tvm_scan.Refusal
        The reason, as data.
    """

    def __init__(self, message: str, refusal: object) -> None:
        super().__init__(message)
        self.refusal = refusal


class PlanError(ScanError):
    """A plan does not fit the target or the recurrence; the message gives the numbers."""


class WriteError(ScanError):
    """A file cannot be written; the message names it, and what was there is as it was."""
