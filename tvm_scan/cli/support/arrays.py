"""Arrays in files by name, and how far two of them are apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tvm_scan._files import replacing
from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.paths import check_file


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Arrays of an .npz file by name.

    Raises
    ------
    CommandError
        If the file is missing or is no .npz file.
    """
    check_file(path, "an .npz file")
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as loaded:
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise CommandError(f"expected an .npz file, got one array in {path}; use np.savez")
            return {name: loaded[name] for name in loaded.files}
    except CommandError:
        raise
    except Exception as error:  # of a damaged one, whatever its decoder raises
        raise CommandError(
            f"expected an .npz file of plain arrays, got {path} ({error}); write it with np.savez"
        ) from error


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an .npz file in one step: whoever reads sees the old file or the new one."""
    with replacing(path) as part, open(part, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def largest_error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference over finite values; infinite if one has a NaN or infinity alone."""
    if got.size == 0:
        return 0.0
    left, right = got.astype("float64"), want.astype("float64")
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(left - right))
    return float(np.max(np.where(np.isnan(difference), np.inf, difference)))
