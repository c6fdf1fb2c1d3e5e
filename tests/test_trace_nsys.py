"""An SQLite export of Nsight Systems, of any year, says what a Kineto trace of the same events says."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.analysis.annotate import annotated
from profiling.analysis.explanation import explain, explain_ranks
from profiling.trace import load
from profiling.trace.redaction import redact
from tests.synthetic_trace import HOST_PID, HOST_TID, Synthetic, eager, replayed
from variants.errors import UserError

KERNELS, GRAPHS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES, FILLS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS, RANGES, OVERHEAD = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "PROFILER_OVERHEAD"
TABLES = {"kernel": KERNELS, "gpu_memcpy": COPIES, "gpu_memset": FILLS, "cuda_runtime": CALLS}
TABLES |= {"user_annotation": RANGES, "overhead": OVERHEAD}
WORK = "start end deviceId contextId streamId correlationId globalPid"
SCHEMAS = {
    2021: {
        KERNELS: f"{WORK} shortName demangledName gridX",
        COPIES: f"{WORK} bytes copyKind",
        FILLS: f"{WORK} value bytes",
        CALLS: "start end eventClass globalTid correlationId nameId returnValue",
        RANGES: "start end eventType globalTid text",
    },
    2023: {
        KERNELS: f"graphNodeId {WORK} demangledName shortName mangledName",
        COPIES: f"{WORK} bytes copyKind srcKind dstKind graphNodeId",
        FILLS: f"{WORK} value bytes graphNodeId memKind",
        GRAPHS: f"{WORK} graphId graphExecId",
        CALLS: "start end eventClass globalTid correlationId nameId returnValue callchainId",
        RANGES: "start end eventType rangeId category text globalTid endGlobalTid textId domainId",
        OVERHEAD: "start end globalTid correlationId nameId returnValue",
    },
    2025: {
        KERNELS: f"shortName mangledName {WORK} greenContextId graphId graphNodeId demangledName",
        COPIES: f"copyKind {WORK} greenContextId bytes graphNodeId",
        FILLS: f"{WORK} greenContextId value bytes graphNodeId",
        GRAPHS: f"{WORK} greenContextId graphId graphExecId",
        CALLS: "globalTid nameId correlationId eventClass start end returnValue callchainId",
        RANGES: "textId jsonTextId globalTid text start end eventType domainId",
        OVERHEAD: "nameId globalTid start end overheadType",
    },
}
"""The columns that each year's release writes, by its documentation and by exports that others publish; their
order means nothing.
"""
COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8}


def export(
    synthetic: Synthetic,
    path: Path,
    graphs: bool = False,
    process: int = HOST_PID,
    year: int = 2023,
    text_ids: bool = False,
) -> Path:
    """The tables of an export with the events of a synthetic trace, behind those of other processes that are
    there; with `graphs` one row per graph, with `text_ids` registered strings as names of ranges.
    """
    with closing(sqlite3.connect(path)) as out:
        out.execute("CREATE TABLE IF NOT EXISTS StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        names = {name: at for at, name in out.execute("SELECT id, value FROM StringIds")}
        for event in synthetic.events:
            if event["cat"] == "cpu_op":  # what PyTorch alone records
                continue
            table = GRAPHS if graphs and event["cat"] == "kernel" else TABLES[event["cat"]]
            columns = SCHEMAS[year][table].split()
            out.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)})")
            row = row_of(event, process, names, text_ids and "textId" in columns)
            values = [row.get(column) for column in columns]
            out.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
        out.executemany("INSERT OR IGNORE INTO StringIds VALUES (?, ?)", [(i, n) for n, i in names.items()])
        out.commit()
    return path


def row_of(event: dict[str, Any], process: int, names: dict[str, int], text_ids: bool) -> dict[str, Any]:
    start = round(event["ts"] * 1000)
    args = event.get("args", {})
    row = {"start": start, "end": start + round(event["dur"] * 1000), "contextId": 1, "graphId": 5}
    row |= {"deviceId": args.get("device"), "streamId": args.get("stream")}
    row |= {"correlationId": args.get("correlation"), "globalPid": process << 24}
    row["globalTid"] = process << 24 | event["tid"] if isinstance(event["tid"], int) else None
    for column in ("demangledName", "nameId"):
        row[column] = names.setdefault(event["name"], len(names))
    row["shortName"] = names.setdefault(event["name"].partition("<")[0], len(names))
    row["copyKind"] = next((n for kind, n in COPY_KINDS.items() if kind in event["name"]), None)
    if text_ids:
        row["textId"] = row["nameId"]
    else:
        row["text"] = event["name"]
    return row


def everything() -> Synthetic:
    """Kernels, copies either way, fills, two threads, ranges, and the profiler's own work."""
    synthetic = Synthetic()
    for number in range(6):
        at = 1_000_000 + 200_000 * number
        synthetic.launch((at + 10_000, at + 14_000), (at + 20_000, at + 50_001), name="gemm<64>", stream=13)
        other = synthetic.call("cudaMemsetAsync", at + 16_000, at + 17_000, tid=HOST_TID + 1)
        synthetic.work(other, at + 51_000, at + 52_000, "Memset", "gpu_memset")
        for kind, late in (("HtoD", 60_000), ("DtoH", 70_000), ("DtoD", 80_000)):
            copy = synthetic.call("cudaMemcpyAsync", at + late, at + late + 3_000)
            synthetic.work(
                copy, at + late + 4_000, at + late + 6_000, f"Memcpy {kind}", "gpu_memcpy", device=1
            )
        synthetic.call("cudaDeviceSynchronize", at + 90_000, at + 99_000)
        synthetic.event("overhead", "CUPTI buffer flush", at + 100_000, at + 110_000, tid=HOST_TID)
        synthetic.step(at, at + 150_000, f"decode {number}")
    return synthetic


