"""Device work and the calls that started it; busy time, gaps, and what each gap waited for."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiling.trace.names import (
    CALL_CATEGORY,
    CALL_KINDS,
    DEVICE_CATEGORIES,
    LAUNCH_KINDS,
    MEMCPY_CATEGORIES,
    MEMSET_CATEGORIES,
    TO_HOST_COPY,
    call_kind,
)

Int = npt.NDArray[np.int64]
NONE = np.iinfo(np.int64).min
"""Stands for "no such time" in an int64 column."""
KINDS = pd.Index([*CALL_KINDS, "other"])
SPLIT = ("before_call", "during_call", "after_call", "unknown")


def calls_of(events: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The `calls` and `device_events` tables of `profiling.trace.Trace`, linked by correlation id."""
    calls, work = _calls(events), _work(events)
    outer = _launch_around(calls)
    link = _link(work, calls)
    link = np.where((link >= 0) & (outer[link] >= 0), outer[link], link) if len(calls) else link
    calls.loc[outer >= 0, "kind"] = "other"
    work["call"] = link
    calls["works"] = np.bincount(link[link >= 0], minlength=len(calls))
    _name_unknown_launches(calls, work)
    safe = np.where(link >= 0, link, 0)
    for key in ("start_ns", "end_ns"):
        values = calls[key].to_numpy()[safe] if len(calls) else np.zeros(len(work), np.int64)
        work[f"call_{key}"] = np.where(link >= 0, values, NONE)
    codes = calls["kind"].cat.codes.to_numpy()[safe] if len(calls) else np.zeros(len(work), np.int8)
    work["call_kind"] = pd.Categorical.from_codes(np.where(link >= 0, codes, -1), KINDS)
    return calls, work


def _calls(events: pd.DataFrame) -> pd.DataFrame:
    calls = _spans(of_categories(events, CALL_CATEGORY), ["thread", "correlation", "name"])
    kinds = np.array([KINDS.get_loc(call_kind(str(n))) for n in calls["name"].cat.categories] or [0])
    calls["kind"] = pd.Categorical.from_codes(kinds[calls["name"].cat.codes.to_numpy()], KINDS)
    return calls


def _work(events: pd.DataFrame) -> pd.DataFrame:
    rows = events[events["cat"].isin(list(DEVICE_CATEGORIES))]
    work = _spans(rows, ["device", "stream", "correlation", "graph", "name", "cat"])
    of_category = [
        (c in MEMCPY_CATEGORIES) + 2 * (c in MEMSET_CATEGORIES) for c in work["cat"].cat.categories
    ]
    codes = np.array(of_category or [0])[work["cat"].cat.codes.to_numpy()]
    work["kind"] = pd.Categorical.from_codes(codes, pd.Index(["kernel", "memcpy", "memset"]))
    return work.drop(columns="cat")


def of_categories(events: pd.DataFrame, pattern: re.Pattern[str]) -> pd.DataFrame:
    """Events whose category the pattern finds."""
    names = [str(name) for name in events["cat"].cat.categories if pattern.search(str(name))]
    return events[events["cat"].isin(names)]


def _launch_around(calls: pd.DataFrame) -> Int:
    """Per call the launch call of its thread that holds it, -1 for none or where it is no launch itself.

    A runtime call may show the driver call that it makes: that is one launch, and the outer call is it.
    """
    outer = np.full(len(calls), -1, np.int64)
    launches = np.flatnonzero(calls["kind"].isin(LAUNCH_KINDS))
    start, end = calls["start_ns"].to_numpy()[launches], calls["end_ns"].to_numpy()[launches]
    thread = calls["thread"].to_numpy()[launches]
    order = np.lexsort((-end, start, thread))
    start, end, thread, launches = start[order], end[order], thread[order], launches[order]
    reach = pd.Series(end).groupby(thread).cummax().to_numpy()
    same_thread = thread[1:] == thread[:-1]
    inner = np.concatenate([[False], same_thread & (start[1:] < reach[:-1]) & (end[1:] <= reach[:-1])])[
        : len(end)
    ]
    holder = np.maximum.accumulate(np.where(inner, 0, np.arange(len(end)))) if len(end) else launches
    outer[launches[inner]] = launches[holder[inner]]
    return outer


