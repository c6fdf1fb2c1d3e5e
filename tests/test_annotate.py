"""The annotated trace: the same trace with rows that sum to what the analysis found."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.analysis import annotate
from profiling.analysis.attribution import attribute, cpu
from profiling.trace import load, steps
from tests.synthetic_trace import Synthetic, eager, on_host, replayed


@pytest.mark.parametrize("make", [on_host, eager, replayed])
@pytest.mark.parametrize("numbers", ["float", "text"])
def test_annotated_trace_is_the_same_trace_with_more_rows(make, numbers: str, tmp_path: Path) -> None:
    path = make(numbers=numbers).write(tmp_path / "t.json.gz")
    more = tmp_path / "more.json"
    more.write_bytes(annotate.annotated(path))
    before, after = load(path), load(more)
    assert not after.warnings and not after.skipped
    added = after.events["cat"] == annotate.CATEGORY
    unmarked = after.events[~added]
    assert before.events["ts_ns"].to_list() == unmarked["ts_ns"].to_list()
    first, second = (attribute(trace, steps(trace)) for trace in (before, after))
    assert first.parts.equals(second.parts) and first.counts.equals(second.counts)
    table = steps(before).table
    rows = after.events[added]
    marks = rows[rows["name"].astype(str).str.startswith("step ")]
    assert (marks["ts_ns"].to_numpy() == table["start_ns"].to_numpy()).all()


@pytest.mark.parametrize("make", [eager, replayed])
def test_gap_row_sums_to_the_parts(make, tmp_path: Path) -> None:
    trace = load(make().write(tmp_path / "t.json"))
    sums: dict[str, int] = {}
    for start, end, name, _ in annotate.trace_rows(trace)[annotate.GAP_ROW]:
        sums[name] = sums.get(name, 0) + end - start
    parts = attribute(trace, steps(trace)).parts.groupby("part")["ns"].sum()
    for part in parts.index.drop("busy"):
        assert sums.get(annotate.LABELS[part.removeprefix("gap_")], 0) == parts[part], part


spans = st.tuples(
    st.integers(0, 400), st.integers(0, 120), st.sampled_from(["aten::mm", "aten::t", "aten::linear"])
)


@settings(max_examples=60)
@given(ops=st.lists(spans, max_size=12))
def test_host_row_is_a_partition_and_sums_to_the_parts(ops, tmp_path_factory) -> None:
    synthetic = Synthetic()
    for start, length, name in ops:
        synthetic.op(name, 1_000_000 + 1_000 * start, 1_000_000 + 1_000 * (start + length))
    synthetic.step(1_100_000, 1_300_000, "ProfilerStep#0")
    trace = load(synthetic.write(tmp_path_factory.mktemp("t") / "t.json"))
    (window,) = steps(trace).windows()
    row = list(annotate.host_parts(trace, *window))
    assert row[0][0] == window[0] and row[-1][1] == window[1]
    assert all(a[1] == b[0] and a[2] != b[2] and a[0] < a[1] for a, b in pairwise(row))
    parts = attribute(trace, steps(trace)).parts_us(0, "cpu")
    for part in cpu.PARTS:
        total = sum(end - start for start, end, name, _ in row if name == annotate.HOST_LABELS[part])
        assert total / 1000 == parts[part], part


@pytest.mark.parametrize(
    "events", ["[]", "[ ]", '[{"ph":"X","name":"a","cat":"cpu_op","pid":9000000,"tid":1,"ts":1,"dur":2}]']
)
def test_annotated_text_stays_json(events: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(f'{{"schemaVersion": 1, "traceEvents": {events}, "x": 1}}')
    content = json.loads(annotate.annotated(path))
    processes = {
        e["pid"] for e in content["traceEvents"] if e.get("args", {}).get("name") == annotate.PROCESS
    }
    assert content["x"] == 1 and len(processes) == 1
    assert processes.isdisjoint({e["pid"] for e in json.loads(path.read_text())["traceEvents"]})
