"""How the device's clock stands to the host's: what can be added to it without breaking cause and effect.

Nothing starts ahead of its launch call, and when a sync returns, whatever was launched before it has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from profiling.trace.devices import matching
from profiling.trace.names import STREAM_SYNC, WHOLE_DEVICE_SYNC


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
        for rows, syncs in _synced(calls, linked)
    ]
    if work["device"].nunique() == 1:  # ids grow with time, so they order calls that the file does not hold
        early = work[(work["call"] < 0) & (work["correlation"] >= 0)]
        syncs = calls[matching(calls["name"], WHOLE_DEVICE_SYNC) & (calls["correlation"] >= 0)]
        spares.append(_spare_ns(early["correlation"], early["end_ns"], syncs["correlation"], syncs["end_ns"]))
    bounds = [spare for spare in spares if spare is not None]
    return Clocks(low, min(bounds, default=None))


def _synced(calls: pd.DataFrame, linked: pd.DataFrame) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """Device work, and the syncs that wait for all of it: of one device every thread's, else each thread's
    own; syncs of a stream only where the device shows no other.
    """
    whole, stream = (matching(calls["name"], pattern) for pattern in (WHOLE_DEVICE_SYNC, STREAM_SYNC))
    one_stream = len(linked[["device", "stream"]].drop_duplicates()) == 1
    syncs = calls[whole | (stream & one_stream)]
    if linked["device"].nunique() == 1:
        return [(linked, syncs)]
    threads = calls["thread"].to_numpy()[linked["call"].to_numpy()]
    own = [(rows, syncs[syncs["thread"] == thread]) for thread, rows in linked.groupby(threads)]
    return [(rows, waits) for rows, waits in own if rows["device"].nunique() == 1]


def _spare_ns(
    launched: pd.Series[int], ended: pd.Series[int], asked: pd.Series[int], returned: pd.Series[int]
) -> int | None:
    """The least time from the end of device work to the return of a sync that was asked for after its launch.

    `launched` and `asked` on one scale, `ended` and `returned` in ns.
    """
    order = np.argsort(launched.to_numpy(), kind="stable")
    reach = np.maximum.accumulate(ended.to_numpy()[order])
    before = np.searchsorted(launched.to_numpy()[order], asked.to_numpy(), "right")
    spare = returned.to_numpy()[before > 0] - reach[before[before > 0] - 1]
    return int(spare.min()) if len(spare) else None
