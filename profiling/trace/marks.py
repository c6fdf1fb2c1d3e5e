"""Where the steps of a trace are: by its own marks, by an engine's annotations, by repetition, or the whole
trace.

The source that was used is always named, and what no step covers is counted in the notes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from profiling.trace import repetition
from profiling.trace.devices import matching
from profiling.trace.names import (
    ANNOTATION_CATEGORIES,
    ENGINE_STEP,
    NOT_STEPS,
    OP_CATEGORIES,
    PROFILER_STEP,
    PYTHON_CATEGORIES,
)
from variants.errors import UserError

if TYPE_CHECKING:
    from profiling.trace.file import Trace

_STEP_LIKE = re.compile(r"(?i)(?:^|[^a-z])(?:step|decode|iter(?:ation)?|token)(?:[^a-z]|$)")
_LAYER_LIKE = re.compile(
    r"(?i)(?:^|[^a-z])(?:layers?|blocks?|attn|attention|self_attn|mlp|ffn|moe|experts?|norm|rmsnorm|layernorm"
    r"|lm_head|embed(?:ding)?s?)(?:[^a-z]|$)"
)
"""Names of a model's parts: what they bracket is less than a step."""
ROUNDING_SHARE = 0.05
"""Of a step: marks that overlap by more are of steps in flight at once."""
_COLUMNS = ["name", "start_ns", "end_ns", "thread", "tid"]


@dataclass(frozen=True)
class Steps:
    """Disjoint step windows in time order.

    `table`: `name`, `start_ns`, `end_ns` (host window), `thread` and `tid` of the mark; `source` says where
    they come from.
    """

    table: pd.DataFrame
    source: str
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.table)

    def windows(self) -> list[tuple[int, int, int]]:
        """Per step `start_ns`, `end_ns`, `thread`."""
        columns = (self.table[key].tolist() for key in ("start_ns", "end_ns", "thread"))
        return list(zip(*columns, strict=True))


def steps(trace: Trace, pattern: str | None = None) -> Steps:
    """The steps of a trace. `pattern`: name or regular expression of the annotations, ops or functions that
    bracket one.

    Without it: ProfilerStep marks, else annotations of known engines, else other repeated annotations that
    hold most of the launches, else repetition in the launches (without a device: in the ops), else the
    whole trace as one step.
    """
    if pattern is not None:
        return _by_pattern(trace, pattern)
    marks = trace.in_categories(ANNOTATION_CATEGORIES | OP_CATEGORIES)
    marks = marks[matching(marks["name"], PROFILER_STEP)]
    if len(marks):
        return _finish(trace, _windows(marks), "ProfilerStep marks")
    annotations = _windows(trace.in_categories(ANNOTATION_CATEGORIES))
    chosen = annotations[annotations["name"].str.fullmatch(ENGINE_STEP)]
    if len(chosen):
        return _finish(trace, chosen, f"engine annotations like {str(chosen['name'].iat[0])[:40]!r}")
    repeated = _by_repeated_annotation(trace, annotations) or _by_repetition(trace)
    return repeated or _whole(trace)


def _windows(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "name": rows["name"].astype(object),
            "start_ns": rows["ts_ns"],
            "end_ns": rows["ts_ns"] + rows["dur_ns"],
            "thread": rows["thread"],
            "tid": rows["tid"].astype(object),
            "annotation": rows["cat"].isin(list(ANNOTATION_CATEGORIES)),
        }
    ).astype({"name": object})


def _by_pattern(trace: Trace, pattern: str) -> Steps:
    rows = _windows(trace.in_categories(ANNOTATION_CATEGORIES | OP_CATEGORIES | PYTHON_CATEGORIES))
    chosen = rows[rows["name"] == pattern]
    if chosen.empty:
        try:
            chosen = rows[rows["name"].str.contains(re.compile(pattern))]
        except re.error as error:
            raise UserError(f"--step {pattern!r} is not a regular expression: {error}") from error
    if chosen.empty:
        known = sorted(set(rows.loc[rows["annotation"], "name"]))[:8]
        raise UserError(
            f"{trace.path}: nothing is named like --step {pattern!r}; "
            f"annotations in the trace: {', '.join(known) or 'none'}"
        )
    return _finish(trace, chosen, f"--step {pattern}")


