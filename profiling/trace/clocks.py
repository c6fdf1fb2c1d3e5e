"""How the device's clock stands to the host's: what can be added to it without breaking cause and effect.

Nothing starts ahead of its launch call, and when a sync returns, whatever was launched before it has ended.
A stream does one thing after another, in the order of launches: other times cannot be.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiling.trace.devices import NONE, matching
from profiling.trace.names import STREAM_SYNC, WHOLE_DEVICE_SYNC

Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
MIN_HELD = 3
"""Whole later events inside one event of their stream: fewer may be dependent launches."""
OUT_OF_ORDER_NS = 1_000_000
"""Threads that launch on one stream at once enter it in either order: by less than this."""
EARLY_SHARE = 0.1
"""Of the linked events: where more than this run ahead of their launches, it is the clock."""
ZERO_NS = 1_000_000_000
"""An event at ts 0 that lies this far ahead of all others was never given a time."""
LENGTH, ORDER = "holds later events of its stream", "out of launch order"
ZERO, EARLY = "at ts 0", "starts before its launch"


@dataclass(frozen=True)
class Clocks:
    """`low_ns` to `high_ns` may be added to device times; None where nothing bounds them."""

    low_ns: int | None
    high_ns: int | None

    @property
    def nearest_ns(self) -> int:
        """The smallest change of the device's times that makes them possible; `low_ns` where none does."""
        change = min(0, 0 if self.high_ns is None else self.high_ns)
        return change if self.low_ns is None else max(self.low_ns, change)

    @property
    def span_ns(self) -> int | None:
        """How far the bounds lie apart; None where there is no upper or lower one."""
        return None if self.low_ns is None or self.high_ns is None else self.high_ns - self.low_ns

    @property
    def drift_ns(self) -> int:
        """By how much the clocks run apart within the trace at least: no one change makes it possible."""
        return max(0, -(self.span_ns or 0))


def clocks_of(calls: pd.DataFrame, work: pd.DataFrame) -> Clocks:
    """`calls` and `work` as in `profiling.trace.Trace`."""
    linked = work[work["call"] >= 0]
    low = int((linked["call_start_ns"] - linked["start_ns"]).max()) if len(linked) else None
    spares = [
        _spare_ns(rows["call_end_ns"], rows["end_ns"], syncs["start_ns"], syncs["end_ns"])
        for rows, syncs in _work_and_syncs(calls, linked)
    ]
    if work["device"].nunique() == 1:  # ids grow with time, so they order calls that the file does not hold
        early = work[(work["call"] < 0) & (work["correlation"] >= 0)]
        syncs = calls[matching(calls["name"], WHOLE_DEVICE_SYNC) & (calls["correlation"] >= 0)]
        spares.append(_spare_ns(early["correlation"], early["end_ns"], syncs["correlation"], syncs["end_ns"]))
    bounds = [spare for spare in spares if spare is not None]
    return Clocks(low, min(bounds, default=None))


def _work_and_syncs(calls: pd.DataFrame, linked: pd.DataFrame) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """Device work, and the syncs that wait for all of it: of one device every thread's, else each thread's
    own; syncs of a stream only where the device shows no other.
    """
    whole, stream = (matching(calls["name"], pattern) for pattern in (WHOLE_DEVICE_SYNC, STREAM_SYNC))
    one_stream = len(linked[["device", "stream"]].drop_duplicates()) == 1
    syncs = calls[whole | (stream & one_stream)]
    if linked["device"].nunique() == 1:
        return [(linked, syncs)]
    threads = calls["thread"].to_numpy()[linked["call"].to_numpy()]
    by_thread = [(rows, syncs[syncs["thread"] == thread]) for thread, rows in linked.groupby(threads)]
    return [(rows, waits) for rows, waits in by_thread if rows["device"].nunique() == 1]


def _spare_ns(
    launch: pd.Series[int], end: pd.Series[int], sync_start: pd.Series[int], sync_end: pd.Series[int]
) -> int | None:
    """The least time from the end of device work to the return of a sync that was asked for after its launch.

    `launch` and `sync_start` on one scale, `end` and `sync_end` in ns.
    """
    order = np.argsort(launch.to_numpy(), kind="stable")
    reach = np.maximum.accumulate(end.to_numpy()[order])
    before = np.searchsorted(launch.to_numpy()[order], sync_start.to_numpy(), "right")
    spare = sync_end.to_numpy()[before > 0] - reach[before[before > 0] - 1]
    return int(spare.min()) if len(spare) else None


