"""The longest lists of a trace: kernels by device time, host ops by own time, gaps and what the host did in
them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from profiling.analysis.attribution import Attribution
from profiling.trace import Steps, Trace
from profiling.trace.devices import SPLIT, of_categories
from profiling.trace.names import CALL_CATEGORY, OP_CATEGORIES, PYTHON_CATEGORIES

Row = dict[str, str | float | None]
COVERS = 0.5
"""An op or frame explains a gap if it covers this share of it; of those that do, the shortest."""


def lists(
    trace: Trace, steps: Steps, attribution: Attribution, device: str | None, rows: int
) -> dict[str, list[Row]]:
    """The three lists over the whole trace, gaps over the steps, `rows` entries each; times in us."""
    return {
        "kernels": kernels(trace, device, rows) if device else [],
        "host_ops": host_ops(trace, rows),
        "gaps": gaps(trace, attribution, device, rows) if device else [],
    }


def kernels(trace: Trace, device: str, rows: int) -> list[Row]:
    """Device events by name, by summed time: `name`, `count`, `total_us`, `mean_us`."""
    work = trace.device_events
    work = work[work["device"] == device]
    return _by_name(work["name"], work["end_ns"] - work["start_ns"], rows, "total_us")


def host_ops(trace: Trace, rows: int) -> list[Row]:
    """Host ops by name, by own time (without the ops they call): `name`, `count`, `self_us`, `mean_us`."""
    ops = trace.host_ops
    return _by_name(ops["name"], ops["self_ns"], rows, "self_us")


def _by_name(names: pd.Series[Any], ns: pd.Series[int], rows: int, what: str) -> list[Row]:
    grouped = ns.groupby(names, observed=True).agg(["size", "sum"])
    grouped = grouped.sort_values("sum", ascending=False, kind="stable").head(rows)
    columns = (grouped.index.tolist(), grouped["size"].tolist(), grouped["sum"].tolist())
    return [
        {"name": str(name), "count": n, what: total / 1000, "mean_us": total / 1000 / n}
        for name, n, total in zip(*columns, strict=True)
    ]


def gaps(trace: Trace, attribution: Attribution, device: str, rows: int) -> list[Row]:
    """Longest waits of a device in the steps: `step`, `where`, `start_us`, `length_us`, `waited_for` (the
    largest part), `before` (the device event that ended it), and what the host did: `call`, `op`, `frame`,
    None where nothing covers it.
    """
    waits = attribution.waits[attribution.waits["device"] == device]
    length = waits["end_ns"] - waits["start_ns"]
    longest = waits.assign(length=length).sort_values("length", ascending=False, kind="stable").head(rows)
    host = _HostTimeline(trace)
    work_calls, threads = trace.device_events["call"].to_numpy(), trace.calls["thread"].to_numpy()
    out = []
    for gap in longest.to_dict("records"):
        ender = gap["ender"]
        call = int(work_calls[ender]) if ender >= 0 else -1
        thread = int(threads[call]) if call >= 0 else None
        largest = max(SPLIT, key=lambda part: gap[part])
        out.append(
            {
                "step": gap["step"],
                "where": gap["where"],
                "start_us": gap["start_ns"] / 1000,
                "length_us": gap["length"] / 1000,
                "waited_for": "end of step" if gap["where"] == "tail" else largest,
                "before": str(trace.device_events["name"].iat[ender]) if ender >= 0 else None,
                **host.doing(gap["start_ns"], gap["end_ns"], thread),
            }
        )
    return out


class _HostTimeline:
    """Finds what one host thread did in an interval."""

    def __init__(self, trace: Trace) -> None:
        self.kinds = {
            "call": of_categories(trace.events, CALL_CATEGORY),
            "op": trace.in_categories(OP_CATEGORIES),
        }
        self.kinds["frame"] = trace.in_categories(PYTHON_CATEGORIES)
        self.main = max(trace.calls["thread"].mode().tolist(), default=-1)

    def doing(self, start: int, end: int, thread: int | None) -> dict[str, str | None]:
        """The shortest call, op and Python frame that cover at least `COVERS` of [start, end) ns."""
        return {
            kind: self._covering(rows, start, end, self.main if thread is None else thread)
            for kind, rows in self.kinds.items()
        }

    def _covering(self, rows: pd.DataFrame, start: int, end: int, thread: int) -> str | None:
        begins, lasted = rows["ts_ns"].to_numpy(), rows["dur_ns"].to_numpy()
        covered = np.minimum(begins + lasted, end) - np.maximum(begins, start)
        good = np.flatnonzero((covered >= COVERS * (end - start)) & (rows["thread"].to_numpy() == thread))
        return str(rows["name"].iloc[good[np.argmin(lasted[good])]]) if len(good) else None