def _by_repeated_annotation(trace: Trace, annotations: pd.DataFrame) -> Steps | None:
    """Annotations that differ in digits only and hold at least half of the launches (without launches: of
    the ops).
    """
    usable = annotations[~annotations["name"].str.contains(NOT_STEPS)]
    launches = _launch_starts(trace)
    candidates = []
    for family, group in usable.groupby(_families(usable["name"])):
        windows = _disjoint(group)
        step_like = _STEP_LIKE.search(str(family)) is not None
        if not step_like and _is_part(str(family), group["name"]):
            continue
        if len(launches) and (len(windows) >= 2 or step_like):
            share = _share_inside(launches, windows)
            if share >= 0.5:
                candidates.append((not step_like, len(windows), -share, str(family), group))
    if not candidates:
        return None
    *_, family, group = min(candidates, key=lambda c: c[:4])
    return _finish(trace, group, f"repeated annotation {family!r}")


def _families(names: pd.Series[Any]) -> pd.Series[Any]:
    """Names without what counts in them."""
    return names.str.replace(r"\d+", "#", regex=True)


def _is_part(family: str, names: pd.Series[Any]) -> bool:
    """Whether annotations bracket parts of a step: layers by name, or numbers that begin anew each step."""
    times = names.value_counts()
    return _LAYER_LIKE.search(family) is not None or (len(times) > 1 and int(times.min()) > 1)


def _launch_starts(trace: Trace) -> np.ndarray:
    calls = trace.calls
    launches = calls.loc[calls["kind"].isin(["kernel", "graph"]), "start_ns"].to_numpy()
    return launches if len(launches) else np.sort(trace.in_categories(OP_CATEGORIES)["ts_ns"].to_numpy())


def _share_inside(starts: np.ndarray, windows: pd.DataFrame) -> float:
    inside = np.searchsorted(starts, windows["end_ns"]) - np.searchsorted(starts, windows["start_ns"])
    return float(inside.sum()) / len(starts)


def _outermost(rows: pd.DataFrame) -> pd.DataFrame:
    """Windows that begin in no other one, by start."""
    rows = rows.sort_values(["start_ns", "end_ns"], ascending=[True, False], kind="stable")
    reach = np.maximum.accumulate(rows["end_ns"].to_numpy()) if len(rows) else rows["end_ns"].to_numpy()
    start = rows["start_ns"].to_numpy()
    return rows[np.concatenate([[True], start[1:] >= reach[:-1]])] if len(rows) else rows


def _disjoint(rows: pd.DataFrame) -> pd.DataFrame:
    """Windows of one thread that lie in no other one, by start; those that overlap in part are cut where
    the next begins.

    The next one is a step too if it is named alike, or has most of its time behind the other's end; else it
    is a part of it that a rounding error made stick out.
    """
    rows = rows.sort_values(["start_ns", "end_ns"], ascending=[True, False], kind="stable")
    family = _families(rows["name"]).tolist()
    chosen: list[int] = []
    ends = rows["end_ns"].tolist()
    for row, (start, end) in enumerate(zip(rows["start_ns"].tolist(), rows["end_ns"].tolist(), strict=True)):
        if chosen and start < (held := ends[chosen[-1]]):
            if end <= held or (family[row] != family[chosen[-1]] and 2 * (held - start) > end - start):
                continue
            ends[chosen[-1]] = start
        chosen.append(row)
    return rows.iloc[chosen].assign(end_ns=[ends[row] for row in chosen])


def _finish(trace: Trace, rows: pd.DataFrame, source: str) -> Steps:
    """Each thread's outermost windows, with notes on every window and launch that they leave out."""
    notes = []
    alone = pd.concat([_disjoint(group) for _, group in rows.groupby("thread")])
    if len(alone) < len(rows):
        notes.append(f"{len(rows) - len(alone)} annotations inside another step's are counted as that step")
    alone, cuts = _ends(rows, alone)
    notes += cuts
    if len(_outermost(alone)) < len(alone):
        main = _busiest_thread(trace, alone)
        others = int((alone["thread"] != main).sum())
        alone = alone[alone["thread"] == main]
        notes.append(f"{others} step marks on other threads overlap these and are left out")
    table = alone.sort_values("start_ns", kind="stable")
    calls = trace.calls
    launches = calls.loc[calls["kind"].isin(["kernel", "graph"]), "start_ns"].to_numpy()
    outside = len(launches) - round(_share_inside(launches, table) * len(launches)) if len(launches) else 0
    if outside:
        notes.append(f"{outside} of {len(launches)} kernel and graph launches lie outside every step")
    return Steps(table[_COLUMNS].reset_index(drop=True), source, notes)


