"""Events of an SQLite export of Nsight Systems (`nsys export --type sqlite`), in the words of Kineto's.

Source of tables and columns: "SQLite Schema Reference" in the User Guide of Nsight Systems. Of a `globalTid`
the lowest 24 bits are the thread's id and the next 24 the process's, as in a `globalPid`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from profiling.trace.columns import Event
from profiling.trace.source import Source
from variants.errors import UserError

_MAGIC = b"SQLite format 3\0"
_RUNTIME, _STRINGS = "CUPTI_ACTIVITY_KIND_RUNTIME", "StringIds"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_GRAPH = "graph whose nodes are not in the trace"
_GRAPH_NOTE = "graphs are one row each: record with `nsys profile --cuda-graph-trace=node` to see their nodes"
_ROWS = 10_000
"""Read at once."""


def _string(column: str) -> str:
    return f"(SELECT value FROM {_STRINGS} WHERE id = {column})"


@dataclass(frozen=True)
class _Table:
    """What is read of a table: the category of its events, and SQL of their other columns and its rows."""

    category: str
    name: str
    owner: str = "globalPid"
    row: str = "streamId"
    args: str = "correlationId, deviceId, streamId"
    asked: str = "TRUE"


_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": _Table("kernel", _string("demangledName")),
    "CUPTI_ACTIVITY_KIND_MEMCPY": _Table(
        "gpu_memcpy", "CASE copyKind WHEN 1 THEN 'Memcpy HtoD' WHEN 2 THEN 'Memcpy DtoH' ELSE 'Memcpy' END"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": _Table("gpu_memset", "'Memset'"),
    _GRAPHS: _Table("kernel", f"'{_GRAPH}'"),
    _RUNTIME: _Table(
        "cuda_runtime", _string("nameId"), "globalTid", "globalTid & 0xFFFFFF", "correlationId, NULL, NULL"
    ),
    "NVTX_EVENTS": _Table(
        "user_annotation",
        f"coalesce(text, {_string('textId')})",
        "globalTid",
        "globalTid & 0xFFFFFF",
        "NULL, NULL, NULL",
        "end IS NOT NULL",  # without an end it is a moment
    ),
}


def is_export(path: Path) -> bool:
    """Whether a file is such an export, by its first bytes and its tables."""
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return False
        with closing(_open(path)) as opened:
            return {_RUNTIME, _STRINGS} <= _tables(opened)
    except (OSError, sqlite3.Error):  # whoever reads it as text says what is wrong
        return False


def read(path: Path) -> tuple[Source, Iterator[list[Event]]]:
    """The export as a text that has been read whole, and lists of its events, which raise UserError where the
    file is damaged.
    """
    source = Source(path, iter(()), head=b"[", tail=b"")
    return source, _events(source)


def _events(source: Source) -> Iterator[list[Event]]:
    try:
        with closing(_open(source.path)) as opened:
            there = _tables(opened)
            if _GRAPHS in there:
                source.warn(_GRAPH_NOTE)
            for name, table in _TABLES.items():
                if name in there:
                    yield from _rows(opened, source, name, table)
    except sqlite3.Error as error:
        said = f"the SQLite database cannot be read ({error}); export it again"
        raise UserError(f"{source.path}: {said}") from error


def _open(path: Path) -> sqlite3.Connection:
    opened = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    opened.text_factory = lambda text: text.decode("utf-8", "replace")
    return opened


def _tables(opened: sqlite3.Connection) -> set[str]:
    return {name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _rows(opened: sqlite3.Connection, source: Source, name: str, table: _Table) -> Iterator[list[Event]]:
    """The events of one table; rows that are not whole are counted."""
    whole = " AND ".join(f"typeof({column}) = 'integer'" for column in ("start", "end", table.owner))
    broken = f"SELECT count(*) FROM {name} WHERE {table.asked} AND NOT ({whole})"
    source.skip(f"row of {name} without a time or a process", opened.execute(broken).fetchone()[0])
    process = f"{table.owner} >> 24 & 0xFFFFFF"
    columns = f"coalesce({table.name}, 'nameless'), {process}, {table.row}, start, end, {table.args}"
    found = opened.execute(f"SELECT {columns} FROM {name} WHERE {table.asked} AND {whole}")
    while rows := found.fetchmany(_ROWS):
        yield [_event(table.category, *row) for row in rows]


def _event(category: str, name: Any, process: int, row: Any, start: int, end: int, *args: Any) -> Event:
    """As merged profiles write it: what tells processes apart stands ahead of a number, see `ranks`."""
    correlation, device, stream = args
    pid = f"process {process}: {process if device is None else device}"
    raw = msgspec.Raw(msgspec.json.encode({"correlation": correlation, "device": device, "stream": stream}))
    return Event("X", category, name, pid, row, start / 1000, (end - start) / 1000, raw)
