"""An SQLite export of Nsight Systems says what a Kineto trace of the same events says."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from profiling.analysis.explain import explain
from profiling.trace import load
from tests.synthetic_trace import HOST_PID, HOST_TID, Synthetic, eager, replayed
from variants.errors import UserError

DEVICE_COLUMNS = "start INT, end INT, deviceId INT, streamId INT, correlationId INT"
SCHEMA = f"""
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({DEVICE_COLUMNS}, demangledName INT, shortName INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({DEVICE_COLUMNS}, copyKind INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT);
CREATE TABLE NVTX_EVENTS (start INT, end INT, globalTid INT, text TEXT, textId INT);
"""


def export(made: Synthetic, path: Path, graphs: bool = False) -> Path:
    """The tables of an export with the events of a synthetic trace; with `graphs` one row per graph."""
    thread = HOST_PID << 24 | HOST_TID
    names: dict[str, int] = {}
    with closing(sqlite3.connect(path)) as out:
        out.executescript(SCHEMA)
        kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
        if graphs:
            kernels = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
            out.execute(f"CREATE TABLE {kernels} ({DEVICE_COLUMNS}, graphId INT, x INT)")
        for event in made.events:
            start = round(event["ts"] * 1000)
            end, args = start + round(event["dur"] * 1000), event.get("args", {})
            name = names.setdefault(event["name"], len(names))
            if event["cat"] == "kernel":
                row = (start, end, args["device"], args["stream"], args["correlation"], name, name)
                out.execute(f"INSERT INTO {kernels} VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            elif event["cat"] == "cuda_runtime":
                row = (start, end, thread, args["correlation"], name)
                out.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", row)
            elif event["cat"] == "user_annotation":
                row = (start, end, thread, event["name"], None)
                out.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)", row)
        out.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, name) for name, i in names.items()])
        out.commit()
    return path


@pytest.mark.parametrize("made", [eager(), replayed(), eager(kernels=30, kernel_ns=90_000, host_ns=5_000)])
def test_it_reads_as_the_trace_of_the_same_events(tmp_path, made) -> None:
    trace, exported = made.write(tmp_path / "t.json"), export(made, tmp_path / "t.sqlite")
    ours, theirs = explain(exported), explain(trace)
    assert (ours.reading.label, ours.reading.rule) == (theirs.reading.label, theirs.reading.rule)
    columns = ["start_ns", "end_ns", "name", "device", "stream", "correlation", "call_start_ns"]
    assert (
        ours.trace.device_events[columns].astype(str).equals(theirs.trace.device_events[columns].astype(str))
    )
    assert ours.steps.table["name"].tolist() == theirs.steps.table["name"].tolist()


def test_graphs_without_nodes_are_one_row_each_and_said(tmp_path) -> None:
    made = replayed(kernels=1, kernel_ns=60_000)
    found = explain(export(made, tmp_path / "t.sqlite", graphs=True))
    assert len(found.trace.device_events) == 4
    assert found.reading.label == "device-bound"
    assert any("--cuda-graph-trace=node" in warning for warning in found.warnings)


def test_a_damaged_export_is_one_line(tmp_path) -> None:
    path = export(eager(steps=60), tmp_path / "t.sqlite")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="SQLite database"):
        load(path)


@pytest.mark.parametrize("tables", ["", "CREATE TABLE rocpd_string (id INT)"])
def test_other_databases_are_told_apart(tmp_path, tables) -> None:
    with closing(sqlite3.connect(tmp_path / "t.db")) as out:
        out.executescript(f"CREATE TABLE a (b INT); {tables}")
    with pytest.raises(UserError, match="SQLite database"):
        load(tmp_path / "t.db")
