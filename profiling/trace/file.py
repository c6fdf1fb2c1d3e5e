"""A trace file as one table, exact to the nanosecond, with what was skipped and what is odd about it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiling.trace import devices, nsys
from profiling.trace.clocks import Clocks, clocks_of, impossible
from profiling.trace.columns import Builder, parse_events
from profiling.trace.names import OP_CATEGORIES, is_implicit, op_class
from profiling.trace.read import NOT_EVENT, metadata, pieces
from profiling.trace.source import Source, open_source

Int = npt.NDArray[np.int64]
REPEATED_SHARE = 0.25
"""Of all events: by accident two are alike, not a quarter of them."""
MIN_DISTINCT = 6
"""Events, below which nothing can be said of how often they are alike by accident."""


@dataclass(frozen=True)
class Trace:
    """The complete events of one trace.

    `events`, in file order: `cat` (lower case) and `name` (categories), `ts_ns`, `dur_ns` (int64, on the
    file's own clock), `pid`, `tid`, `thread` (one code per pid and tid), `device` and `stream` (text,
    device events only), `correlation` (-1: none).
    """

    path: Path
    events: pd.DataFrame
    meta: dict[str, Any] = field(default_factory=dict)
    events_total: int = 0
    json_bytes: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    cut: bool = False  # the file ends before its events do
    unknown_devices: dict[str, int] = field(default_factory=dict)
    """Events on rows that are a device's by their process or arguments, in no category that is read."""

    @property
    def calls(self) -> pd.DataFrame:
        """Runtime and driver calls by start: `start_ns`, `end_ns`, `thread`, `correlation`, `name`, `kind`,
        `works`.

        `kind` (category) as in `names.CALL_KINDS` or "other"; `works` counts the device events that a call
        started.
        """
        return self._linked[0]

    @property
    def device_events(self) -> pd.DataFrame:
        """Device events by start: `start_ns`, `end_ns`, `device`, `stream`, `kind` (kernel, memcpy,
        memset), `name`, `correlation`, `graph` (id, -1: none), `call` (row in `calls`, -1: none in the file),
        `call_start_ns`, `call_end_ns`, `call_kind`. Those whose times cannot be are left out.
        """
        return self._linked[1]

    @property
    def impossible(self) -> pd.DataFrame:
        """Rows like those of `device_events` whose times cannot be, with the `reason`."""
        return self._linked[2]

    @cached_property
    def _linked(self) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        calls, work = devices.calls_of(self.events)
        reason = impossible(work)
        bad = reason != ""
        return calls, work[~bad].reset_index(drop=True), work[bad].assign(reason=reason[bad])

    @cached_property
    def host_ops(self) -> pd.DataFrame:
        """Host ops by thread and start, an op ahead of those it calls: `name`, `thread`, `start_ns`,
        `end_ns`, `parent` (row, -1: none), `self_ns`, `class` (see `names.op_class`), `recorded` (a recording
        of the step would hold it: it has a kernel and no op above it has one).
        """
        return host_ops_of(self.events)

    @cached_property
    def host_waits(self) -> pd.DataFrame:
        """Calls in which the host waits for the device: rows of `calls` with `hidden` (a blocking copy)."""
        return devices.host_waits_of(self.calls, self.device_events)

    @cached_property
    def main_device(self) -> str | None:
        """The device with the most work, None without device events."""
        return devices.main_device_of(self.device_events)

    @cached_property
    def clocks(self) -> Clocks:
        """What may be added to the device's times in the file."""
        return clocks_of(self.calls, self.device_events)

    def moved(self, ns: int) -> Trace:
        """The same trace with `ns` added to every time of the device."""
        if not ns:
            return self
        calls, work, bad = self._linked
        times = {key: work[key] + ns for key in ("start_ns", "end_ns")}
        moved = replace(self)
        # What does not hang on the device's times is worked out once, here, for both.
        unmoved = {"clocks": self.clocks, "host_ops": self.host_ops, "main_device": self.main_device}
        moved.__dict__.update(self.__dict__, _linked=(calls, work.assign(**times), bad), **unmoved)
        moved.__dict__.pop("host_waits", None)
        return moved

    @property
    def near(self) -> Trace:
        """The same trace with the device's clock moved no further than it must be."""
        return self.moved(self.clocks.nearest_ns)

    def in_categories(self, categories: frozenset[str]) -> pd.DataFrame:
        """Events of some categories, in file order."""
        return self.events[self.events["cat"].isin(list(categories))]


