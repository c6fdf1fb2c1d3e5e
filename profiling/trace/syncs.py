"""When the host waited for the device: synchronising calls, and copies that block without saying so."""

from __future__ import annotations

import numpy as np
import pandas as pd

from profiling.trace.load import Trace
from profiling.trace.names import TO_HOST_COPY


def waits_of_host(trace: Trace) -> pd.DataFrame:
    """Calls in which the host waits, by start: rows of `trace.calls` with `hidden` (a copy, not a
    synchronising call).

    A copy to the host blocks if its call returns only after the device has finished it: pageable memory, or
    a call that is synchronous by definition.
    """
    calls, work = trace.calls, trace.device_events
    copies = work[(work["kind"] == "memcpy") & (work["call"] >= 0)]
    to_host = copies["name"].astype(str).str.contains(TO_HOST_COPY)
    blocking = copies[to_host & (copies["call_end_ns"] >= copies["end_ns"])]
    hidden = np.zeros(len(calls), np.bool_)
    hidden[blocking["call"].to_numpy()] = True
    return calls[(calls["kind"] == "sync") | hidden].assign(hidden=hidden[(calls["kind"] == "sync") | hidden])