def impossible(work: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Per row of a table like `Trace.device_events` why its times cannot be, "" where they can."""
    reason = np.full(len(work), "", dtype=object)
    reason[_at_zero(work["start_ns"].to_numpy())] = ZERO
    reason[_early(work)] = EARLY
    for _, rows in work.groupby(["device", "stream"], observed=True).indices.items():
        stream = work.iloc[rows]
        start, end, call = (stream[key].to_numpy() for key in ("start_ns", "end_ns", "call_start_ns"))
        linked = stream["call"].to_numpy() >= 0
        reason[rows[_too_long(start, end, call)]] = LENGTH
        reason[rows[np.flatnonzero(linked)[_out_of_order(start[linked], call[linked])]]] = ORDER
    return reason


def _at_zero(start: Int) -> Bool:
    zero = start == 0
    others = start[~zero]
    return zero if len(others) and others.min() > ZERO_NS else np.zeros(len(start), np.bool_)


def _early(work: pd.DataFrame) -> Int:
    """Rows that start ahead of their launch, though the clocks agree for nearly all others."""
    linked = np.flatnonzero(work["call"].to_numpy() >= 0)
    delay = (work["start_ns"] - work["call_start_ns"]).to_numpy()[linked]
    if not len(delay):
        return linked
    usual = min(0, int(np.quantile(delay, EARLY_SHARE, method="lower")))
    return linked[delay < usual - OUT_OF_ORDER_NS]


def _too_long(start: Int, end: Int, call: Int) -> Int:
    """Rows of one stream, by start, that hold `MIN_HELD` whole events of later launches (of none: of any)."""
    left, bad = np.arange(len(start)), []
    while len(left) > MIN_HELD:
        of = start[left], end[left], call[left]
        following = np.lib.stride_tricks.sliding_window_view(of[1][1:], MIN_HELD).max(axis=1)
        suspects = np.flatnonzero(following < of[1][: len(following)]).tolist()
        held = [row for row in suspects if _held(*of, row) >= MIN_HELD]
        if not held:
            break
        bad += left[held].tolist()
        left = np.delete(left, held)  # and once more, since one may have hidden another
    return np.array(bad, np.int64)


def _held(start: Int, end: Int, call: Int, row: int) -> int:
    """Nodes of one replay may run side by side, so they do not count for each other."""
    inside = slice(row + 1, int(np.searchsorted(start, end[row])))
    later = (call[inside] != call[row]) | (call[row] == NONE)
    return int(((end[inside] < end[row]) & (start[inside] > start[row]) & later).sum())


def _out_of_order(start: Int, call: Int) -> Int:
    """The fewest rows without which the others start in the order of their calls."""
    order = np.lexsort((start, call))
    ordered = start[order]
    reach = np.maximum.accumulate(ordered)
    if not (ordered < reach - OUT_OF_ORDER_NS).any():
        return np.empty(0, np.int64)
    rising = _longest_rising(ordered)
    rest = ordered[rising]
    place = np.searchsorted(
        rising, np.arange(len(ordered))
    )  # a row starts between its neighbours that are kept
    low = np.append(ordered.min(), rest)[place]
    high = np.append(rest, ordered.max())[place]
    return order[(ordered < low - OUT_OF_ORDER_NS) | (ordered > high + OUT_OF_ORDER_NS)]


def _longest_rising(values: Int) -> Int:
    """Positions of the longest part of a sequence that never falls."""
    tails: list[int] = []
    at: list[int] = []
    before = np.empty(len(values), np.int64)
    for i, value in enumerate(values.tolist()):
        place = bisect_right(tails, value)
        before[i] = at[place - 1] if place else -1
        tails[place : place + 1] = [value]
        at[place : place + 1] = [i]
    rising = np.empty(len(at), np.int64)
    i = at[-1]
    for n in range(len(at) - 1, -1, -1):
        rising[n], i = i, int(before[i])
    return rising
