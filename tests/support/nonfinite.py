"""NaN and infinity beside the loop's: the same kind in the same place."""

import numpy as np


def check_nonfinite(want, got, *, nan_for_infinity=False):
    """Assert that every value that is not finite is the loop's: NaN, or infinity with its sign.

    Parameters
    ----------
    want, got : ndarray
        Of the loop and of the scan.
    nan_for_infinity : bool
        Whether the scan may have NaN where the loop has infinity: docs/numerics.md says where.
    """
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    bad, expected = got[~finite], want[~finite]
    if nan_for_infinity:
        bad = np.where(np.isnan(bad), expected, bad)
        np.testing.assert_array_equal(np.isnan(got[np.isnan(want)]), True)
    np.testing.assert_array_equal(bad, expected)
