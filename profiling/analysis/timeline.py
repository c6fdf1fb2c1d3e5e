"""One step op by op, of anybody's trace or of a run's rungs, as small data that a page can draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from profiling.analysis.attribution import HOST, Attribution, attributed
from profiling.results.folder import RunFolder
from profiling.results.record import Measurement
from profiling.results.record.pictures import DrawnStep, OpBar, OpRow, Steps
from profiling.trace import Steps as Marks
from profiling.trace import Trace
from profiling.trace.devices import SPLIT
from profiling.trace.names import LAUNCH_KINDS
from variants.ladder import REPLAYS

MAX_BARS = 2500  # per row: beyond it the shortest are left out, which are narrower than a pixel
MAX_DEPTHS = 4  # of nested ops


def timeline_of(run: RunFolder[Measurement], drawn: Mapping[str, Steps | None] | None = None) -> Steps | None:
    """The median traced step of each rung that is compared; None where no trace is left.

    `drawn`: by rung those that are at hand; the others are read from their traces.
    """
    known = drawn or {}
    each = [
        known[name] if name in known else median_step(*attributed(run.traces / file), name)
        for name, file in _compared(run)
    ]
    return _on_one_axis([step for step in each if step is not None])


def median_step(
    trace: Trace,
    marks: Marks,
    attribution: Attribution,
    name: str = "",
    judged: Sequence[int] | None = None,
) -> Steps | None:
    """The (lower) median of the steps `judged` (None: all in which the device worked), under its own name or
    the one given; None without steps.
    """
    index = _Index()
    if judged is None:
        judged = attribution.judged(trace.main_device or HOST)
    step = _drawn(name, trace, marks, attribution, judged, index) if judged else None
    return Steps(index.kinds, index.names, [step]) if step else None


def _on_one_axis(each: Sequence[Steps]) -> Steps | None:
    index = _Index()
    steps = [index.renumbered(step, drawn) for drawn in each for step in drawn.steps]
    return Steps(index.kinds, index.names, steps) if steps else None


def _compared(run: RunFolder[Measurement]) -> list[tuple[str, str]]:
    """(variant, trace file): the rung that replays the step and its parent, else the baseline alone; and the
    first whose step is one launch.
    """
    files = {
        name: entry.trace.file
        for name, entry in run.record.variants.items()
        if entry.trace and (run.traces / entry.trace.file).exists()
    }
    replay = next((name for name in REPLAYS if name in files), None)
    names = [run.record.variants[replay].parent, replay] if replay else [run.record.baseline]
    names += [name for name, entry in run.record.variants.items() if entry.trace and entry.trace.phases][:1]
    return [(name, files[name]) for name in names if name in files]


class _Index:
    """Texts by number, since most names are many times in a step."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.names: list[str] = []
        self._seen: dict[tuple[int, str], int] = {}

    def number(self, among: list[str], text: str) -> int:
        key = (id(among), text)
        if key not in self._seen:
            self._seen[key] = len(among)
            among.append(text)
        return self._seen[key]

    def bars(self, rows: pd.DataFrame, kinds: list[str], start: int, end: int) -> list[OpBar]:
        """`rows` with `start_ns`, `end_ns`, `name`, cut at the picture's edges."""
        begins = np.maximum(rows["start_ns"].to_numpy(), start)
        lasts = np.minimum(rows["end_ns"].to_numpy(), end) - begins
        longest = np.sort(np.argsort(lasts)[-MAX_BARS:])
        names = rows["name"].astype(str).to_list()
        return [
            (
                (int(begins[i]) - start) / 1000,
                int(lasts[i]) / 1000,
                self.number(self.kinds, kinds[i]),
                self.number(self.names, names[i][:120]),
            )
            for i in longest.tolist()
        ]

    def renumbered(self, step: DrawnStep, of: Steps) -> DrawnStep:
        """A step whose bars' numbers were those of `of`."""

        def bars(row: Sequence[OpBar]) -> list[OpBar]:
            return [
                (start, us, self.number(self.kinds, of.kinds[kind]), self.number(self.names, of.names[name]))
                for start, us, kind, name in row
            ]

        host = [bars(depth) for depth in step.host]
        rows = [OpRow(row.label, bars(row.bars)) for row in step.rows]
        return DrawnStep(step.variant, step.length_us, host, rows)


def _drawn(
    name: str, trace: Trace, marks: Marks, attribution: Attribution, judged: Sequence[int], index: _Index
) -> DrawnStep:
    """The (lower) median of some steps, from the earlier to the later end of host and device."""
    device = trace.main_device
    spans = attribution.intervals[attribution.intervals["device"] == (device or HOST)]
    spans = spans.set_index("step").loc[list(judged)]
    by_length = (spans["end_ns"] - spans["start_ns"]).sort_values(kind="stable").index
    step = int(by_length[(len(by_length) - 1) // 2])
    start, end, thread = marks.windows()[step]
    start = min(start, int(spans.loc[[step], "start_ns"].iloc[0]))
    end = max(end, int(spans.loc[[step], "end_ns"].iloc[0]))
    edges = (start, end)
    host = _host(trace, thread, device is None, edges, index)
    rows = _device_rows(trace, attribution, device, step, edges, index) if device else []
    return DrawnStep(name or str(marks.table["name"].iat[step]), (end - start) / 1000, host, rows)


def _inside(rows: pd.DataFrame, start: int, end: int) -> pd.DataFrame:
    return rows[(rows["start_ns"] < end) & (rows["end_ns"] > start)]


def _host(
    trace: Trace, thread: int, classed: bool, edges: tuple[int, int], index: _Index
) -> list[list[OpBar]]:
    """Bars by depth. `classed`: ops compute themselves; beside a device they are only "op"."""
    ops = trace.host_ops
    depths = np.zeros(len(ops), np.int64)
    for row, above in enumerate(ops["parent"].tolist()):
        depths[row] = depths[above] + 1 if above >= 0 else 0
    ops = _inside(ops.assign(depth=depths)[ops["thread"] == thread], *edges)
    ops = ops if classed else ops.assign(**{"class": "op"})
    by_depth = ops[ops["depth"] < MAX_DEPTHS].groupby("depth")
    return [index.bars(group, group["class"].to_list(), *edges) for _, group in by_depth]


def _device_rows(
    trace: Trace, attribution: Attribution, device: str, step: int, edges: tuple[int, int], index: _Index
) -> list[OpRow]:
    """Launch calls, the device's streams, and its waits by cause."""
    calls = _inside(trace.calls[trace.calls["kind"].isin([*LAUNCH_KINDS, "sync"])], *edges)
    rows = [OpRow("launch calls", index.bars(calls, calls["kind"].to_list(), *edges))]
    work = trace.near.device_events  # on the clock of the waits
    work = _inside(work[work["device"] == device], *edges)
    for stream, group in work.groupby("stream", observed=True):
        bars = index.bars(group, group["kind"].astype(str).to_list(), *edges)
        rows.append(OpRow(f"stream {stream}", bars))
    waits = attribution.waits
    waits = waits[(waits["device"] == device) & (waits["step"] == step)]
    parts = []
    for wait in waits.to_dict("records"):
        at = int(wait["start_ns"])
        for part in SPLIT:
            parts.append((at, at + int(wait[part]), "tail" if wait["where"] == "tail" else part))
            at += int(wait[part])
    split = pd.DataFrame([p for p in parts if p[1] > p[0]], columns=["start_ns", "end_ns", "name"])
    rows.append(OpRow("device waits", index.bars(split, split["name"].to_list(), *edges)))
    return rows
