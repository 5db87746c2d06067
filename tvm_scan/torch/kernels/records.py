"""Plans of kernels from records: a user's own, and those that are shipped.

``TVM_SCAN_RECORDS`` names the folder of a user's records (``off`` leaves the shipped ones out); it
is read when a kernel is asked for that is not in the cache of plans.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_scan._resources import shipped_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tvm import tirx

    from tvm_scan.meta import RecordStore


_VARIABLE = "TVM_SCAN_RECORDS"
_MANIFEST = "manifest.json"
#: The number that stands for a kernel's arguments which are numbers, such as the step at which a
#: scan begins: with 0 the loop would be another one.
_NUMBER = 32


def use_records(folder: str | os.PathLike[str] | None) -> None:
    """Look the plans of kernels up in records of one's own, before those that are shipped.

    Parameters
    ----------
    folder : path or None
        What ``tvm_scan.meta.tune`` wrote, for loops from `loops_of`. None: the shipped records
        alone, as at first.

    Raises
    ------
    ValueError
        If there are no records in the folder.

    Notes
    -----
    Sets ``TVM_SCAN_RECORDS``, so that child processes do the same. Kernels that were called
    before get their plans anew. A record of another machine or version is not used.
    """
    from tvm_scan.torch.kernels.cache import forget_plans

    if folder is None:
        os.environ.pop(_VARIABLE, None)
    else:
        path = Path(folder).expanduser().resolve()
        if not (path / _MANIFEST).is_file():
            raise ValueError(
                f"tvm_scan.torch.use_records: expected a folder with {_MANIFEST}, got {path}; pass "
                "the folder that tvm_scan.meta.tune wrote"
            )
        os.environ[_VARIABLE] = str(path)
    forget_plans()


def loops_of(function: Callable[..., Any], *arguments: Any) -> dict[str, tirx.PrimFunc]:
    """Return the sequential loops of the kernels that a call runs, backward passes included.

    Parameters
    ----------
    function : callable
        Is called once, as ``function(*arguments)``.
    *arguments : Any
        Of the sizes to tune for. Plans are kept for ranges up to a factor of two; the loops have
        the least sizes of these.

    Returns
    -------
    dict of str to PrimFunc
        By a name that says which kernel it is: a program for ``tvm_scan.meta.tune``.

    Raises
    ------
    Exception
        What the function raises.
    """
    from tvm_scan.torch.kernels.building import loop_at
    from tvm_scan.torch.kernels.cache import kernels_asked_for

    with kernels_asked_for() as asked:
        function(*arguments)
    by_name = {}
    for spec, sizes in asked:
        searched = spec.measured_as if spec.no_scan else spec
        if searched is not None:
            name = f"{searched.text()} {'x'.join(map(str, sizes))}"
            by_name[name] = without_numbers(loop_at(searched, sizes))
    return by_name


def without_numbers(loop: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return `loop` with a constant for every parameter that is no tensor."""
    from tvm import tirx

    from tvm_scan import tir

    tensors = [param for param in loop.params if tirx.is_buffer_var(param)]
    numbers = [param for param in loop.params if not tirx.is_buffer_var(param)]
    if not numbers:
        return loop
    known = {param: tirx.IntImm(tir.dtype_of(param), _NUMBER) for param in numbers}
    body = tir.substitute(loop.body, known)
    return tirx.PrimFunc(tensors, body, loop.ret_type, attrs=loop.attrs)


def _folder() -> Path | None:
    named = os.environ.get(_VARIABLE, "")
    return None if named.lower() in ("", "off", "0") else Path(named).expanduser()


def plan_sources() -> tuple[str, ...]:
    """Digests of everything that a plan may come from, apart from the loop and the machine."""
    folder, shipped = _folder(), hashlib.sha256("".join(shipped_text()).encode()).hexdigest()
    if folder is None:
        return os.environ.get(_VARIABLE, ""), shipped
    try:
        digest = hashlib.sha256((folder / _MANIFEST).read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(
            f"tvm_scan.torch: expected records in the folder that {_VARIABLE} names, got {error}; "
            "name the folder that tvm_scan.meta.tune wrote, or unset it"
        ) from None
    return digest, shipped


def user_records() -> RecordStore | None:
    """Return the user's records; None where there are none."""
    folder = _folder()
    if folder is None:
        return None
    from tvm_scan.meta import RecordStore  # tuning is imported by those alone who use it

    return RecordStore(folder)
