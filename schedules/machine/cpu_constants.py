"""Choice of a CPU target's constants: what the target can do, on a machine that was measured.

``data/`` has a file for each kind of processor that was measured, by LLVM's name of it.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
from dataclasses import fields, replace
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path

from tvm.target import Target

from tvm_scan.arguments import host_target
from tvm_scan.schedules.machine.cpu_chip import OF_TARGET, CpuChip
from tvm_scan.schedules.machine.device import has_feature

_LOG = logging.getLogger("tvm_scan")
#: Operations of a product of vectors of integers without SSE4.1: seven, most of them shuffles.
#: Affine steps of 30000 integers take a Zen 4 42 us in vectors of 16.
_HALF_PRODUCTS = 5.0
#: The same of a maximum or minimum of them, of 32 bits; those of 64 bits have no comparison either.
_COMPARED = 4.0
#: Operations of a half without F16C, which is a call: in vectors of 4 lanes steps of moving
#: averages of halves take a Zen 4 22 cycles.
_SOFT_HALVES = 45.0
#: Bytes of a shared cache that a machine may count on: others use it, too.
_LARGEST_SHARE = 64 << 20
#: Bytes above which a file is no file of constants.
_LARGEST_FILE = 1 << 16


def chip_of(target: Target) -> CpuChip:
    """Constants of a target: its instructions, and of the machine what the target does not say.

    Parameters
    ----------
    target : tvm.target.Target
        Of a CPU. Its features count, not those of the machine that compiles.
    """
    kind = str((target.attrs or {}).get("mcpu") or "")
    known = None if kind in ("", host_kind()) else _shipped(kind)
    return with_features(known or machine_constants()[0], target)


@cache
def host_kind() -> str:
    """LLVM's name of this machine's processor."""
    return str(host_target().attrs.get("mcpu") or "")


@lru_cache(maxsize=64)
def with_features(chip: CpuChip, target: Target) -> CpuChip:
    """A machine's constants under the instructions of a target."""
    width = 64 if has_feature(target, "avx512f") else 32 if has_feature(target, "avx2") else 16
    fused = halves = 0.0
    integers, extremum = chip.integer_product, chip.integer_extremum
    if has_feature(target, "sse2") and not has_feature(target, "fma"):
        # A sum of its own after every product, which is a cycle shorter for itself.
        fused = chip.sum_latency - 1.0
    if has_feature(target, "sse2") and not has_feature(target, "f16c"):
        halves = _SOFT_HALVES
    if has_feature(target, "sse2") and not has_feature(target, "sse4.1"):
        # Of every second number of 32 bits, twice, and what puts them together.
        integers = max(integers, _HALF_PRODUCTS)
        extremum = max(extremum, _COMPARED)
    together = chip.together(width)
    return replace(
        chip,
        vector_bytes=width,
        fused=fused,
        halves=halves,
        integer_product=integers,
        integer_extremum=extremum,
        mixed_issue=together * chip.mixed_issue,
        mixed_integers=together * chip.mixed_integers,
    )


def machine_constants() -> tuple[CpuChip, str]:
    """Constants of this machine, and whether they are calibrated, shipped or estimated."""
    calibrated = user_file()
    return _constants(calibrated, _stamp(calibrated))


def _stamp(path: Path | None) -> tuple[int, int] | None:
    """Time and size of a file, which change with it; None where there is none."""
    try:
        about = path.stat() if path is not None else None
    except OSError:
        return None
    return None if about is None else (about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=16)
def _constants(calibrated: Path | None, stamp: tuple[int, int] | None) -> tuple[CpuChip, str]:
    if (
        calibrated is not None
        and stamp is not None
        and (constants := _read(calibrated)) is not None
    ):
        return constants, "calibrated"
    if (constants := _shipped(host_kind())) is not None:
        return constants, "shipped"
    sizes = cache_sizes()
    estimate = CpuChip(
        nearest=sizes.get(1, CpuChip.nearest),
        private=sizes.get(2, CpuChip.private),
        shared=last_cache(),
    )
    return estimate, "estimated"


