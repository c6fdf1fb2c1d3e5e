"""A step on a device: busy, and waits split by what they waited for. The parts sum to the step's interval,
in integer ns.

The interval runs from the later of (start of the step's host window, end of the device work launched before
it) to the later of (end of the window, end of the step's own device work). Device work belongs to the step
whose launch call started it. Busy is everything that the device did in the interval, whoever launched it.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiling.trace.devices import NONE, SPLIT, matching, split_ns, union_ns
from profiling.trace.marks import Steps

Int = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).max
PARTS = ("busy", "gap_before_call", "gap_during_call", "gap_after_call", "gap_unknown", "lead_in", "tail")
COMMUNICATION = re.compile(
    r"(?i).*(?:nccl|rccl|oneccl|hccl|nvshmem|mscclpp|deep_?ep|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
    r"|cross_device_reduce|multimem|symm_mem|quick_?reduce)"
)
"""Kernels of the collective libraries, and of vLLM's, SGLang's and TensorRT-LLM's own."""
BUSY_PARTS = ("compute", "communication", "copies")


def owners(work: pd.DataFrame, steps: Steps) -> Int:
    """Per device event the step whose window holds the start of its launch call, -1 for none."""
    return owners_of(work["call_start_ns"].to_numpy(), steps)


def owners_of(times: Int, steps: Steps) -> Int:
    """Per time the step whose window holds it, -1 for none."""
    step = np.searchsorted(steps.table["start_ns"].to_numpy(np.int64), times, "right") - 1
    return np.where(inside_any(times, steps), step, -1)


def intervals(work: pd.DataFrame, steps: Steps, owner: Int) -> Int:
    """Per step start and end [n, 2] in ns on one device; `work`: that device's events by start, and the step
    that each belongs to.
    """
    start, end = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    called = work["call_start_ns"].to_numpy()
    by_owner = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[by_owner], np.arange(len(steps) + 1))
    by_call = np.argsort(called, kind="stable")
    called_sorted = called[by_call]
    ends_by_call = np.maximum.accumulate(np.where(called_sorted == NONE, NONE, end[by_call]))
    unlinked = called == NONE
    unlinked_start, unlinked_reach = start[unlinked], np.maximum.accumulate(end[unlinked])
    out = []
    for i, (window_start, window_end, _) in enumerate(steps.windows()):
        rows = by_owner[bounds[i] : bounds[i + 1]]
        first_start = int(start[rows[0]]) if len(rows) else int(window_start)
        begin = int(window_start)
        earlier = int(np.searchsorted(called_sorted, window_start))
        if earlier:
            begin = max(begin, int(ends_by_call[earlier - 1]))
        # Work without a call in the file was launched before the trace began if it runs ahead of the step's
        # own.
        ahead = int(np.searchsorted(unlinked_start, first_start))
        if ahead:
            begin = max(begin, int(unlinked_reach[ahead - 1]))
        last_end = int(end[rows].max()) if len(rows) else int(window_end)
        out.append((begin, max(begin, int(window_end), last_end)))
    return np.array(out, np.int64).reshape(-1, 2)


def waits(work: pd.DataFrame, begin: Int, end: Int) -> pd.DataFrame:
    """All waits of a device in the spans [begin, end) [n], which are disjoint and in order.

    `span` (its number), `where` (lead_in, gap, tail, empty), `start_ns`, `end_ns`, `ender` (row label of the
    device event that ended it, -1: none), and the parts of `SPLIT`. What ends a tail, or a span in which the
    device did nothing, runs behind it.
    `work`: the device's events by start.
    """
    start, reach = work["start_ns"].to_numpy(), np.maximum.accumulate(work["end_ns"].to_numpy())
    at = np.flatnonzero(start[1:] > reach[:-1]) + 1
    idle_start = np.concatenate([[NONE], reach[at - 1], reach[-1:]])
    idle_end = np.concatenate([start[:1], start[at], [NEVER]])
    ended_by = np.concatenate([[0], at, [-1]])
    first = np.searchsorted(idle_end, begin, "right")
    count = np.maximum(np.searchsorted(idle_start, end, "left") - first, 0)
    span = np.repeat(np.arange(len(begin)), count)
    idle = np.arange(len(span)) - np.repeat(np.cumsum(count) - count, count) + first[span]
    s, e = np.maximum(idle_start[idle], begin[span]), np.minimum(idle_end[idle], end[span])
    at_begin, at_end = s == begin[span], e == end[span]
    where = np.select([at_begin & at_end, at_end, at_begin], ["empty", "tail", "lead_in"], "gap")
    position = ended_by[idle]
    ended = position >= 0
    columns: dict[str, Any] = {"span": span, "where": where.astype(object), "start_ns": s, "end_ns": e}
    columns["ender"] = np.where(ended, work.index.to_numpy()[position], -1)
    call_start, call_end = (
        np.where(ended, work[key].to_numpy()[position], NONE) for key in ("call_start_ns", "call_end_ns")
    )
    rows: pd.DataFrame = pd.DataFrame(columns | split_ns(s, e, call_start, call_end))[e > s]
    return rows.reset_index(drop=True)


def parts_ns(waited: pd.DataFrame, begin: Int, end: Int) -> Int:
    """The spans' parts [n, len(PARTS)]. A step in which the device did nothing has one gap that no launch
    ended: unknown.
    """
    out = np.zeros((len(begin), len(PARTS)), np.int64)
    span, where = waited["span"].to_numpy(), waited["where"].to_numpy()
    lasted = (waited["end_ns"] - waited["start_ns"]).to_numpy()
    out[:, 0] = end - begin
    np.subtract.at(out[:, 0], span, lasted)
    gaps = where == "gap"
    for part in SPLIT:
        np.add.at(out[:, PARTS.index(f"gap_{part}")], span[gaps], waited[part].to_numpy()[gaps])
    for kind, part in (("lead_in", "lead_in"), ("tail", "tail"), ("empty", "gap_unknown")):
        rows = where == kind
        np.add.at(out[:, PARTS.index(part)], span[rows], lasted[rows])
    return out


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


def busy_split_ns(work: pd.DataFrame) -> dict[str, int]:
    """Busy ns of one device's events, by start, divided over `BUSY_PARTS`; sums to the union of all of them.

    An instant in which several run belongs to the first of the three.
    """
    copies = work["kind"].isin(["memcpy", "memset"]).to_numpy()
    talking = ~copies & matching(work["name"], COMMUNICATION)
    covered = [_union_ns(work[mask]) for mask in (~copies & ~talking, ~copies, copies | True)]
    compute, with_talk, everything = covered
    return {"compute": compute, "communication": with_talk - compute, "copies": everything - with_talk}


def _union_ns(work: pd.DataFrame) -> int:
    return union_ns(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())
