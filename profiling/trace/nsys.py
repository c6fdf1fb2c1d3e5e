"""Events of an SQLite export of Nsight Systems (`nsys export --type sqlite`), in the words of Kineto's.

Source of tables and columns: "SQLite Schema Reference" in the User Guide of Nsight Systems. Tables are made
where they have rows, and columns come with releases, so both are looked up. Of a `globalTid` the lowest 24
bits are the thread's id and the next 24 the process's, as in a `globalPid`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
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
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}
"""`CUpti_ActivityMemcpyKind`, and those of unified memory."""
_COPY = " ".join(f"WHEN {kind} THEN 'Memcpy {name}'" for kind, name in _COPY_KINDS.items())
_ROWS = 10_000
"""Read at once."""


def _strings(*columns: str) -> str:
    """The first of some columns of string ids that has a string."""
    strings = (f"(SELECT value FROM {_STRINGS} WHERE id = {{{column}}})" for column in columns)
    return f"coalesce({', '.join(strings)}, NULL)"


@dataclass(frozen=True)
class _Table:
    """What is read of a table: the category of its events, and SQL of their other columns and its rows.

    A `{column}` that the export does not have is NULL.
    """

    category: str
    name: str
    owner: str = "globalPid"
    row: str = "{streamId}"
    args: str = "{correlationId}, {deviceId}, {streamId}, {graphId}"
    asked: str = "TRUE"


_ON_THREAD = ("globalTid", "{globalTid} & 0xFFFFFF")
_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": _Table("kernel", _strings("demangledName", "shortName")),
    "CUPTI_ACTIVITY_KIND_MEMCPY": _Table("gpu_memcpy", f"CASE {{copyKind}} {_COPY} ELSE 'Memcpy' END"),
    "CUPTI_ACTIVITY_KIND_MEMSET": _Table("gpu_memset", "'Memset'"),
    _GRAPHS: _Table("kernel", f"'{_GRAPH}'"),
    _RUNTIME: _Table("cuda_runtime", _strings("nameId"), *_ON_THREAD, "{correlationId}, NULL, NULL, NULL"),
    "NVTX_EVENTS": _Table(
        "user_annotation",
        f"coalesce({{text}}, {_strings('textId')})",
        *_ON_THREAD,
        "NULL, NULL, NULL, NULL",
        "{end} IS NOT NULL",  # without an end it is a moment
    ),
    "PROFILER_OVERHEAD": _Table("overhead", _strings("nameId"), *_ON_THREAD, "NULL, NULL, NULL, NULL"),
}


def is_database(path: Path) -> bool:
    """Whether a file is an SQLite database, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:  # whoever reads it as text says what is wrong
        return False


def read(path: Path) -> tuple[Source, Iterator[list[Event]]]:
    """The export as a text that has been read whole, and lists of its events, which raise UserError where the
    file is damaged or another database.
    """
    source = Source(path, iter(()), head=b"[", tail=b"")
    return source, _events(source)


def _events(source: Source) -> Iterator[list[Event]]:
    try:
        with closing(_open(source.path)) as database:
            columns = _columns(database)
            if not {_RUNTIME, _STRINGS} <= columns.keys():
                raise _refusal(source.path, columns.keys())
            if _GRAPHS in columns:
                source.warn(_GRAPH_NOTE)
            for name, table in _TABLES.items():
                if name in columns:
                    yield from _rows(database, source, name, table, columns[name])
    except sqlite3.Error as error:
        said = f"the SQLite database cannot be read ({error}); export it again"
        raise UserError(f"{source.path}: {said}") from error


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda text: text.decode("utf-8", "replace")
    return database


class _Columns(dict[str, str]):
    """Column -> its name in SQL, NULL for one that is not there."""

    def __missing__(self, column: str) -> str:
        return "NULL"


def _columns(database: sqlite3.Connection) -> dict[str, _Columns]:
    """Table -> its columns."""
    every = "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"
    out: dict[str, _Columns] = {}
    for table, column in database.execute(every):
        out.setdefault(table, _Columns())[column] = f'"{column}"'
    return out


def _refusal(path: Path, tables: Iterable[str]) -> UserError:
    """What another database is, with the command that makes something readable of it."""
    if any(table.startswith("rocpd_") for table in tables):
        what = f"a database of rocprofv3; convert it first: rocpd convert -i {path} --output-format pftrace"
    elif _STRINGS in tables:
        what = "an export of nsys without CUDA calls; record again: nsys profile --trace=cuda,nvtx COMMAND"
    else:
        what = "no export of nsys; make one: nsys export --type sqlite --output trace.sqlite REPORT.nsys-rep"
    return UserError(f"{path}: an SQLite database, {what}")


def _rows(
    database: sqlite3.Connection, source: Source, name: str, table: _Table, columns: _Columns
) -> Iterator[list[Event]]:
    """The events of one table; rows that are not whole are counted."""
    owner = columns[table.owner]
    whole = " AND ".join(f"typeof({part}) = 'integer'" for part in (columns["start"], columns["end"], owner))
    asked = table.asked.format_map(columns)
    broken = f"SELECT count(*) FROM {name} WHERE {asked} AND NOT ({whole})"
    source.skip(f"row of {name} without a time or a process", database.execute(broken).fetchone()[0])
    event = f"coalesce({table.name}, 'nameless'), {owner} >> 24 & 0xFFFFFF, {table.row}, {{start}}, {{end}}"
    wanted = f"{event}, {table.args}"
    rows = database.execute(f"SELECT {wanted.format_map(columns)} FROM {name} WHERE {asked} AND {whole}")
    while some := rows.fetchmany(_ROWS):
        yield [_event(table.category, *row) for row in some]


def _event(category: str, name: Any, process: int, row: Any, start: int, end: int, *args: Any) -> Event:
    """An event, times in ns, as merged profiles write it: what tells processes apart stands ahead of a
    number, see `ranks`."""
    correlation, device, stream, graph = args
    pid = f"process {process}: {process if device is None else device}"
    of_work = {"correlation": correlation, "device": device, "stream": stream, "graph id": graph}
    raw = msgspec.Raw(msgspec.json.encode(of_work))
    return Event("X", category, name, pid, row, start / 1000, (end - start) / 1000, raw)
