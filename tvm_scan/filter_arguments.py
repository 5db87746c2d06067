"""The check of what a recursive filter reads, for every face that calls it.

It imports no TVM: torch's kernels run from their cache without it.
"""

from __future__ import annotations

from collections.abc import Sequence

_DTYPES = ("float32", "float64")


def check_filters(
    waveform: Sequence[int | None],
    a: Sequence[int | None],
    b: Sequence[int | None],
    dtypes: Sequence[str],
) -> None:
    """Raise unless arrays of these shapes and dtypes are what ``loops.lfilter`` reads.

    Parameters
    ----------
    waveform, a, b : sequence of int or None
        (outer, channels, length), and twice (channels, taps); None is an extent that is not
        known, and is taken to fit.
    dtypes : sequence of str
        Those of the three.

    Raises
    ------
    ValueError
        If an array has other axes, extents differ, there is no coefficient, or a dtype differs or
        is none of float32 and float64.
    """
    if (len(waveform), len(a), len(b)) != (3, 2, 2):
        raise ValueError(
            "lfilter: expected a waveform (outer, channels, length) with coefficients (channels, "
            f"taps), got {len(waveform)} axes with {len(a)} and {len(b)}; add axes of extent 1"
        )
    channels = [n for n in (a[0], b[0], waveform[1]) if n is not None]
    taps = [n for n in (a[1], b[1]) if n is not None]
    for name, counts in (("channels", channels), ("taps", taps)):
        if len(set(counts)) > 1:
            raise ValueError(
                f"lfilter: expected one number of {name}, got {' and '.join(map(str, counts))}; "
                "give every channel a filter, and pad the shorter coefficients with zeros"
            )
    if 0 in taps:
        raise ValueError("lfilter: expected at least one coefficient, got 0; pass a[0]")
    if len(set(dtypes)) > 1 or dtypes[0] not in _DTYPES:
        raise ValueError(
            f"lfilter: expected one dtype of {' and '.join(_DTYPES)}, got {', '.join(dtypes)}; "
            "convert them"
        )