def _ends(rows: pd.DataFrame, alone: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The windows `alone` of `rows` whose ends are known, and what was done to them.

    A mark that overlaps the next one by more than a rounding error does not end with its step: where the last
    one ends is unknown then.
    """
    overlap = rows["end_ns"].loc[alone.index] - alone["end_ns"]
    n, most = int((overlap > 0).sum()), int(overlap.max())
    if not n:
        return alone, []
    notes = [f"{n} step marks overlap the next one, by up to {most / 1000:g} us, and are cut where it begins"]
    if most > ROUNDING_SHARE * (alone["end_ns"] - alone["start_ns"]).median():
        last = alone.groupby("thread")["start_ns"].transform("max") == alone["start_ns"]
        alone = alone[~last]
        notes.append("the last one is left out, since what would cut it is not in the trace")
    return alone, notes


def _busiest_thread(trace: Trace, rows: pd.DataFrame) -> int:
    """The thread whose windows hold the most launches (without launches: ops; without ops: windows)."""
    starts = _launch_starts(trace)
    held = {
        thread: (_share_inside(starts, rows[rows["thread"] == thread]) if len(starts) else 0.0)
        for thread in rows["thread"].unique().tolist()
    }
    busiest: int = max(held, key=lambda thread: (held[thread], int((rows["thread"] == thread).sum())))
    return busiest


def _by_repetition(trace: Trace) -> Steps | None:
    """Windows of one period each, in the launches of the busiest thread, or in its outermost ops where
    there are none.
    """
    calls = trace.calls
    launches = calls[calls["kind"].isin(["kernel", "graph"])]
    if len(launches):
        what, rows = "launches", launches[launches["thread"] == launches["thread"].mode().iat[0]]
        first_work = trace.device_events.drop_duplicates("call").set_index("call")["name"].astype(object)
        keys = first_work.reindex(rows.index).fillna(rows["name"].astype(object)).to_numpy()
    else:
        ops = _windows(trace.in_categories(OP_CATEGORIES))
        if ops.empty:
            return None
        what, rows = "ops", _outermost(ops[ops["thread"] == ops["thread"].mode().iat[0]])
        keys = rows["name"].to_numpy()
    starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    bounds = repetition.find(pd.factorize(keys)[0], starts, ends)
    if bounds is None:
        return None
    at, period = bounds[:-1], int(np.median(np.diff(bounds)))
    table = pd.DataFrame(
        {
            "name": [f"repetition {i + 1}" for i in range(len(at))],
            "start_ns": starts[at],
            "end_ns": np.append(starts[at[1:]], ends[at[-1] : bounds[-1]].max()),
            "thread": rows["thread"].iat[0],
            "tid": None,
        }
    )
    around = ((int(bounds[0]), "before"), (len(rows) - int(bounds[-1]), "after"))
    notes = [f"{n} {what} {where} the repeating part" for n, where in around if n]
    more = int((np.diff(bounds) > period).sum())
    if more:
        notes.append(f"{more} of {len(at)} repetitions hold more than the {period} {what} of the others")
    return Steps(table, f"repetition of {period} {what}", notes)


def _whole(trace: Trace) -> Steps:
    work, calls = trace.device_events, trace.calls
    launches = calls[calls["kind"].isin(["kernel", "graph", "memcpy", "memset"])]
    spans = pd.concat([launches[["start_ns", "end_ns"]], work[["start_ns", "end_ns"]]])
    if spans.empty:
        spans = _windows(trace.in_categories(OP_CATEGORIES | ANNOTATION_CATEGORIES))
    if spans.empty:
        return Steps(pd.DataFrame(columns=_COLUMNS), "nothing to take steps from")
    row = {
        "name": "whole trace",
        "start_ns": int(spans["start_ns"].min()),
        "end_ns": int(spans["end_ns"].max()),
    }
    threads = (launches if len(launches) else trace.in_categories(OP_CATEGORIES))["thread"]
    row |= {"thread": threads.mode().iat[0] if len(threads) else -1, "tid": None}
    return Steps(pd.DataFrame([row])[_COLUMNS], "whole trace")
