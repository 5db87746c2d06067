"""Operations that the solver's theories do not have."""


class UntranslatableError(Exception):
    """An expression has no translation into a theory; the statement stays undecided there."""
