"""The SQLite export of Nsight Systems (`nsys export --type sqlite`) as intervals.

Format: "SQLite Schema Reference" of the Nsight Systems User Guide, written against that of 2025 (tables are made only
when there is something to put in; some carry a version such as `_V2`). Not tried on a recorded export: the tested file
is made by hand. The database is opened read-only and immutable; only plain tables are read, as integers and cut text.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from feedback.readers import Unreadable
from feedback.readers.columns import MAX_NAME, MAX_NAMES, Columns, text_of
from feedback.spans import Ints, Spans, Track
from sandboxes.results import ArmName

MAX_STEPS = 20_000
STEP = 1_000_000
"""Instructions of SQLite in a step. Reading is given up after MAX_STEPS; a billion rows don't need them."""
BATCH_ROWS = 50_000
MAX_NOTES = 20
WARNING = 2
"""Severity from which a diagnostic event is repeated."""

COPIES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
"""Kinds of a memory copy as CUPTI numbers them."""
PUSH_POP, START_END, MARK = 59, 60, 34
"""NVTX event types: nested ranges of a thread, free ranges, moments."""

_VERSION = re.compile(r"_v\d+(_ptsz)?$")
_LOCK = re.compile(r"^(pthread_(mutex|cond|rwlock|spin|barrier)|sem_(timed|clock)?wait|futex)")


class _Activity(NamedTuple):
    """A table of intervals on a device."""

    table: str
    category: str
    about: str
    names: tuple[str, ...]
    """Columns that may hold the name, best first."""


DEVICE = (
    _Activity("CUPTI_ACTIVITY_KIND_KERNEL", "kernel", "kernels", ("demangledName", "shortName", "mangledName")),
    _Activity("CUPTI_ACTIVITY_KIND_MEMCPY", "gpu_memcpy", "memory copies", ("copyKind",)),
    _Activity("CUPTI_ACTIVITY_KIND_MEMSET", "gpu_memset", "memory sets", ()),
)
HOST = (
    _Activity("CUPTI_ACTIVITY_KIND_RUNTIME", "cuda_runtime", "CUDA calls", ("nameId",)),
    _Activity("OSRT_API", "os_runtime", "operating-system calls", ("nameId",)),
)


def fits(path: Path, head: bytes) -> bool:
    """Whether it is an SQLite database."""
    return head.startswith(b"SQLite format 3\x00")


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Spans]:
    """The report as one Spans; notes say which kinds of activity it doesn't hold and what the profiler complained of.
    Raises OSError, and Unreadable when it is no database or no export of Nsight Systems."""
    with path.open("rb"):  # a missing file is an OSError, not one of SQLite's
        pass
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            return [_Export(database, path).read(probe, stage, arm)]
    except (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError, OverflowError) as error:
        raise Unreadable(path, 0, f"not a readable SQLite database: {error}") from error


