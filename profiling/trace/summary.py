"""Counts and times of a whole trace and of windows in it, under the names that the reference values use.

Times in us with every nanosecond kept. Device "busy" is the union of its events' intervals, all streams
together; "idle" is the rest of the span from its first event to its last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from profiling.trace.devices import SPLIT, Int, by_device, covered_ns, gaps_of, union_ns
from profiling.trace.file import Trace
from profiling.trace.names import LAUNCH_KINDS

Numbers = dict[str, Any]  # as `--json` prints them


def us(ns: int | float | np.integer[Any] | np.floating[Any]) -> float:
    """Microseconds of a number of nanoseconds."""
    return float(ns) / 1000


def file_numbers(trace: Trace) -> Numbers:
    """Everything that is counted over the whole file."""
    work, calls = trace.device_events, trace.calls
    kinds = {kind: calls[calls["kind"] == kind] for kind in (*LAUNCH_KINDS, "sync")}
    named = calls[calls["kind"].isin(kinds)]
    launches = pd.concat([kinds["kernel"], kinds["graph"]])
    return {
        "events_total": trace.events_total,
        "gpu_events": len(work),
        "skipped": trace.skipped,
        "kernels": int((work["kind"] == "kernel").sum()),
        "memcpys": int((work["kind"] == "memcpy").sum()),
        "memsets": int((work["kind"] == "memset").sum()),
        "calls": {kind: len(rows) for kind, rows in kinds.items()},
        "calls_by_name": named["name"].astype(object).value_counts().sort_index().to_dict(),
        "launch_calls": len(launches),
        "graph_launch_calls": len(kinds["graph"]),
        "sync_us": us(_durations(kinds["sync"]).sum()),
        "launch_call_cpu_us": {
            "total": us(_durations(launches).sum()),
            "median_kernel": _median_us(_durations(kinds["kernel"])),
            "median_graph": _median_us(_durations(kinds["graph"])),
        },
        "correlations_with_several_calls": _several(calls),
        "gpu_events_without_call": int((work["call"] < 0).sum()),
        "gpu_events_from_graph": int((work["call_kind"] == "graph").sum()),
        "calls_without_gpu_event": {kind: int((kinds[kind]["works"] == 0).sum()) for kind in LAUNCH_KINDS},
        **_delays(work),
        "devices": {device: device_numbers(part) for device, part in by_device(work).items()},
    }


def _several(calls: pd.DataFrame) -> int:
    """Correlation ids that more than one launch call carries."""
    ids = calls.loc[calls["kind"].isin(LAUNCH_KINDS) & (calls["correlation"] >= 0), "correlation"]
    return int((ids.value_counts() > 1).sum())


def _durations(rows: pd.DataFrame) -> pd.Series[int]:
    return rows["end_ns"] - rows["start_ns"]


def _median_us(ns: pd.Series[int]) -> float | None:
    return us(ns.median()) if len(ns) else None


def _spread(ns: pd.Series[int]) -> Numbers | None:
    if not len(ns):
        return None
    return {
        "n": len(ns),
        "min": us(ns.min()),
        "median": us(ns.median()),
        "max": us(ns.max()),
        "negative": int((ns < 0).sum()),
    }


def _delays(work: pd.DataFrame) -> Numbers:
    """From a launch call to its device event; of a graph launch, to the first of its events."""
    eager = work[(work["call"] >= 0) & (work["call_kind"] != "graph")]
    kernels = eager[eager["kind"] == "kernel"]
    graph = work[work["call_kind"] == "graph"].drop_duplicates("call")
    return {
        "delay_start_to_start_us_eager": _spread(eager["start_ns"] - eager["call_start_ns"]),
        "delay_kernels_only_us": _spread(kernels["start_ns"] - kernels["call_start_ns"]),
        "delay_call_end_to_start_us_eager": _spread(eager["start_ns"] - eager["call_end_ns"]),
        "delay_graph_first_event_us": _spread(graph["start_ns"] - graph["call_start_ns"]),
    }


def device_numbers(work: pd.DataFrame) -> Numbers:
    """One device over its span; `work` holds its events by start, at least one."""
    start, end = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    kernels = work[work["kind"] == "kernel"]
    gaps = gaps_of(work)
    span, busy = int(end.max() - start[0]), union_ns(start, end)
    return {
        "first_gpu_start_us": us(start[0]),
        "span_us": us(span),
        "busy_us": us(busy),
        "idle_us": us(span - busy),
        "busy_pct": round(100 * busy / span, 2) if span else None,
        "kernel_only_busy_us": us(union_ns(kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy())),
        "sum_dur_us": us(_durations(work).sum()),
        "sum_kernel_dur_us": us(_durations(kernels).sum()),
        "n_gaps": len(gaps),
        "longest_gap_us": us((gaps["end_ns"] - gaps["start_ns"]).max()) if len(gaps) else 0.0,
        "median_kernel_us": _median_us(_durations(kernels)),
        "streams": {str(s): n for s, n in work["stream"].astype(object).value_counts().to_dict().items()},
        "idle_split_us": {part: us(gaps[part].sum()) for part in SPLIT},
        "same_stream_overlaps": _same_stream_overlaps(work),
    }


def _same_stream_overlaps(work: pd.DataFrame) -> int:
    """Events that start before the one ahead of them in their stream has ended (programmatic dependent
    launch).
    """
    count = 0
    for _, stream in work.groupby("stream", observed=True):
        count += int((stream["start_ns"].to_numpy()[1:] < stream["end_ns"].to_numpy()[:-1]).sum())
    return count


def window_numbers(trace: Trace, windows: pd.DataFrame) -> list[Numbers]:
    """Per host window (`name`, `start_ns`, `end_ns`, `tid`): calls that start in it, and per device the
    work they started.

    `clipped` is what lies inside the window on the clock, whoever started it: for a host that runs ahead of
    its device it is another step's work.
    """
    calls = trace.calls
    start, end = (windows[key].to_numpy(np.int64) for key in ("start_ns", "end_ns"))
    kinds = {kind: calls[calls["kind"] == kind] for kind in (*LAUNCH_KINDS, "sync")}
    columns: dict[str, list[Any]] = {
        "name": windows["name"].tolist(),
        "tid": windows["tid"].tolist(),
        "start_us": (start / 1000).tolist(),
        "wall_us": ((end - start) / 1000).tolist(),
        "start_to_next_start_us": [*(np.diff(start) / 1000).tolist(), None][: len(start)],
    }
    for kind, rows in kinds.items():
        key = f"{kind}_launch_calls" if kind in ("kernel", "graph") else f"{kind}_calls"
        columns[key] = _counts_in(rows["start_ns"].to_numpy(), start, end).tolist()
    syncs = kinds["sync"]
    waited = _counts_in(syncs["start_ns"].to_numpy(), start, end, np.asarray(_durations(syncs), np.int64))
    columns["sync_us"] = (waited / 1000).tolist()
    devices = {of: _device_windows(work, start, end) for of, work in by_device(trace.device_events).items()}
    columns["devices"] = [{of: rows[i] for of, rows in devices.items()} for i in range(len(start))]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _counts_in(times: Int, start: Int, end: Int, weights: Int | None = None) -> Int:
    """Per window [start, end) how many of `times`, which ascend, lie in it, or the sum of their weights."""
    ones = np.ones(len(times), np.int64) if weights is None else weights
    summed = np.concatenate([[0], np.cumsum(ones)])
    return np.asarray(summed[np.searchsorted(times, end)] - summed[np.searchsorted(times, start)], np.int64)


def _device_windows(work: pd.DataFrame, start: Int, end: Int) -> list[Numbers]:
    """Per window what was launched in it on one device, and what ran in it; `work`: its events by start."""
    begins, ends, called = (work[key].to_numpy() for key in ("start_ns", "end_ns", "call_start_ns"))
    is_kernel = (work["kind"] == "kernel").to_numpy().astype(np.int64)
    by_call = np.argsort(called, kind="stable")
    called = called[by_call]
    clipped = covered_ns(start, end, work)
    columns: dict[str, Int] = {
        "first": np.searchsorted(called, start),
        "last": np.searchsorted(called, end),
        "kernels": _counts_in(called, start, end, is_kernel[by_call]),
        "clipped": clipped,
        "idle": end - start - clipped,
        "kernels_started": _counts_in(begins, start, end, is_kernel),
    }
    rows = []
    for window_start, window_end, *values in zip(
        start.tolist(), end.tolist(), *(column.tolist() for column in columns.values()), strict=True
    ):
        first, last, kernels, busy, idle, kernels_started = values
        numbers: Numbers = {
            "gpu_events": max(last - first, 0),
            "kernels": kernels,
            "busy_us": 0.0,
            "gpu_span_us": None,
            "clipped": {"busy_us": us(busy), "idle_us": us(idle), "kernels_started": kernels_started},
        }
        launched = np.sort(by_call[first:last])
        rows.append(
            numbers | _span_numbers(begins[launched], ends[launched], window_start, window_end)
            if len(launched)
            else numbers
        )
    return rows


def _span_numbers(begins: Int, ends: Int, start: int, end: int) -> Numbers:
    reach = np.maximum.accumulate(ends)
    waits = np.maximum(begins[1:] - reach[:-1], 0)
    span, idle = int(reach[-1] - begins[0]), int(waits.sum())
    return {
        "busy_us": us(span - idle),
        "gpu_span_us": us(span),
        "idle_in_gpu_span_us": us(idle),
        "first_gpu_start_rel_us": us(begins[0] - start),
        "last_gpu_end_rel_to_step_end_us": us(reach[-1] - end),
        "longest_gap_us": us(waits.max(initial=0)),
    }
