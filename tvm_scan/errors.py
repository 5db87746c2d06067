"""The exception types of tvm_scan."""

from tvm.s_tir import ScheduleError
from tvm_ffi import register_error

__all__ = ["PlanError", "RefusalError", "ScanError", "WriteError"]


@register_error
class ScanError(ScheduleError):
    """Base class of every error that tvm_scan raises on a user's behalf.

    A subclass of TVM's ``ScheduleError``, so that code which tolerates a failing schedule
    primitive tolerates ours too. Registered with TVM, so that it stays what it is where a pass
    raises it.
    """


@register_error
class RefusalError(ScanError):
    """A loop was to be parallelised that is not provably a supported recurrence.

    Attributes
    ----------
    refusal : tvm_scan.Refusal or None
        The reason, as data; None where the error came through TVM's runtime, as text.
    """

    def __init__(self, message: str, refusal: object = None) -> None:
        super().__init__(message)
        self.refusal = refusal


@register_error
class PlanError(ScanError):
    """A plan does not fit the target or the recurrence; the message gives the numbers."""


class WriteError(ScanError):
    """A file cannot be written; the message names it, and what was there is as it was."""
