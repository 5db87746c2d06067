"""The files of a database as rows, read without TVM."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvm_scan.meta.store.files import contents
from tvm_scan.meta.store.lines import Row, parse_lines, read_manifest, record_fault, workload_fault
from tvm_scan.meta.store.names import MANIFEST, RECORDS, WORKLOADS


@dataclass(frozen=True, eq=False)
class Record:
    """One record as it stands in the files.

    Attributes
    ----------
    digest : str
        Name of the record: SHA-256 of its workload's hash and its text.
    workload : list
        The workload's line.
    json : list
        Trace, seconds, target and arguments, as TVM writes them.
    facts : dict or None
        Provenance from the manifest.
    """

    digest: str
    workload: list[str]
    json: list[Any]
    facts: dict[str, Any] | None


@dataclass(frozen=True)
class Content:
    """Contents of the files of a database.

    Attributes
    ----------
    records : list of Record
        In the order of the file.
    bad : list of (str, Row)
        Lines that are no records, with the name of their file.
    manifest : dict
        With ``records``: facts by the digest of their record.
    workloads : list
        By number; None where one cannot be read.
    """

    records: list[Record]
    bad: list[tuple[str, Row]]
    manifest: dict[str, Any]
    workloads: list[list[str] | None]


def read_content(folder: Path) -> Content:
    """Read the files of a folder.

    Raises
    ------
    RecordError
        If one of them cannot be opened.
    """
    files, bad = contents(folder), list[tuple[str, Row]]()
    manifest, damaged = read_manifest(files.get(MANIFEST))
    bad += [] if damaged is None else [(MANIFEST, damaged)]
    facts = manifest["records"]
    workloads: list[list[str] | None] = []
    for row in parse_lines(files.get(WORKLOADS, b"")):
        fault = row.fault or workload_fault(row.value)
        workloads.append(None if fault else row.value)
        if fault:
            bad.append((WORKLOADS, replace(row, fault=fault)))
    records: dict[str, Record] = {}
    for row in parse_lines(files.get(RECORDS, b"")):
        fault = row.fault or record_fault(row.value, workloads)
        if fault:
            bad.append((RECORDS, replace(row, fault=fault)))
            continue
        workload = workloads[row.value[0]]
        assert workload is not None
        digest = record_digest(workload, row.value[1])
        records[digest] = Record(digest, workload, row.value[1], facts.get(digest))
    return Content(list(records.values()), bad, manifest, workloads)


def times_of(record: list[Any], facts: Mapping[str, Any] | None) -> list[float]:
    """Seconds of each measurement of a record: as its facts say, else as TVM wrote them."""
    samples = (facts or {}).get("samples")
    if isinstance(samples, list) and samples and all(isinstance(t, float) for t in samples):
        return samples
    return [float(t) for t in record[1]]


def record_digest(workload: list[str], record: list[Any]) -> str:
    """Name of a record, which does not depend on where in a file it stands."""
    text = json.dumps([workload[0], record], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def program_digest(workload: list[str]) -> str:
    """SHA-256 of a workload's packed module, for the manifest."""
    return hashlib.sha256(workload[1].encode()).hexdigest()