def same(one: pd.DataFrame, other: pd.DataFrame, columns: str) -> bool:
    first, second = (frame[columns.split()].astype(str) for frame in (one, other))
    return bool(first.equals(second))


@pytest.mark.parametrize("text_ids", [False, True], ids=["text", "registered"])
@pytest.mark.parametrize("year", SCHEMAS)
@pytest.mark.parametrize("make", [eager, replayed, everything])
def test_it_reads_as_the_trace_of_the_same_events(tmp_path, make, year, text_ids) -> None:
    synthetic = make()
    if OVERHEAD not in SCHEMAS[year]:
        synthetic.events = [event for event in synthetic.events if event["cat"] != "overhead"]
    exported = export(synthetic, tmp_path / "t.sqlite", year=year, text_ids=text_ids)
    ours, theirs = explain(exported), explain(synthetic.write(tmp_path / "t.json"))
    assert (ours.reading.label, ours.reading.rule) == (theirs.reading.label, theirs.reading.rule)
    assert ours.warnings == theirs.warnings
    one, other = ours.trace, theirs.trace
    work = "start_ns end_ns name kind device stream correlation call call_start_ns call_kind"
    assert same(one.device_events, other.device_events, work)
    threads = [trace.calls.assign(thread=pd.factorize(trace.calls["thread"])[0]) for trace in (one, other)]
    assert same(*threads, "start_ns end_ns name kind correlation works thread")
    for category in ("user_annotation", "overhead"):
        marks = (trace.in_categories(frozenset({category})).sort_values("ts_ns") for trace in (one, other))
        assert same(*(rows.reset_index(drop=True) for rows in marks), "ts_ns dur_ns name"), category
    assert same(ours.steps.table, theirs.steps.table, "name start_ns end_ns")


@given(
    steps=st.integers(2, 5),
    kernels=st.integers(1, 30),
    kernel_ns=st.integers(500, 90_000),
    host_ns=st.integers(1_500, 60_000),
    year=st.sampled_from(list(SCHEMAS)),
)
@settings(max_examples=20, deadline=None)
def test_whatever_the_loop_it_reads_the_same(
    tmp_path_factory, steps, kernels, kernel_ns, host_ns, year
) -> None:
    synthetic, folder = eager(steps, kernels, kernel_ns, host_ns), tmp_path_factory.mktemp("t")
    ours = explain(export(synthetic, folder / "t.sqlite", year=year)).reading
    theirs = explain(synthetic.write(folder / "t.json")).reading
    assert (ours.label, ours.shares, ours.mean) == (theirs.label, theirs.shares, theirs.mean)


