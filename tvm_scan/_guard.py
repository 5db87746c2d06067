"""The start-up guard: a broken pair of TVM and tvm-ffi becomes one sentence with the fix.

Some pairs import without complaint and end the process with SIGSEGV when a module is serialised,
which tuning and pickling do. No exception can be caught then, so the versions are read from the
installed metadata, before TVM is imported.
"""

from __future__ import annotations

import re
from importlib import metadata

TVM_REQUIREMENT = "apache-tvm>=0.27.0,<0.28"
FFI_REQUIREMENT = "apache-tvm-ffi>=0.1.14.post0,<0.1.15"
_FIX = f"run: python -m pip install '{TVM_REQUIREMENT}' '{FFI_REQUIREMENT}'"

# PEP 440 without epochs, which neither project has used. `packaging` is not a dependency.
_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?P<pre>[._-]?(?:a|b|c|rc|alpha|beta|pre|preview)[._-]?\d*)?"
    r"(?P<post>[._-]?post[._-]?\d*|-\d+)?"
    r"(?P<dev>[._-]?dev[._-]?\d*)?"
    r"(?:\+[a-z0-9._-]+)?",
    re.IGNORECASE,
)


class IncompatibleTVMError(ImportError):
    """The installed TVM or tvm-ffi is missing, or is one that tvm_scan cannot run on."""


def check_versions(tvm_version: str | None, ffi_version: str | None) -> str | None:
    """Judge a pair of installed versions.

    Parameters
    ----------
    tvm_version : str or None
        Version of the distribution ``apache-tvm``; None where it is not installed.
    ffi_version : str or None
        Version of the distribution ``apache-tvm-ffi``; None where it is not installed.

    Returns
    -------
    sentence : str or None
        None for a pair that works, else what was expected, what was found, and the fix.
    """
    if tvm_version is None:
        return f"tvm_scan: expected {TVM_REQUIREMENT}, got no apache-tvm installed; {_FIX}"
    if ffi_version is None:
        return f"tvm_scan: expected {FFI_REQUIREMENT}, got no apache-tvm-ffi installed; {_FIX}"
    if not _is_supported_tvm(tvm_version):
        return f"tvm_scan: expected {TVM_REQUIREMENT}, got apache-tvm {tvm_version}; {_FIX}"
    if not _is_supported_ffi(ffi_version):
        return (
            f"tvm_scan: expected {FFI_REQUIREMENT}, got apache-tvm-ffi {ffi_version}, with which "
            f"apache-tvm {tvm_version} crashes when it serialises a module; {_FIX}"
        )
    return None


def ensure_compatible() -> None:
    """Raise unless the installed TVM and tvm-ffi are a pair that works.

    Raises
    ------
    IncompatibleTVMError
        With the sentence of `check_versions`.
    """
    sentence = check_versions(installed("apache-tvm"), installed("apache-tvm-ffi"))
    if sentence is not None:
        raise IncompatibleTVMError(sentence)


def installed(distribution: str) -> str | None:
    """Version of a distribution; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _is_supported_tvm(version: str) -> bool:
    match = _VERSION.fullmatch(version)
    if match is None:
        return False
    release = _release(match)
    # A candidate or nightly of 0.27.0 comes before 0.27.0, whose API is the one we test.
    is_before = release == (0, 27, 0) and bool(match["pre"] or (match["dev"] and not match["post"]))
    return release[:2] == (0, 27) and not is_before


def _is_supported_ffi(version: str) -> bool:
    match = _VERSION.fullmatch(version)
    if match is None:
        return False
    release = _release(match)
    if release != (0, 1, 14):  # 0.1.14.N, if there ever is one, is after every 0.1.14.postN
        return release[:3] == (0, 1, 14) and not (match["pre"] or match["dev"])
    return match["post"] is not None and match["pre"] is None and match["dev"] is None


def _release(match: re.Match[str]) -> tuple[int, ...]:
    """Return the release numbers, at least three: 0.27 is 0.27.0."""
    numbers = [int(part) for part in match["release"].split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))