def _spans(rows: pd.DataFrame, keep: list[str]) -> pd.DataFrame:
    """Start, end and some columns of events, by start, end and correlation: the file's order means
    nothing.
    """
    start = rows["ts_ns"].to_numpy()
    end = start + rows["dur_ns"].to_numpy()
    order = np.lexsort((rows["correlation"].to_numpy(), end, start))
    out = rows[keep].iloc[order].reset_index(drop=True)
    out.insert(0, "start_ns", start[order])
    out.insert(1, "end_ns", end[order])
    return out


def _link(work: pd.DataFrame, calls: pd.DataFrame) -> Int:
    """Row of the call that started each device event, -1 where the file holds none.

    A correlation id is shared by a call and its device events. Synchronising calls have ids too, but start
    nothing. Where several calls carry one id (a runtime call around a driver call, or ids used again), the
    last that starts before the device event counts, and of those that bracket each other the outermost.
    """
    candidates = calls[
        (calls["correlation"] >= 0) & ~calls["kind"].isin(["sync", "capture_begin", "capture_end"])
    ]
    wanted = work["correlation"].to_numpy()
    if candidates.empty or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    ids = candidates["correlation"].to_numpy()
    order = np.argsort(ids, kind="stable")  # within an id: by start, as `calls` is
    ids, rows = ids[order], candidates.index.to_numpy()[order]
    outermost = _outermost(ids, calls["start_ns"].to_numpy()[rows], calls["end_ns"].to_numpy()[rows])
    ids, rows = ids[outermost], rows[outermost]
    first = np.searchsorted(ids, wanted, "left")
    has_call = (np.searchsorted(ids, wanted, "right") > first) & (wanted >= 0)
    # The last of the id's calls that starts no later: both by (id, start), the calls first where equal.
    every_id = np.concatenate([ids, wanted])
    every_start = np.concatenate([calls["start_ns"].to_numpy()[rows], work["start_ns"].to_numpy()])
    is_work = np.arange(len(every_id)) >= len(ids)
    ordered = np.lexsort((is_work, every_start, every_id))
    last = np.empty(len(every_id), np.int64)
    last[ordered] = np.cumsum(~is_work[ordered]) - 1
    at = np.clip(np.maximum(last[len(ids) :], first), 0, len(rows) - 1)
    return np.where(has_call, rows[at], -1)


def _outermost(ids: Int, start: Int, end: Int) -> npt.NDArray[np.bool_]:
    """Per call, sorted by id and start, whether no earlier call of its id that counts is still running."""
    alone = np.ones(len(ids), np.bool_)
    group, until = None, 0
    for i in (np.flatnonzero(ids[1:] == ids[:-1]) + 1).tolist():
        if ids[i] != group:
            group, until = ids[i], end[i - 1]
        alone[i] = start[i] >= until
        if alone[i]:
            until = end[i]
    return alone


def _name_unknown_launches(calls: pd.DataFrame, work: pd.DataFrame) -> None:
    """A call that is in no table but started device work is a launch of that kind of work."""
    unnamed = calls.index[(calls["works"] > 0) & ~calls["kind"].isin(LAUNCH_KINDS)]
    if len(unnamed):
        kind_of = work[work["call"].isin(unnamed)].groupby("call")["kind"].first()
        calls.loc[kind_of.index, "kind"] = kind_of.to_numpy()