def last_cache() -> int:
    """Bytes of the cache that all cores share, as the machine says, and no more than may count."""
    return min(cache_sizes().get(3, CpuChip.shared), _LARGEST_SHARE)


@cache
def _shipped(kind: str) -> CpuChip | None:
    """Constants of a kind of processor that was measured."""
    name = f"machine/data/{kind}.json"
    path = files("tvm_scan.schedules").joinpath(name)
    # A name of LLVM's has no slash; what else a target says names no file of ours.
    if not re.fullmatch(r"[\w.+-]{1,40}", kind) or not path.is_file():
        return None
    return parse_constants(path.read_text(encoding="utf-8"), name)


def user_file() -> Path | None:
    """Path of this user's calibration of this processor; None where that is turned off.

    ``TVM_SCAN_MACHINE`` names another file, or is ``off``.
    """
    named = os.environ.get("TVM_SCAN_MACHINE", "")
    if named.lower() in ("off", "0"):
        return None
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_DATA_HOME")
    try:
        folder = Path(base) if base else Path.home() / ".local" / "share"
    except RuntimeError:  # no home
        return None
    return folder / "tvm_scan" / "machine" / f"{processor_name()}.json"


def _read(path: Path) -> CpuChip | None:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise OSError(f"expected at most {_LARGEST_FILE} bytes")
        return parse_constants(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        _LOG.warning("tvm_scan: the constants in %s are not used: %s", path, error)
        return None


def parse_constants(text: str, name: str) -> CpuChip | None:
    """Constants of a file; None, with a message, where it is damaged.

    Parameters
    ----------
    text : str
        JSON: an object with a number for each field of ``CpuChip``.
    name : str
        Of the file, for the message.
    """
    measured = [field.name for field in fields(CpuChip) if field.name not in OF_TARGET]
    try:
        constants = json.loads(text)["constants"]
        told = [*measured, *(field for field in OF_TARGET if field in constants)]
        values = {field: _number(field, constants[field]) for field in told}
        if len(constants) != len(values):
            raise ValueError(f"unknown fields {sorted(set(constants) - set(values))}")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        _LOG.warning(
            "tvm_scan: the constants in %s are not used: expected a positive number for each of "
            "%s, got %s; run tvm-scan calibrate again",
            name,
            ", ".join(measured),
            f"{type(error).__name__}: {error}",
        )
        return None
    return CpuChip(**values)  # type: ignore[arg-type]


def _number(name: str, value: object) -> float | int:
    """A positive number, whole where the field is; within what any processor has.

    What most processors have none of may be zero.
    """
    usual = getattr(CpuChip, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r}")
    within = 0 < value < 1e15 or value == usual
    if not within or (isinstance(usual, int) and int(value) != value):
        raise ValueError(f"{name}={value!r}")
    return int(value) if isinstance(usual, int) else float(value)


def cache_sizes() -> dict[int, int]:
    """Level of a data cache -> its bytes; empty where the machine does not say."""
    sizes = {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind, level, text = (
                (folder / name).read_text().strip() for name in ("type", "level", "size")
            )
        except OSError:
            continue
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 0)
        if kind != "Instruction" and level.isdigit() and text[:-1].isdigit() and unit:
            sizes[int(level)] = int(text[:-1]) * unit
    return sizes


@cache
def processor_name() -> str:
    """Name of this machine's processor, in letters, digits and dashes."""
    said: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                said.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    # Several generations are sold under one model name: "AMD EPYC".
    parts = [said.get("model name") or platform.processor(), said.get("cpu family", "")]
    parts.append(said.get("model") or said.get("CPU part", ""))
    return re.sub(r"[^a-z0-9]+", "-", "-".join(filter(None, parts)).lower()).strip("-")
