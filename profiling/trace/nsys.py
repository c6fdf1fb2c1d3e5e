"""Events of an SQLite export of Nsight Systems (`nsys export --type sqlite`), in the words of Kineto's.

Source of tables and columns: "SQLite Schema Reference" in the User Guide of Nsight Systems. Of a `globalTid`
the lowest 24 bits are the thread's id and the next 24 the process's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from profiling.trace.columns import Event
from profiling.trace.source import Source
from variants.errors import UserError

_MAGIC = b"SQLite format 3\0"
_RUNTIME, _STRINGS = "CUPTI_ACTIVITY_KIND_RUNTIME", "StringIds"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
ROWS = 10_000
GRAPH = "graph whose nodes are not in the trace"
GRAPH_NOTE = "graphs are one row each: record with `nsys profile --cuda-graph-trace=node` to see their nodes"
_DEVICE = "start, end, deviceId, streamId, correlationId"
_DEVICE_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("kernel", "(SELECT value FROM StringIds WHERE id = demangledName)"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "gpu_memcpy",
        "CASE copyKind WHEN 1 THEN 'Memcpy HtoD' WHEN 2 THEN 'Memcpy DtoH' ELSE 'Memcpy' END",
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("gpu_memset", "'Memset'"),
    _GRAPHS: ("kernel", f"'{GRAPH}'"),
}
"""Table -> category and the SQL of the name."""
_HOST_TABLES = {
    _RUNTIME: ("cuda_runtime", "(SELECT value FROM StringIds WHERE id = nameId)", "correlationId"),
    "NVTX_EVENTS": (
        "user_annotation",
        "coalesce(text, (SELECT value FROM StringIds WHERE id = textId))",
        "-1",
    ),
}


def is_export(path: Path) -> bool:
    """Whether a file is such an export, by its first bytes and its tables."""
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return False
        return {_RUNTIME, _STRINGS} <= _tables(path)
    except (OSError, sqlite3.Error):  # whoever reads it as text says what is wrong
        return False


def source(path: Path) -> Source:
    """The export as a text that has been read whole, with what is odd about it."""
    opened = Source(path, iter(()), head=b"[", size=path.stat().st_size, tail=b"")
    if _GRAPHS in _tables(path):
        opened.warn(GRAPH_NOTE)
    return opened


def events(path: Path) -> Iterator[list[Event]]:
    """Lists of complete events; UserError where the file is damaged."""
    try:
        there = _tables(path)
        with closing(_open(path)) as opened:
            for table in _DEVICE_TABLES.keys() & there:
                category, name = _DEVICE_TABLES[table]
                for rows in _rows(opened, f"SELECT {_DEVICE}, {name} FROM {table}"):
                    yield [_device_event(category, *row) for row in rows]
            for table in _HOST_TABLES.keys() & there:
                category, name, correlation = _HOST_TABLES[table]
                query = f"SELECT start, end, globalTid, {correlation}, {name} FROM {table}"
                for rows in _rows(opened, f"{query} WHERE end IS NOT NULL"):
                    yield [_host_event(category, *row) for row in rows]
    except sqlite3.Error as error:
        raise UserError(f"{path}: the SQLite database cannot be read ({error}); export it again") from error


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)


def _tables(path: Path) -> set[str]:
    with closing(_open(path)) as opened:
        return {name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _rows(opened: sqlite3.Connection, query: str) -> Iterator[list[tuple[Any, ...]]]:
    found = opened.execute(query)
    while rows := found.fetchmany(ROWS):
        yield rows


def _device_event(
    category: str, start: int, end: int, device: int, stream: int, correlation: int, name: str
) -> Event:
    args = {"device": device, "stream": stream, "correlation": correlation}
    return _event(category, name, device, stream, start, end, args)


def _host_event(category: str, start: int, end: int, thread: int, correlation: int, name: str) -> Event:
    process = thread >> 24 & 0xFFFFFF
    return _event(category, name, process, thread & 0xFFFFFF, start, end, {"correlation": correlation})


def _event(category: str, name: str, pid: int, tid: int, start: int, end: int, args: dict[str, int]) -> Event:
    raw = msgspec.Raw(msgspec.json.encode(args))
    return Event("X", category, name, pid, tid, start / 1000, (end - start) / 1000, raw)