@pytest.mark.parametrize("year", [2023, 2025])
def test_graphs_without_nodes_are_one_row_each_and_said(tmp_path, year) -> None:
    synthetic = replayed(kernels=1, kernel_ns=60_000)
    explanation = explain(export(synthetic, tmp_path / "t.sqlite", graphs=True, year=year))
    assert len(explanation.trace.device_events) == 4
    assert explanation.trace.device_events["graph"].tolist() == [5] * 4
    assert explanation.reading.label == "device-bound"
    assert any("--cuda-graph-trace=node" in warning for warning in explanation.warnings)


@pytest.mark.parametrize("year", SCHEMAS)
def test_processes_are_ranks(tmp_path, year) -> None:
    launch, device = eager(), eager(kernels=30, kernel_ns=90_000, host_ns=5_000)
    path = export(device, export(launch, tmp_path / "t.sqlite", year=year), process=77, year=year)
    labels = {rank.rank: rank.reading.label for rank in explain_ranks(path)}
    assert labels == {f"process {HOST_PID}": "launch-bound", "process 77": "device-bound"}


NOT_WHOLE = {f"row of {KERNELS} without a time or a process": 1}


@pytest.mark.parametrize(
    ("change", "skipped"),
    [
        (f"UPDATE {KERNELS} SET start = 'soon' WHERE rowid = 5", NOT_WHOLE),
        (f"UPDATE {KERNELS} SET end = NULL WHERE rowid = 5", NOT_WHOLE),
        (f"UPDATE {KERNELS} SET globalPid = NULL WHERE rowid = 5", NOT_WHOLE),
        (f"UPDATE {KERNELS} SET end = start - 1 WHERE rowid = 5", {"event without a usable dur": 1}),
        ("UPDATE StringIds SET value = CAST(x'ff41' AS TEXT) WHERE id = 1", {}),
        ("DELETE FROM StringIds", {}),
        (f"UPDATE {RANGES} SET end = NULL", {}),
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


@pytest.mark.parametrize(
    ("table", "column"),
    [(table, column) for table in (KERNELS, CALLS, RANGES) for column in SCHEMAS[2021][table].split()],
)
def test_a_column_that_is_missing_is_no_fault_of_the_file(tmp_path, table, column) -> None:
    path = export(eager(), tmp_path / "t.sqlite", year=2021)
    with closing(sqlite3.connect(path)) as out:
        rows = out.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        out.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        out.commit()
    trace = load(path)
    counted = sum(trace.skipped.values())
    needed = column in ("start", "globalPid", "globalTid") or (column == "end" and table != RANGES)
    assert counted == rows * needed


@pytest.mark.parametrize("table", [KERNELS, RANGES])
def test_a_table_that_is_missing_is_said_by_what_is_left(tmp_path, table) -> None:
    path = export(eager(), tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as out:
        out.execute(f"DROP TABLE {table}")
        out.commit()
    explanation = explain(path)
    if table == KERNELS:
        assert explanation.reading.label == "no device events" and explanation.prediction is None
        assert "recorded no device activity" in explanation.reading.rule
    else:
        assert explanation.reading.label == "launch-bound" and explanation.steps.source.startswith(
            "repetition"
        )


@pytest.mark.parametrize("use", [lambda path: redact(path, path.with_name("shared.json")), annotated])
def test_an_export_is_neither_redacted_nor_shown(tmp_path, use) -> None:
    path = export(eager(), tmp_path / "t.sqlite")
    with pytest.raises(UserError, match=r"only JSON is redacted|shows JSON"):
        use(path)
    assert [p.name for p in tmp_path.iterdir()] == ["t.sqlite"]


@pytest.mark.parametrize("cut", [20, 2_000, 4_097, 9_000])
def test_a_cut_export_is_one_line(tmp_path, cut) -> None:
    path = export(eager(steps=60), tmp_path / "t.sqlite")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match="SQLite database cannot be read"):
        load(path)


@pytest.mark.parametrize(
    ("tables", "command"),
    [
        (["a"], "nsys export --type sqlite"),
        (["rocpd_string_00001", "rocpd_info_process_00001"], "rocpd convert -i .*t.db"),
        (["StringIds", "NVTX_EVENTS"], "nsys profile --trace=cuda"),
    ],
)
def test_other_databases_are_told_apart_with_their_own_command(tmp_path, tables, command) -> None:
    with closing(sqlite3.connect(tmp_path / "t.db")) as out:
        out.executescript("".join(f"CREATE TABLE {table} (id INT);" for table in tables))
    with pytest.raises(UserError, match=f"SQLite database, .*{command}"):
        load(tmp_path / "t.db")
