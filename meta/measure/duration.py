"""A time for people."""


def duration(seconds: float) -> str:
    """A number of seconds in the unit that suits it: ``12.3 us``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
