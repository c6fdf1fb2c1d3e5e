"""A trace with what the analysis found in it, for any viewer: rows of steps, and of what they waited for.

The file's own events stay byte for byte; the rows are put in front of them as a process of their own, in a
category that no reader of traces takes for an op. Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from profiling.analysis.attribution import HOST, Attribution, attribute
from profiling.trace import Steps, Trace, load, nsys, steps
from profiling.trace.devices import SPLIT
from profiling.trace.source import open_source
from variants.errors import UserError

CATEGORY = "decode_floor"
PROCESS = "decode-floor"
STEP_ROW, GAP_ROW, HOST_ROW = "steps", "gaps by cause", "host by class of op"
LABELS = {
    "before_call": "gap: host had not issued the next work",
    "during_call": "gap: host inside the launch call",
    "after_call": "gap: issued, device had not started",
    "unknown": "gap: no launch call in the file",
    "lead_in": "lead-in: before the first device event",
    "tail": "tail: after the last device event",
    "empty": "gap: the device did nothing in this step",
}
HOST_LABELS = {
    "compute": "compute ops",
    "overhead": "views, allocation, dispatch",
    "python": "Python outside ops",
    "unknown": "unknown: no event covers it",
}
Details = dict[str, str | float]  # what a slice says when it is opened
Slice = tuple[int, int, str, Details]
"""Start and end in ns on the file's clock, name, and what a viewer shows when the slice is clicked."""


def annotated(path: Path) -> bytes:
    """The text of the trace at `path` with the rows in it; UserError where nothing can be read."""
    if nsys.is_database(path):
        raise UserError(f"{path}: the viewer shows JSON; open what nsys made in Nsight Systems")
    trace = load(path)
    source = open_source(path)
    pids = {str(pid) for pid in trace.events["pid"].cat.categories}
    pid = next(n for n in range(9_000_000, 10_000_000) if str(n) not in pids)
    rows = b",\n".join(_events(trace_rows(trace), pid))
    rest = source.rest()
    between = b"" if rest.lstrip()[:1] == b"]" else b",\n"
    return b"".join([source.head, rows, between, rest])


def trace_rows(trace: Trace) -> dict[str, list[Slice]]:
    """Row name -> its slices by time: the steps, then per device its waits by cause, or the host's parts."""
    marks = steps(trace)
    attribution = attribute(trace, marks)
    rows = {STEP_ROW: list(_steps(marks, attribution))}
    devices = sorted(set(attribution.intervals["device"]) - {HOST})
    for device in devices:
        name = GAP_ROW if len(devices) == 1 else f"{GAP_ROW}, device {device}"
        rows[name] = list(_waits(trace, attribution, device))
    if not devices and len(marks):
        rows[HOST_ROW] = [part for window in marks.windows() for part in host_parts(trace, *window)]
    return rows


def _steps(marks: Steps, attribution: Attribution) -> Iterator[Slice]:
    names = marks.table["name"].astype(str)
    parts = dict(iter(attribution.parts.groupby("step")))
    counts = attribution.counts.set_index("step").to_dict("index")
    for step, (name, (start, end, _)) in enumerate(zip(names, marks.windows(), strict=True)):
        details: Details = {"steps found by": marks.source}
        for row in parts[step].to_dict("records"):
            details[f"{row['device']} {row['part']} (us)"] = row["us"]
        details |= {str(what): n for what, n in counts[step].items()}
        yield start, end, f"step {step}: {name}", details


def _waits(trace: Trace, attribution: Attribution, device: str) -> Iterator[Slice]:
    """Lead-in and tail as one slice each; gaps cut where the call that ended them starts and ends."""
    waits = attribution.waits[attribution.waits["device"] == device]
    for wait in waits.to_dict("records"):
        details: Details = {"step": wait["step"]}
        if wait["ender"] >= 0:
            details["ended by"] = str(trace.device_events["name"].loc[wait["ender"]])
        at = int(wait["start_ns"])
        if wait["where"] != "gap":
            yield at, int(wait["end_ns"]), LABELS[wait["where"]], details
            continue
        for part in SPLIT:
            if wait[part]:
                yield at, at + int(wait[part]), LABELS[part], details
                at += int(wait[part])


def host_parts(trace: Trace, start: int, end: int, thread: int) -> Iterator[Slice]:
    """The window cut by the class of the innermost op at each instant; sums to `cpu.parts_ns`."""
    every = trace.host_ops
    every = every[every["thread"] == thread]
    ops = every[(every["start_ns"] < end) & (every["end_ns"] > start)]
    begun, kind = start, "python" if len(every) else "unknown"
    last_at_each_instant = dict(_changes(ops, start, end, kind))
    for at, following in [*last_at_each_instant.items(), (end, "")]:
        if following != kind:
            if at > begun:
                yield begun, at, HOST_LABELS[kind], {}
            begun, kind = at, following


def _changes(ops: Any, start: int, end: int, outside: str) -> Iterator[tuple[int, str]]:
    """Instants at which another op becomes the innermost one, and its class."""
    open_ops: list[tuple[int, str]] = []
    columns = (ops[key].tolist() for key in ("start_ns", "end_ns", "class"))
    for begin, finish, kind in zip(*columns, strict=True):
        while open_ops and open_ops[-1][0] <= begin:
            closed, _ = open_ops.pop()
            yield closed, open_ops[-1][1] if open_ops else outside
        yield max(begin, start), kind
        open_ops.append((min(finish, end), kind))
    while open_ops:
        closed, _ = open_ops.pop()
        yield closed, open_ops[-1][1] if open_ops else outside


def _events(rows: dict[str, list[Slice]], pid: int) -> Iterator[bytes]:
    yield _named("process_name", pid, 0, name=PROCESS)
    yield _named("process_sort_index", pid, 0, sort_index=-1)
    for tid, (name, slices) in enumerate(rows.items(), start=1):
        yield _named("thread_name", pid, tid, name=name)
        yield _named("thread_sort_index", pid, tid, sort_index=tid)
        for start, end, label, details in slices:
            head = {"ph": "X", "cat": CATEGORY, "name": label, "pid": pid, "tid": tid, "args": details}
            times = f',"ts":{_us(start)},"dur":{_us(end - start)}}}'  # exact, where a float loses digits
            yield orjson.dumps(head)[:-1] + times.encode()


def _named(what: str, pid: int, tid: int, **args: Any) -> bytes:
    return orjson.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})


def _us(ns: int) -> str:
    return f"{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"
