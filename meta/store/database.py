"""``RecordStore``: a folder of stock ``JSONDatabase`` files and a manifest beside them.

TVM's own ``JSONDatabase`` reads and replays the two files. It also appends to them without a lock
and trusts every line; so this class does the writing, and the reading for our own use.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm import IRModule, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_scan._versions import why_foreign
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.meta.store.entry import Entry, canonical
from tvm_scan.meta.store.failure import RecordError
from tvm_scan.meta.store.files import (
    locked,
    reading,
    replace_file,
    replace_files,
)
from tvm_scan.meta.store.lines import Row
from tvm_scan.meta.store.names import MANIFEST, RECORDS, WORKLOADS
from tvm_scan.meta.store.rows import Content, program_digest, read_content, record_digest
from tvm_scan.meta.store.summary import Summary, sealed
from tvm_scan.schedules.plan import ScanPlan

#: Of lines that are no records, how many are named.
_SHOWN = 10
_LOG = logging.getLogger("tvm_scan")


class RecordStore:
    """Records of a folder.

    Parameters
    ----------
    folder : path
        Need not exist before the first ``commit``.

    Attributes
    ----------
    rejected : list of str
        What the last reading found that is no record, with file and line; of very many the first,
        and how many more there are.
    bad_lines : int
        How many there are.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.rejected: list[str] = []
        self.bad_lines = 0
        self._functions: dict[tuple[str, ...], tuple[int, Any] | None] = {}

    # ---- reading ----------------------------------------------------------------------------

    def plan_of(self, recurrence: TimeLoop, target: Target) -> ScanPlan | None:
        """Return the plan of this recurrence or of its nearest shape; see ``plan_for``."""
        from tvm_scan.meta.store.nearest import plan_for  # it reads databases

        return plan_for(recurrence, target, self)

    def entries(self) -> list[Entry]:
        """Every record that can be read; the others are in ``rejected``.

        Raises
        ------
        ScanError
            If the folder holds no database, or its files cannot be opened.
        """
        try:
            is_folder = self.folder.is_dir()
            is_database = is_folder and (self.folder / RECORDS).exists()
        except OSError as error:
            raise RecordError(
                f"database: expected to read {self.folder}, got: {error.strerror}; check its "
                "permissions"
            ) from error
        if not is_database:
            kind = "a folder without one" if is_folder else "nothing"
            raise RecordError(
                f"database: expected {RECORDS} in {self.folder}, found {kind}; give the folder of "
                "a tuning run (tvm-scan tune)"
            )
        with reading(self.folder):
            return self._read()[0]

    def _read(self) -> tuple[list[Entry], Content]:
        content = read_content(self.folder)
        self._name(content.bad)
        return [Entry(**vars(record)) for record in content.records], content

    def _name(self, bad: list[tuple[str, Row]]) -> None:
        """Say what is no record, once for as long as it stays the same."""
        texts = [f"{self.folder / n}:{row.number}: {row.fault}" for n, row in bad[:_SHOWN]]
        if len(bad) > _SHOWN:
            texts.append(f"{self.folder}: and {len(bad) - _SHOWN} more lines that are no records")
        if texts != self.rejected:
            for text in texts:
                _LOG.warning("%s; left out", text)
        self.rejected, self.bad_lines = texts, len(bad)

    # ---- writing ----------------------------------------------------------------------------

    def commit(
        self,
        mod: IRModule,
        record: ms.database.TuningRecord,
        facts: dict[str, Any],
        *,
        instead_of: str | None = None,
    ) -> Entry:
        """Add one record, in one step for every other process.

        Parameters
        ----------
        mod : IRModule
            The sequential program.
        record : TuningRecord
            Its trace and times.
        facts : dict
            Its provenance.
        instead_of : str, optional
            Digest of the record whose place it takes, where one plan was measured again.

        Returns
        -------
        Entry

        Raises
        ------
        ScanError
            If it cannot be written; then the files are as they were.
        """
        workload = ms.database.Workload(mod).as_json()
        body = json.loads(json.dumps(record.as_json()))
        facts = {**facts, "program": program_digest(workload)}
        entry = Entry(record_digest(workload, body), workload, body, facts)
        if entry.fault is None:  # else who reads it has to find out
            facts["summary"] = sealed(entry.digest, facts["program"], entry.about)

        def change(entries: list[Entry]) -> list[Entry]:
            changed = [entry if e.digest == instead_of else e for e in entries]
            return changed if entry in changed else [*changed, entry]

        self.update(change)
        return entry

    def update(
        self,
        change: Callable[[list[Entry]], Iterable[Entry]],
        *,
        compact: bool = False,
        about: dict[str, Any] | None = None,
    ) -> list[Entry]:
        """Replace the records by what ``change`` makes of them, under the lock.

        Lines that are no records are moved to ``*.rejected`` files; nothing is thrown away.

        Parameters
        ----------
        change : callable
            From the entries to the entries to keep.
        compact : bool
            Whether to drop workloads without records, too.
        about : dict, optional
            What else the manifest is to say.

        Returns
        -------
        list of Entry
            What the files hold now.
        """
        with locked(self.folder):
            entries, content = self._read()
            bad, manifest, present = content.bad, content.manifest, content.workloads
            changed = list({e.digest: e for e in change(entries)}.values())
            for name in {n for n, _ in bad}:
                self._set_aside(name, [row.raw for n, row in bad if n == name])
            stay = [] if compact else [tuple(w) for w in present if w is not None]
            order = dict.fromkeys([*stay, *(tuple(e.workload) for e in changed)])
            numbers = {key: i for i, key in enumerate(order)}
            rows = [[numbers[tuple(e.workload)], e.json] for e in changed]
            manifest.update(about or {})
            manifest["records"] = {e.digest: e.facts for e in changed if e.facts is not None}
            texts = {
                WORKLOADS: _lines([list(key) for key in order]),
                MANIFEST: json.dumps(manifest, indent=1) + "\n",
                RECORDS: _lines(rows),
            }
            # A process that dies between two files leaves a whole database: what is new is named
            # before it is used. That fails where workloads change their numbers.
            replace_files(self.folder, texts, together=compact or None in present)
        return changed

    def _set_aside(self, name: str, raws: list[bytes]) -> None:
        path = self.folder / f"{name}.rejected"
        before = path.read_bytes() if path.is_file() else b""
        known = set(before.split(b"\n"))
        new = [raw for raw in dict.fromkeys(raws) if raw not in known]
        if name == MANIFEST:  # it is one text of many lines
            new = [raw for raw in raws if raw not in before]
        if new:
            replace_file(path, before + b"".join(raw + b"\n" for raw in new))

    def summaries(self) -> list[Summary]:
        """Return what tables show of every record; of one that is not usable here, why."""
        good, others = self.usable()
        return [self.summary(e) for e in good] + [self.summary(e, why) for e, why in others]

    def summary(self, entry: Entry, reason: str | None = None) -> Summary:
        """Describe an entry, and why it is not usable here."""
        known = not entry.unknown and entry.fault is None
        about = entry.about if known else {}
        return Summary.of(entry.digest, entry.json, entry.facts, about, reason)

    # ---- use --------------------------------------------------------------------------------

    def usable(self, target: Target | None = None) -> tuple[list[Entry], list[tuple[Entry, str]]]:
        """Entries for this installation and a target, and the others with the reason."""
        return self.split(self.entries(), target)

    def split(
        self, entries: list[Entry], target: Target | None = None
    ) -> tuple[list[Entry], list[tuple[Entry, str]]]:
        """Split entries into those that ``usable`` returns, and the others with the reason."""
        good, others = [], []
        for entry in entries:
            reason = entry.unknown or entry.fault or why_foreign(entry.facts)
            if (
                reason is None
                and target is not None
                and not tvm_ffi.structural_equal(entry.target, target)
            ):
                reason = f"expected a record for {target}, found one for {entry.target}"
            if reason is None:
                good.append(entry)
            else:
                others.append((entry, reason))
        return good, others

    def best(self, func: tirx.PrimFunc, target: Target) -> Entry | None:
        """The fastest usable record of a function; None where there is none.

        Parameters
        ----------
        func : PrimFunc
            Compared without its name and marks.
        target : tvm.target.Target
            Must be the record's own.

        Returns
        -------
        Entry or None
        """
        return min(self.usable_of(func, target), key=lambda entry: entry.seconds, default=None)

    def usable_of(self, func: tirx.PrimFunc, target: Target) -> list[Entry]:
        """Every usable record of a function and a target; as ``best`` has it."""
        key, bare = canonical(func)
        same = []
        for entry in self.entries():
            name_and_func = None if entry.unknown else self._canonical(entry)
            if (
                name_and_func is not None
                and name_and_func[0] == key
                and tvm_ffi.structural_equal(bare, name_and_func[1])
            ):
                same.append(entry)
        good, others = self.split(same, target)
        for entry, reason in others:
            _LOG.info("record %s is not used: %s", entry.digest, reason)
        return good

    def _canonical(self, entry: Entry) -> tuple[int, Any] | None:
        """Key and bare form of an entry's function, once per workload; None if unreadable."""
        name = tuple(entry.workload)
        if name not in self._functions:
            try:
                self._functions[name] = canonical(entry.func)
            except RecordError:  # this record's facts are wrong, those of another may be right
                return None
            except Exception:  # whatever TVM's readers raise for a text that is damaged
                self._functions[name] = None
        return self._functions[name]

    def query_tuning_record(
        self, mod: IRModule, target: Target, _name: str = "main"
    ) -> ms.database.TuningRecord | None:
        """Find the best record as a stock database does: passes and ``replay`` take stores, too."""
        best = self.best(mod["main"], target)
        return None if best is None else best.record


def _lines(values: list[Any]) -> str:
    return "".join(json.dumps(value, separators=(",", ":")) + "\n" for value in values)