def matching(names: pd.Series[Any], pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Per row of a categorical column whether its name matches from the start; each name is looked at
    once.
    """
    matches = np.array([pattern.match(str(name)) is not None for name in names.cat.categories], np.bool_)
    return matches[names.cat.codes.to_numpy()] if len(matches) else np.zeros(len(names), np.bool_)


def host_waits_of(calls: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame:
    """The `host_waits` table of `profiling.trace.Trace`: synchronising calls, and copies that block unsaid.

    A copy to the host blocks if its call returns only after the device has finished it: pageable memory, or a
    call that is synchronous by definition.
    """
    copies = work[
        ((work["kind"] == "memcpy") & (work["call"] >= 0)).to_numpy() & matching(work["name"], TO_HOST_COPY)
    ]
    blocking = copies[copies["call_end_ns"] >= copies["end_ns"]]
    hidden = np.zeros(len(calls), np.bool_)
    hidden[blocking["call"].to_numpy()] = True
    waiting = (calls["kind"] == "sync").to_numpy() | hidden
    return calls[waiting].assign(hidden=hidden[waiting])


def by_device(work: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Device events per device, each by start; devices in the order of their numbers."""
    groups = {str(device): part for device, part in work.groupby("device", observed=True)}
    return dict(sorted(groups.items(), key=lambda item: (len(item[0]), item[0])))


def main_device_of(work: pd.DataFrame) -> str | None:
    """The device with the most work, None without device events."""
    if work.empty:
        return None
    lasted = (work["end_ns"] - work["start_ns"]).groupby(work["device"].astype(object)).sum()
    return str(lasted.idxmax())


def union_ns(start: Int, end: Int) -> int:
    """Length covered by intervals that are sorted by start."""
    if not len(start):
        return 0
    reach = np.maximum.accumulate(end)
    fresh = np.maximum(start[1:], reach[:-1])
    return int(end[0] - start[0]) + int(np.maximum(end[1:] - fresh, 0).sum())


def covered_ns(begin: Int, end: Int, spans: pd.DataFrame) -> Int:
    """Per interval [begin, end) how much of it `spans` (`start_ns`, `end_ns`) cover together."""
    if spans.empty:
        return np.zeros(len(begin), np.int64)
    order = np.argsort(spans["start_ns"].to_numpy(), kind="stable")
    start, stop = (spans[key].to_numpy()[order] for key in ("start_ns", "end_ns"))
    reach = np.maximum.accumulate(stop)
    fresh = np.concatenate([start[:1], np.maximum(start[1:], reach[:-1])])
    lasted = np.maximum(stop - fresh, 0)
    before = np.cumsum(lasted) - lasted

    def up_to(times: Int) -> Int:
        at = np.maximum(np.searchsorted(fresh, times, "right") - 1, 0)
        return np.asarray(before[at] + np.clip(times - fresh[at], 0, lasted[at]), np.int64)

    return up_to(end) - up_to(begin)


def gaps_of(work: pd.DataFrame) -> pd.DataFrame:
    """Where one device had nothing to do: `start_ns`, `end_ns`, `ender` (row label of the event that ended
    the gap), and the four parts of `SPLIT` in ns. `work`: one device's events by start, all streams
    together.
    """
    start, end = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    reach = np.maximum.accumulate(end) if len(end) else end
    at = np.flatnonzero(start[1:] > reach[:-1]) + 1
    ender = work.iloc[at]
    out: dict[str, Int] = {"start_ns": reach[at - 1], "end_ns": start[at], "ender": ender.index.to_numpy()}
    out |= split_ns(
        out["start_ns"], out["end_ns"], ender["call_start_ns"].to_numpy(), ender["call_end_ns"].to_numpy()
    )
    return pd.DataFrame(out)


def split_ns(start: Int, end: Int, call_start: Int, call_end: Int) -> dict[str, Int]:
    """Waiting times [start, end) cut at the start and the end of the call that ended them; the four parts
    sum to them.
    """
    unknown = call_start == NONE
    first = np.clip(call_start, start, end)
    second = np.clip(call_end, first, end)
    nothing = np.zeros_like(start)
    return {
        "before_call": np.where(unknown, nothing, first - start),
        "during_call": np.where(unknown, nothing, second - first),
        "after_call": np.where(unknown, nothing, end - second),
        "unknown": np.where(unknown, end - start, nothing),
    }
