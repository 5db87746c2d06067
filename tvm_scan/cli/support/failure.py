"""The error of a command that cannot do its work: one sentence, the fix, an exit code."""

WRONG_RESULT = 1
UNHEALTHY = 1
BAD_INPUT = 2
REFUSED = 3
NO_RECORD = 4
MACHINES_GONE = 5
INTERRUPTED = 130


class CommandError(Exception):
    """A failure to be shown to the user without a traceback.

    Parameters
    ----------
    message : str
        What was expected, what was found, and the fix.
    code : int
        Exit code of the process.
    """

    def __init__(self, message: str, code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.code = code
