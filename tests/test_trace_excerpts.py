"""Pieces of real traces, one trap each; skipped where they are not at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling.analysis.attribution import attribute, cautions_of, integrity
from profiling.analysis.explanation import Explanation, explain
from profiling.trace import load, steps
from profiling.trace.summary import file_numbers, window_numbers

EXCERPTS = Path(__file__).resolve().parents[2] / "shared" / "traces" / "excerpts"
pytestmark = pytest.mark.skipif(not EXCERPTS.is_dir(), reason="the excerpts are not at hand")


def explained(name: str) -> Explanation:
    return explain(EXCERPTS / f"{name}.json")


def test_absolute_microseconds_keep_their_nanoseconds() -> None:
    events = load(EXCERPTS / "absolute_us_with_ns_decimals.json").events
    assert events["ts_ns"].tolist() == [1712195495505582988, 1712195495505772650, 1712195495507888958]
    assert events["dur_ns"].tolist() == [4928, 2752, 2080]


def test_a_sync_that_returns_before_the_kernel_ends() -> None:
    explanation = explained("clock_skew_sync_returns_before_kernel_end")
    assert any("clocks disagree by at least 8.1 us" in w for w in explanation.warnings)


def test_args_stream_does_not_mean_device() -> None:
    explanation = explained("cpu_op_with_stream_arg")
    assert len(explanation.trace.device_events) == 3
    assert (explanation.trace.device_events["kind"] == "kernel").all()


def test_cuda_sync_rows_are_not_busy() -> None:
    trace = load(EXCERPTS / "cuda_sync_on_gpu_rows.json")
    assert file_numbers(trace)["devices"]["0"]["busy_us"] == 51


def test_a_gap_in_which_issued_work_did_not_start() -> None:
    explanation = explained("gap_after_issue_hidden_sync")
    parts = explanation.attribution.parts_us(0, "9")
    assert parts["gap_after_call"] > 463_000
    assert explanation.reading.label == "cannot tell"
    assert any("missing in the trace" in p for p in explanation.reading.problems)
    assert any("copies to the host block" in w for w in explanation.warnings)
    assert explanation.attribution.counts["syncs"].tolist() == [1]


def test_device_work_behind_the_host_window_belongs_to_its_step() -> None:
    trace = load(EXCERPTS / "gpu_work_entirely_after_cpu_window.json")
    numbers = window_numbers(trace, steps(trace).table)[0]["devices"]["2"]
    assert numbers["kernels"] == 4
    assert numbers["clipped"]["kernels_started"] == 0


def test_a_graphs_kernels_share_one_id_and_overlap() -> None:
    trace = load(EXCERPTS / "graph_shared_correlation_and_pdl_overlap.json")
    numbers = file_numbers(trace)
    assert numbers["gpu_events_from_graph"] == 8
    assert numbers["graph_launch_calls"] == 1
    device = numbers["devices"]["0"]
    assert device["busy_us"] < device["sum_dur_us"]
    assert device["same_stream_overlaps"] > 0


def test_launches_under_capture_are_not_lost() -> None:
    trace = load(EXCERPTS / "launches_under_graph_capture.json")
    marks = steps(trace)
    attribution = attribute(trace, marks)
    assert integrity(trace, marks, attribution) == []
    assert any("4 launches went into a graph" in note for note in cautions_of(trace, marks, attribution))


def test_overhead_and_nested_windows() -> None:
    explanation = explained("overhead_and_nested_windows")
    assert len(explanation.steps) == 1
    assert len(explanation.trace.device_events) == 0
    assert any("profiler itself took 582.7 us" in w for w in explanation.warnings)


def test_the_schema_of_2020_as_a_list_with_empty_kernels() -> None:
    trace = load(EXCERPTS / "toplevel_list_old_schema_zero_dur.json")
    assert steps(trace).table["name"].tolist() == ["ProfilerStep#5", "ProfilerStep#6"]
    work = trace.device_events
    assert work["kind"].tolist() == ["kernel", "kernel"]
    assert (work["call"] >= 0).all()
    assert work["stream"].tolist() == ["7", "7"]
    assert file_numbers(trace)["devices"]["0"]["busy_us"] == 0


def test_xpu_names() -> None:
    numbers = file_numbers(load(EXCERPTS / "xpu_events_from_a_public_document.json"))
    assert numbers["launch_calls"] == 1
    assert numbers["gpu_events_without_call"] == 0
    assert numbers["devices"]["0"]["busy_us"] == 8.96
