"""Counts and times of a whole trace and of windows in it, under the names that the reference values use.

Times in us with every nanosecond kept. Device "busy" is the union of its events' intervals, all streams
together; "idle" is the rest of the span from its first event to its last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiling.trace.devices import SPLIT, by_device, gaps_of, union_ns
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
    work, calls = trace.device_events, trace.calls
    devices = {device: _Work(part) for device, part in by_device(work).items()}
    following = [*windows["start_ns"].tolist()[1:], None][: len(windows)]
    rows = []
    columns = (windows[key].tolist() for key in ("name", "tid", "start_ns", "end_ns"))
    call_starts = calls["start_ns"].to_numpy()
    for name, tid, start, end, next_start in zip(*columns, following, strict=True):
        called = calls.iloc[slice(*np.searchsorted(call_starts, (start, end)))]
        kinds = called["kind"].value_counts().to_dict()
        syncs = called[called["kind"] == "sync"]
        rows.append(
            {
                "name": name,
                "tid": tid,
                "start_us": us(start),
                "wall_us": us(end - start),
                "start_to_next_start_us": None if next_start is None else us(next_start - start),
                **{f"{kind}_launch_calls": kinds.get(kind, 0) for kind in ("kernel", "graph")},
                **{f"{kind}_calls": kinds.get(kind, 0) for kind in ("memcpy", "memset", "sync")},
                "sync_us": us(_durations(syncs).sum()),
                "devices": {device: part.window(start, end) for device, part in devices.items()},
            }
        )
    return rows


class _Work:
    """One device's events, ordered so that a window looks only at what is near it."""

    def __init__(self, work: pd.DataFrame) -> None:
        self.start, self.end, called = (
            work[key].to_numpy() for key in ("start_ns", "end_ns", "call_start_ns")
        )
        self.reach = np.maximum.accumulate(self.end)
        self.is_kernel = (work["kind"] == "kernel").to_numpy()
        self.by_call = np.argsort(called, kind="stable")
        self.called = called[self.by_call]

    def window(self, start: int, end: int) -> Numbers:
        """What was launched in a host window, and what ran in it."""
        own = np.sort(self.by_call[slice(*np.searchsorted(self.called, (start, end)))])
        first, last = np.searchsorted(self.start, (start, end))
        near = slice(int(np.searchsorted(self.reach, start, "right")), last)
        clipped = union_ns(np.clip(self.start[near], start, end), np.clip(self.end[near], start, end))
        numbers: Numbers = {
            "gpu_events": len(own),
            "kernels": int(self.is_kernel[own].sum()),
            "busy_us": 0.0,
            "gpu_span_us": None,
            "clipped": {
                "busy_us": us(clipped),
                "idle_us": us(end - start - clipped),
                "kernels_started": int(self.is_kernel[first:last].sum()),
            },
        }
        return numbers | self._own(own, start, end) if len(own) else numbers

    def _own(self, own: npt.NDArray[np.int64], start: int, end: int) -> Numbers:
        begins, reach = self.start[own], np.maximum.accumulate(self.end[own])
        span, busy = int(reach[-1] - begins[0]), union_ns(begins, self.end[own])
        return {
            "busy_us": us(busy),
            "gpu_span_us": us(span),
            "idle_in_gpu_span_us": us(span - busy),
            "first_gpu_start_rel_us": us(begins[0] - start),
            "last_gpu_end_rel_to_step_end_us": us(reach[-1] - end),
            "longest_gap_us": us(max((begins[1:] - reach[:-1]).max(initial=0), 0)),
        }