def _once(frame: pd.DataFrame, source: Source) -> pd.DataFrame:
    """The events without repeats, where there are so many that a file was joined to itself."""
    repeated = frame.duplicated()
    if (~repeated).sum() < MIN_DISTINCT or repeated.mean() < REPEATED_SHARE:
        return frame
    source.warn(f"{repeated.sum()} of {len(frame)} events are repeated, to the nanosecond, and count once")
    return frame[~repeated].reset_index(drop=True)


def load(path: str | Path, progress: Callable[[float], None] | None = None) -> Trace:
    """A Kineto or Chrome trace, plain or gzip, of any age and vendor, or an SQLite export of Nsight Systems.

    `progress` is called with the share of the file that has been read. A file that is damaged is read as
    far as it goes, with counts in `skipped` and a line in `warnings`; UserError where nothing can be read.
    """
    path = Path(path)
    if nsys.is_database(path):
        source, lists = nsys.read(path)
    else:
        source = open_source(path, progress)
        lists = pieces(source, parse_events)
    builder = Builder(source)
    # Parsed events hold no cycles; without this the collector walks millions of them again and again.
    collecting = gc.isenabled()
    gc.disable()
    try:
        for events in lists:
            builder.add(events)
        frame = builder.frame()
    finally:
        if collecting:
            gc.enable()
    frame = _once(frame, source)
    meta = metadata(source)
    if source.skipped:
        source.warn("skipped: " + ", ".join(f"{count} x {why}" for why, count in source.skipped.items()))
    if frame.empty:
        source.warn("the trace holds no complete events")
    total, cut = builder.total + source.skipped.get(NOT_EVENT, 0), source.tail is None
    unknown = builder.unknown_devices()
    return Trace(path, frame, meta, total, source.size, source.skipped, source.warnings, cut, unknown)


def host_ops_of(events: pd.DataFrame) -> pd.DataFrame:
    """The `host_ops` table: each instant of a thread belongs to the innermost op that covers it."""
    rows = events[events["cat"].isin(list(OP_CATEGORIES))]
    start = rows["ts_ns"].to_numpy()
    end = start + rows["dur_ns"].to_numpy()
    thread = rows["thread"].to_numpy()
    order = np.lexsort((-end, start, thread))
    start, end, thread = start[order], end[order], thread[order]
    parent, end = nest(thread, start, end)
    nested = parent >= 0
    self_ns = (end - start) - np.bincount(parent[nested], (end - start)[nested], len(start)).astype(np.int64)
    names = rows["name"].cat.categories
    codes = rows["name"].cat.codes.to_numpy()[order]
    classes = np.array([op_class(str(n)) for n in names], dtype=object)
    if "unknown" in classes[np.unique(codes)]:
        classes[classes == "region"] = "overhead"
    classes[classes == "region"] = "unknown"
    implicit = np.array([is_implicit(str(n)) for n in names], np.bool_)[codes]
    return pd.DataFrame(
        {
            "name": rows["name"].array[order],
            "thread": thread,
            "start_ns": start,
            "end_ns": end,
            "parent": parent,
            "self_ns": self_ns,
            "class": classes[codes],
            "recorded": _recorded(parent, implicit),
        }
    )


def nest(thread: Int, start: Int, end: Int) -> tuple[Int, Int]:
    """Row of the innermost op around each one (-1 for none), and its end: no later than that op's own.

    Rows by thread, start, and longest first. Ops of one thread nest; where they overlap by a rounding
    error, or because the file is not what it should be, the inner one is cut.
    """
    parent = np.full(len(start), -1, np.int64)
    cut = end.copy()
    stack: list[tuple[int, int]] = []
    current = None
    for row, (t, s, e) in enumerate(zip(thread.tolist(), start.tolist(), end.tolist(), strict=True)):
        if t != current:
            stack, current = [], t
        while stack and stack[-1][0] <= s:
            stack.pop()
        if stack:
            outer_end, parent[row] = stack[-1]
            if e > outer_end:
                cut[row] = e = outer_end
        stack.append((e, row))
    return parent, cut


def _recorded(parent: Int, implicit: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    open_above = np.ones(len(parent), np.bool_)
    for row, above in enumerate(parent.tolist()):
        if above >= 0:
            open_above[row] = open_above[above] and implicit[above]
    return open_above & ~implicit
