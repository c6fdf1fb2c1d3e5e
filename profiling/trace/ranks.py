"""Several ranks in one file, told apart by their processes' names and by which threads drive which device.

Merged profiles repeat device numbers and correlation ids, so ranks are parted before calls and device work
are linked. A rank is what holds together: host threads and the devices that they launch on.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd

from profiling.trace.file import Trace
from profiling.trace.names import DEVICE_CATEGORIES

_NUMBER_AT_END = re.compile(r"[\s:_.#-]*\d+$")


def by_rank(trace: Trace) -> dict[str, Trace]:
    """Name -> the part of the trace that is one rank's; one nameless entry, the trace, where it holds one."""
    parts = {
        name: part
        for prefix, one in _by_prefix(trace).items()
        for name, part in _by_device(prefix, one).items()
    }
    return parts if len(parts) > 1 else {"": trace}


def _by_prefix(trace: Trace) -> dict[str, Trace]:
    """Parts by what stands ahead of the number in a process id, such as `[TP00] ` in `[TP00] 4711`."""
    pids = trace.events["pid"]
    names = [_NUMBER_AT_END.sub("", str(pid)).strip() for pid in pids.cat.categories]
    prefix = np.array(names, dtype=object)[pids.cat.codes.to_numpy()] if names else np.array([], dtype=object)
    on_device = trace.events["cat"].isin(list(DEVICE_CATEGORIES)).to_numpy()
    working = sorted(set(prefix[on_device]) & set(prefix[~on_device]))
    if len(working) < 2:
        return {"": trace}
    return {name: _part(trace, trace.events[prefix == name]) for name in working}


def _by_device(prefix: str, trace: Trace) -> dict[str, Trace]:
    """Parts by which threads launch on which devices; threads that launch nothing belong to every part."""
    work = trace.device_events
    linked = work[work["call"] >= 0]
    threads = trace.calls["thread"].to_numpy()[linked["call"].to_numpy()]
    pairs = pd.DataFrame({"thread": threads, "device": linked["device"].astype(object).to_numpy()})
    together = _components(pairs.drop_duplicates())
    if len(together) < 2:
        return {prefix: trace}
    events, out = trace.events, {}
    launching = set(pairs["thread"])
    on_device = events["cat"].isin(list(DEVICE_CATEGORIES))
    for own_threads, devices in together:
        theirs = events["thread"].isin(own_threads) | ~events["thread"].isin(launching)
        of_rank = (on_device & events["device"].isin(devices)) | (~on_device & theirs)
        name = f"{prefix} device {', '.join(sorted(devices))}".strip()
        out[name] = _part(trace, events[of_rank])
    return out


def _components(pairs: pd.DataFrame) -> list[tuple[set[int], set[str]]]:
    """Threads and devices that hold together, by the name of the first device."""
    out: list[tuple[set[int], set[str]]] = []
    for thread, device in zip(pairs["thread"].tolist(), pairs["device"].tolist(), strict=True):
        touched = [part for part in out if thread in part[0] or device in part[1]]
        joined = (
            {thread}.union(*(part[0] for part in touched)),
            {device}.union(*(part[1] for part in touched)),
        )
        out = [part for part in out if part not in touched] + [joined]
    return sorted(out, key=lambda part: min((len(name), name) for name in part[1]))


def _part(trace: Trace, events: pd.DataFrame) -> Trace:
    return replace(trace, events=events.reset_index(drop=True), events_total=len(events))
