"""An SQLite export of Nsight Systems says what a Kineto trace of the same events says."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from profiling.analysis.explain import explain, explain_ranks
from profiling.trace import load
from profiling.trace.redact import redact
from tests.synthetic_trace import HOST_PID, HOST_TID, Synthetic, eager, replayed
from variants.errors import UserError

DEVICE_COLUMNS = "start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT"
KERNELS, GRAPHS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
NOT_WHOLE = {f"row of {KERNELS} without a time or a process": 1}
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS {KERNELS} ({DEVICE_COLUMNS}, demangledName INT);
CREATE TABLE IF NOT EXISTS CUPTI_ACTIVITY_KIND_MEMCPY ({DEVICE_COLUMNS}, copyKind INT);
CREATE TABLE IF NOT EXISTS CUPTI_ACTIVITY_KIND_RUNTIME
    (start INT, end INT, globalTid INT, correlationId INT, nameId INT);
CREATE TABLE IF NOT EXISTS NVTX_EVENTS (start INT, end INT, globalTid INT, text TEXT, textId INT);
"""


def export(made: Synthetic, path: Path, graphs: bool = False, process: int = HOST_PID) -> Path:
    """The tables of an export with the events of a synthetic trace, behind those of other processes that are
    there; with `graphs` one row per graph.
    """
    thread = process << 24 | HOST_TID
    with closing(sqlite3.connect(path)) as out:
        out.executescript(SCHEMA)
        names = {name: at for at, name in out.execute("SELECT id, value FROM StringIds")}
        if graphs:
            out.execute(f"CREATE TABLE {GRAPHS} ({DEVICE_COLUMNS}, graphId INT)")
        for event in made.events:
            start = round(event["ts"] * 1000)
            end, args = start + round(event["dur"] * 1000), event.get("args", {})
            name = names.setdefault(event["name"], len(names))
            if event["cat"] == "kernel":
                place = (args["device"], args["stream"], args["correlation"], process << 24)
                table = GRAPHS if graphs else KERNELS
                out.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?)", (start, end, *place, name))
            elif event["cat"] == "cuda_runtime":
                row = (start, end, thread, args["correlation"], name)
                out.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", row)
            elif event["cat"] == "user_annotation":
                row = (start, end, thread, event["name"], None)
                out.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)", row)
        out.executemany("INSERT OR IGNORE INTO StringIds VALUES (?, ?)", [(i, n) for n, i in names.items()])
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


def test_processes_are_ranks(tmp_path) -> None:
    launch, device = eager(), eager(kernels=30, kernel_ns=90_000, host_ns=5_000)
    path = export(device, export(launch, tmp_path / "t.sqlite"), process=77)
    found = {rank.rank: rank.reading.label for rank in explain_ranks(path)}
    assert found == {f"process {HOST_PID}": "launch-bound", "process 77": "device-bound"}


@pytest.mark.parametrize(
    ("change", "skipped"),
    [
        (f"UPDATE {KERNELS} SET start = 'soon' WHERE rowid = 5", NOT_WHOLE),
        (f"UPDATE {KERNELS} SET end = NULL WHERE rowid = 5", NOT_WHOLE),
        (f"UPDATE {KERNELS} SET globalPid = NULL WHERE rowid = 5", NOT_WHOLE),
        (f"UPDATE {KERNELS} SET end = start - 1 WHERE rowid = 5", {"event without a usable dur": 1}),
        ("UPDATE StringIds SET value = CAST(x'ff41' AS TEXT) WHERE id = 1", {}),
        ("DELETE FROM StringIds", {}),
        ("UPDATE NVTX_EVENTS SET end = NULL", {}),
        (f"UPDATE {KERNELS} SET correlationId = 'x', streamId = NULL WHERE rowid = 5", {}),
    ],
)
def test_rows_that_are_not_whole_are_counted(tmp_path, change, skipped) -> None:
    path = export(eager(), tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as out:
        assert out.execute(change).rowcount
        out.commit()
    trace = load(path)
    assert trace.skipped == skipped
    assert len(trace.device_events) + len(trace.impossible) == 40 - bool(skipped)


def test_an_export_is_not_redacted(tmp_path) -> None:
    path = export(eager(), tmp_path / "t.sqlite")
    with pytest.raises(UserError, match="only JSON is redacted"):
        redact(path, tmp_path / "shared.json")
    assert not (tmp_path / "shared.json").exists()


@pytest.mark.parametrize("cut", [20, 2_000, 4_097, 9_000])
def test_a_cut_export_is_one_line(tmp_path, cut) -> None:
    path = export(eager(steps=60), tmp_path / "t.sqlite")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match="SQLite database"):
        load(path)


@pytest.mark.parametrize("tables", ["", "CREATE TABLE rocpd_string (id INT)"])
def test_other_databases_are_told_apart(tmp_path, tables) -> None:
    with closing(sqlite3.connect(tmp_path / "t.db")) as out:
        out.executescript(f"CREATE TABLE a (b INT); {tables}")
    with pytest.raises(UserError, match="SQLite database"):
        load(tmp_path / "t.db")