class _Export:
    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        self._database, self._path = database, path
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON"):
            database.execute(f"PRAGMA {pragma}")
        steps = iter(range(MAX_STEPS))
        database.set_progress_handler(lambda: next(steps, None) is None, STEP)
        self.columns = Columns()
        self._tables = self._plain_tables()

    def _plain_tables(self) -> dict[str, tuple[str, set[str]]]:
        """Name without version -> name and columns of each plain table; views and virtual tables run foreign code."""
        found: dict[str, tuple[str, set[str]]] = {}
        rows = self._database.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name"
        ).fetchall()
        for name, sql in rows[:1000]:
            if re.fullmatch(r"\w{1,100}", str(name)) and re.match(r"\s*CREATE\s+TABLE\b", str(sql), re.IGNORECASE):
                columns = {str(row[1]) for row in self._database.execute(f'PRAGMA table_info("{name}")')}
                found[re.sub(r"_V\d+$", "", name)] = (name, columns)
        return found

    def read(self, probe: str, stage: str, arm: ArmName) -> Spans:
        if not any(table in self._tables for table in ("StringIds", "NVTX_EVENTS", *(a.table for a in DEVICE + HOST))):
            raise Unreadable(self._path, 0, "an SQLite database, but without the tables of an Nsight Systems export")
        self._diagnostics()
        for activity in DEVICE + HOST:
            if activity.table not in self._tables:
                self.columns.notes.append(f"no {activity.about} were recorded (no table {activity.table})")
            elif activity in DEVICE:
                self._device(activity)
            else:
                self._host(activity)
        self._ranges()
        shift = next(self._rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)), [(0,)])[0][0]
        tracks = self._named_tracks()
        return self.columns.spans(
            self._path, probe, stage, arm, tracks, clock="unix" if shift > 0 else "unknown", shift_ns=max(shift, 0)
        )

    def _rows(self, table: str, columns: tuple[str, ...], where: str = "1") -> Iterator[list[tuple[int, ...]]]:
        """Batches of rows, every value an integer; -1 for a column that is NULL or missing."""
        if table not in self._tables:
            return
        name, present = self._tables[table]
        wanted = ", ".join(f'CAST(COALESCE("{c}", -1) AS INTEGER)' if c in present else "-1" for c in columns)
        cursor = self._database.execute(f'SELECT {wanted} FROM "{name}" WHERE {where}')
        while batch := cursor.fetchmany(BATCH_ROWS):
            yield batch

    def _strings(self, table: str, column: str) -> dict[int, str]:
        """The strings that a column of a table refers to."""
        if not {"id", "value"} <= self._tables.get("StringIds", ("", set()))[1] or column not in self._tables[table][1]:
            return {}
        query = (
            f"SELECT CAST(id AS INTEGER), substr(CAST(value AS TEXT), 1, {MAX_NAME}) FROM StringIds "
            f'WHERE id IN (SELECT DISTINCT "{column}" FROM "{self._tables[table][0]}") LIMIT {MAX_NAMES}'
        )
        return {number: text_of(value) for number, value in self._database.execute(query)}

    def _diagnostics(self) -> None:
        name, columns = self._tables.get("DIAGNOSTIC_EVENT", ("", set()))
        if {"severity", "text"} <= columns:
            query = (
                f'SELECT DISTINCT substr(CAST(text AS TEXT), 1, 200) FROM "{name}" '
                f"WHERE CAST(severity AS INTEGER) >= {WARNING} LIMIT {MAX_NOTES}"
            )
            self.columns.notes += [f"Nsight Systems said: {text_of(text)}" for (text,) in self._database.execute(query)]

    def _device(self, activity: _Activity) -> None:
        name_column = next((c for c in activity.names if c in self._tables[activity.table][1]), "")
        copies = activity.category == "gpu_memcpy"
        strings = {} if copies or not name_column else self._strings(activity.table, name_column)
        columns = ("start", "end", name_column, "globalPid", "deviceId", "streamId", "correlationId", "bytes")
        for batch in self._rows(activity.table, columns):
            names, tracks = [], []
            for _, _, name, process, device, stream, _, _ in batch:
                if copies:
                    text = f"Memcpy {COPIES.get(name, name)}"
                else:
                    text = strings.get(name, f"{activity.category} {name}") if name_column else "Memset"
                names.append(self.columns.names[text])
                tracks.append(self.columns.tracks["device", process, device, stream])
            table = np.array(batch, dtype=np.int64)
            numbers = {} if (table[:, 7] < 0).all() else {"bytes": np.where(table[:, 7] < 0, np.nan, table[:, 7])}
            self._add(table, names, [self.columns.categories[activity.category]] * len(batch), tracks, 3, 6, **numbers)

    def _host(self, activity: _Activity) -> None:
        strings = self._strings(activity.table, "nameId")
        for batch in self._rows(activity.table, ("start", "end", "nameId", "globalTid", "correlationId")):
            names, tracks, categories = [], [], []
            for _, _, name, thread, _ in batch:
                text = _VERSION.sub("", strings.get(name, f"call {name}"))
                names.append(self.columns.names[text])
                tracks.append(self.columns.tracks["thread", thread])
                category = "lock" if activity.table == "OSRT_API" and _LOCK.match(text) else activity.category
                categories.append(self.columns.categories[category])
            table = np.array(batch, dtype=np.int64)
            if activity.table == "OSRT_API":
                table[:, 4] = -1  # counted apart from CUDA's
            self._add(table, names, categories, tracks, 3, 4)

    def _add(
        self, table: Ints, names: list[int], categories: list[int], tracks: list[int], process: int, correlation: int,
        **numbers: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    ) -> None:  # fmt: skip
        """Append rows. Correlation ids count for each process anew, so its number goes into their upper half."""
        ids, pids = table[:, correlation], (table[:, process] >> 24) & 0xFFFFFF
        valid = (ids >= 0) & (ids < 1 << 32)
        indices = (np.array(values, dtype=np.int32) for values in (names, categories, tracks))
        name, category, track = indices
        self.columns.add(
            np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1]), name, category, track,
            np.where(valid, ids | pids << 32, -1), **numbers,
        )  # fmt: skip

    def _ranges(self) -> None:
        """NVTX ranges and marks. Their text stands in the row or among the strings."""
        if "NVTX_EVENTS" not in self._tables:
            return
        name, present = self._tables["NVTX_EVENTS"]
        strings = self._strings("NVTX_EVENTS", "textId")
        has_text = f"substr(CAST(text AS TEXT), 1, {MAX_NAME})" if "text" in present else "NULL"
        wanted = ", ".join(
            f'CAST(COALESCE("{c}", -1) AS INTEGER)' if c in present else "-1"
            for c in ("start", "end", "eventType", "textId", "globalTid")
        )
        rows: list[tuple[int, int, int]] = []
        names, tracks = [], []
        unfinished = 0
        for start, end, kind, text_id, thread, text in self._database.execute(
            f'SELECT {wanted}, {has_text} FROM "{name}"'
        ):
            label = text_of(text) if text is not None else strings.get(text_id, "")
            if kind == MARK:
                self.columns.instant(start, label, "user_annotation", self.columns.tracks["thread", thread])
            elif kind in (PUSH_POP, START_END) and end < 0:
                unfinished += 1
            elif kind in (PUSH_POP, START_END):
                rows.append((start, end, thread))
                names.append(self.columns.names[label])
                tracks.append(self.columns.tracks["thread" if kind == PUSH_POP else "free", thread])
        if rows:
            category = self.columns.categories["user_annotation"]
            table = np.array([(*row, -1) for row in rows], dtype=np.int64)
            self._add(table, names, [category] * len(rows), tracks, 2, 3)
        if unfinished:
            self.columns.lost += unfinished
            self.columns.notes.append(f"{unfinished} NVTX range(s) had no end")

    def _named_tracks(self) -> tuple[Track, ...]:
        processes: dict[int, str] = {}
        name, columns = self._tables.get("PROCESSES", ("", set()))
        if {"globalPid", "name"} <= columns:
            query = f'SELECT CAST(globalPid AS INTEGER), substr(CAST(name AS TEXT), 1, 200) FROM "{name}" LIMIT 10000'
            processes = {row[0] >> 24 & 0xFFFFFF: text_of(row[1]) for row in self._database.execute(query) if row[0]}
        threads: dict[int, str] = {}
        if "ThreadNames" in self._tables:
            strings = self._strings("ThreadNames", "nameId")
            for batch in self._rows("ThreadNames", ("globalTid", "nameId")):
                threads.update((thread, strings[text]) for thread, text in batch if text in strings)
        return tuple(_track(key, processes, threads) for key in self.columns.tracks.distinct)


def _track(key: object, processes: dict[int, str], threads: dict[int, str]) -> Track:
    """Global ids hold process and thread id in their lowest 2 x 24 bits."""
    if not isinstance(key, tuple):
        return Track("", str(key), -1, -1)
    kind, number, *device = key
    pid = number >> 24 & 0xFFFFFF
    process = processes.get(pid, str(pid))
    if kind == "device":
        return Track(f"{process} GPU {device[0]}", f"stream {device[1]}", pid, device[1], "device")
    tid = number & 0xFFFFFF
    name = threads.get(number, str(tid))
    return Track(process, name if kind == "thread" else f"{name} (free ranges)", pid, tid)
