"""The lines of a database's files, read without trust: what is none is named and kept."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: A record is some kilobytes; a line beyond this is none.
_LONGEST = 64 << 20
#: Seconds beyond which a number is no time: TVM marks what failed with less.
_MOST = 1e12
#: Levels of lists and objects in a record; Python's own limit depends on who asks.
_LEVELS = 100


@dataclass(frozen=True)
class Row:
    """A line of a file: its number from 1, its bytes, and its value or what is wrong with it."""

    number: int
    raw: bytes
    value: Any = None
    fault: str | None = None


def read_manifest(data: bytes | None) -> tuple[dict[str, Any], Row | None]:
    """Read a manifest; of one that was truncated or written over, the records that are whole in it.

    Parameters
    ----------
    data : bytes or None
        Of the file, if there is one.

    Returns
    -------
    manifest : dict
        With ``records``: facts by the digest of their record.
    row : Row or None
        What is wrong.
    """
    if data is None:
        return {"format": 1, "records": {}}, None
    try:
        manifest = json.loads(data.decode("utf-8"))
        records = manifest["records"]
        facts = isinstance(records, dict) and all(isinstance(v, dict) for v in records.values())
        if facts and _is_shallow(manifest):
            return manifest, None
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    salvaged = _salvaged(data.decode("utf-8", errors="replace"))
    fault = f"expected a manifest, got other text, which names {len(salvaged)} records"
    return {"format": 1, "records": salvaged}, Row(1, data, None, fault)


def _salvaged(text: str) -> dict[str, Any]:
    records = {}
    for match in re.finditer(r'"([0-9a-f]{16})":\s*(?=\{)', text):
        with contextlib.suppress(ValueError, RecursionError):
            records[match[1]] = json.JSONDecoder().raw_decode(text, match.end())[0]
    return {digest: facts for digest, facts in records.items() if _is_shallow(facts)}


def parse_lines(data: bytes) -> Iterator[Row]:
    """Read one JSON value to a line; what is none is kept as a fault.

    Parameters
    ----------
    data : bytes
        Of a file.

    Yields
    ------
    Row
        Of the lines that are not blank.
    """
    for number, raw in enumerate(data.split(b"\n"), 1):
        if raw.strip():
            yield _parsed(number, raw)


def _parsed(number: int, raw: bytes) -> Row:
    if len(raw) > _LONGEST:
        return Row(number, raw, None, f"expected a line of at most {_LONGEST} bytes")
    try:
        return Row(number, raw, json.loads(raw.decode("utf-8")))
    except (ValueError, RecursionError) as error:
        return Row(number, raw, None, f"expected JSON, got {type(error).__name__}: {error}")


def workload_fault(value: Any) -> str | None:
    """Return what is wrong with a line of a workload file, as far as Python can see.

    TVM reads the length in front of a packed module without a check, so that is checked here.
    """
    if not (isinstance(value, list) and len(value) == 2 and all(isinstance(v, str) for v in value)):
        return "expected a hash and a packed module"
    if not value[0].isdigit():
        return "expected a structural hash"
    try:
        packed = base64.b64decode(value[1], validate=True)
    except (binascii.Error, ValueError):
        return "expected base64"
    if len(packed) < 8 or int.from_bytes(packed[:8], "little") != len(packed) - 8:
        return "expected a packed module of the length that it names"
    try:
        graph = json.loads(packed[8:])
        nodes, root = graph["nodes"], graph["root_index"]
        whole = isinstance(nodes, list) and 0 <= root < len(nodes)
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    return None if whole else "expected the graph of a module"


def record_fault(value: Any, workloads: list[Any]) -> str | None:
    """Return what is wrong with a line of a record file, as far as Python can see.

    Parameters
    ----------
    value : object
        The line's JSON.
    workloads : list
        The workloads by number; None where one cannot be read.

    Returns
    -------
    str or None
        None where it is a record.
    """
    if not (isinstance(value, list) and len(value) == 2 and type(value[0]) is int):
        return "expected the number of a workload and a record"
    if not 0 <= value[0] < len(workloads) or workloads[value[0]] is None:
        return f"expected one of {len(workloads)} workloads, got number {value[0]!s:.20}"
    body = value[1]
    if not _is_shallow(body):
        return f"expected at most {_LEVELS} levels of lists"
    if not (isinstance(body, list) and len(body) == 4):
        return "expected trace, seconds, target and arguments"
    trace, seconds, target, arguments = body
    if not (_is_trace(trace) and isinstance(arguments, list) and not _has_null(arguments)):
        return "expected a trace and arguments"
    if not (isinstance(seconds, list) and seconds and all(map(_is_time, seconds))):
        return "expected positive seconds"
    return None if isinstance(target, dict) else "expected a target"


def _is_shallow(value: Any) -> bool:
    """Return whether lists and objects hold one another to a depth that everybody can read."""
    level = [value]
    for _ in range(_LEVELS):
        nested = [v for v in level if isinstance(v, list | dict)]
        level = [
            v
            for container in nested
            for v in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return True
    return False


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= _MOST


def _is_trace(trace: Any) -> bool:
    """Instructions of name, inputs, attributes and outputs, and decisions.

    TVM ends the process over a null where it expects an object; it takes one as a later input
    alone, for a factor that is to be found.
    """
    if not (isinstance(trace, list) and [type(part) for part in trace] == [list, list]):
        return False
    return not _has_null(trace[1]) and all(
        isinstance(inst, list)
        and len(inst) == 4
        and isinstance(inst[0], str)
        and all(isinstance(part, list) for part in inst[1:])
        and not _has_null([inst[1][:1], *inst[2:]])
        for inst in trace[0]
    )


def _has_null(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(_has_null, value.values() if isinstance(value, dict) else value))
    return value is None
