"""A step on a device: busy, and waits split by what they waited for. The parts sum to the step's interval,
in integer ns.

The interval runs from the later of (start of the step's host window, end of the device work launched before
it) to the later of (end of the window, end of the step's own device work). Device work belongs to the step
whose launch call started it. Busy is everything that the device did in the interval, whoever launched it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiling.trace.devices import NONE, SPLIT, split_ns, union_ns
from profiling.trace.marks import Steps

Int = npt.NDArray[np.int64]
PARTS = ("busy", "gap_before_call", "gap_during_call", "gap_after_call", "gap_unknown", "lead_in", "tail")


def owners(work: pd.DataFrame, steps: Steps) -> Int:
    """Per device event the step whose window holds the start of its launch call, -1 for none."""
    return owners_of(work["call_start_ns"].to_numpy(), steps)


def owners_of(times: Int, steps: Steps) -> Int:
    """Per time the step whose window holds it, -1 for none."""
    step = np.searchsorted(steps.table["start_ns"].to_numpy(np.int64), times, "right") - 1
    return np.where(inside_any(times, steps), step, -1)


def intervals(work: pd.DataFrame, steps: Steps) -> list[tuple[int, int]]:
    """Per step (start, end) in ns on one device; `work`: that device's events by start."""
    start, end = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    called = work["call_start_ns"].to_numpy()
    owner = owners(work, steps)
    by_owner = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[by_owner], np.arange(len(steps) + 1))
    by_call = np.argsort(called, kind="stable")
    called_sorted = called[by_call]
    ends_by_call = np.maximum.accumulate(np.where(called_sorted == NONE, NONE, end[by_call]))
    unlinked = called == NONE
    unlinked_start, unlinked_reach = start[unlinked], np.maximum.accumulate(end[unlinked])
    out = []
    for i, (window_start, window_end, _) in enumerate(steps.windows()):
        own = by_owner[bounds[i] : bounds[i + 1]]
        first_own = int(start[own[0]]) if len(own) else int(window_start)
        begin = int(window_start)
        earlier = int(np.searchsorted(called_sorted, window_start))
        if earlier:
            begin = max(begin, int(ends_by_call[earlier - 1]))
        # Work without a call in the file was launched before the trace began if it runs ahead of the step's
        # own.
        ahead = int(np.searchsorted(unlinked_start, first_own))
        if ahead:
            begin = max(begin, int(unlinked_reach[ahead - 1]))
        last_own = int(end[own].max()) if len(own) else int(window_end)
        out.append((begin, max(begin, int(window_end), last_own)))
    return out


def waits(work: pd.DataFrame, reach: Int, begin: int, end: int) -> tuple[int, pd.DataFrame]:
    """Busy ns in [begin, end) and the waits: `where` (lead_in, gap, tail, empty), `start_ns`, `end_ns`,
    `ender` (row label of the device event that ended it, -1: none), and the parts of `SPLIT`. `reach`:
    running maximum of `work`'s ends.
    """
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    first = int(np.searchsorted(reach, begin, "right"))
    inside = slice(first, int(np.searchsorted(starts, end, "left")))
    s, e = np.clip(starts[inside], begin, end), np.clip(ends[inside], begin, end)
    kept = ends[inside] > begin
    s, e = s[kept], e[kept]
    rows = work.iloc[inside][kept]
    if not len(s):
        return 0, _frame(["empty"] if end > begin else [], [begin], [end], rows.iloc[:0])
    covered = np.maximum.accumulate(e)
    at = np.flatnonzero(s[1:] > covered[:-1]) + 1
    wait_start, wait_end = covered[at - 1], s[at]
    where, enders = ["gap"] * len(at), rows.iloc[at]
    if s[0] > begin:
        where, enders = ["lead_in", *where], pd.concat([rows.iloc[:1], enders])
        wait_start, wait_end = np.append(begin, wait_start), np.append(s[0], wait_end)
    if covered[-1] < end:
        where = [*where, "tail"]
        wait_start, wait_end = np.append(wait_start, covered[-1]), np.append(wait_end, end)
    return union_ns(s, e), _frame(where, wait_start, wait_end, enders)


def _frame(where: list[str], start: Any, end: Any, enders: pd.DataFrame) -> pd.DataFrame:
    n = len(where)
    begin, finish = np.asarray(start, np.int64)[:n], np.asarray(end, np.int64)[:n]
    missing = n - len(enders)
    call_start = np.append(enders["call_start_ns"].to_numpy(), np.full(missing, NONE))
    call_end = np.append(enders["call_end_ns"].to_numpy(), np.full(missing, NONE))
    columns: dict[str, Any] = {"where": np.array(where, dtype=object), "start_ns": begin, "end_ns": finish}
    columns["ender"] = np.append(enders.index.to_numpy(), np.full(missing, -1)).astype(np.int64)
    return pd.DataFrame(columns | split_ns(begin, finish, call_start, call_end))


def parts_ns(busy: int, waited: pd.DataFrame) -> dict[str, int]:
    """The interval's parts. A step in which the device did nothing has one gap that no launch ended:
    unknown.
    """
    lasted = waited["end_ns"] - waited["start_ns"]
    gaps = waited[waited["where"].isin(["gap", "empty"])]
    out = {"busy": busy} | {f"gap_{part}": int(gaps[part].sum()) for part in SPLIT}
    return out | {part: int(lasted[waited["where"] == part].sum()) for part in ("lead_in", "tail")}


def inside(times: Int, steps: Steps) -> Int:
    """Per step how many of some times lie in its window."""
    ordered = np.sort(times)
    starts, ends = steps.table["start_ns"].to_numpy(np.int64), steps.table["end_ns"].to_numpy(np.int64)
    return np.searchsorted(ordered, ends) - np.searchsorted(ordered, starts)


def inside_any(times: Int, steps: Steps) -> npt.NDArray[np.bool_]:
    """Per time whether some step's window holds it."""
    starts, ends = steps.table["start_ns"].to_numpy(np.int64), steps.table["end_ns"].to_numpy(np.int64)
    if not len(starts):
        return np.zeros(len(times), np.bool_)
    at = np.searchsorted(starts, times, "right") - 1
    return (at >= 0) & (times < ends[np.maximum(at, 0)])
