"""Who launched a kernel: the op and the module around its launch call.

A replay's kernels have no ops. Their names come from an eager trace of the same model: the n-th kernel of a
name in a step there is the n-th of that name in a step here, where both hold equally many; else a name says
where it comes from if it comes from one place only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiling.analysis.attribution import Attribution
from profiling.trace import Trace
from profiling.trace.devices import matching
from profiling.trace.file import nest
from profiling.trace.names import PYTHON_CATEGORIES

Int = npt.NDArray[np.int64]
_MODULE = re.compile(r"nn\.Module: (\w+?)(?:_\d+)?$")
_OWN_FRAME = re.compile(r"(?!<|torch/|.*(?:site|dist)-packages/torch/)[^<]*\.py\(\d+\): ")
"""A Python frame of the program, not of torch and not built in."""
_KEY = ["name", "of", "place"]


@dataclass(frozen=True)
class Sites:
    """`op` and `module` of every row of `Trace.calls` and, as `work`, of `Trace.device_events`; "" where
    nothing is known. `share`: of the kernels that a replay left nameless, how many an eager trace could name,
    None where none was given or none is nameless; `notes`: why that is none.
    """

    calls: pd.DataFrame
    work: pd.DataFrame
    share: float | None = None
    notes: list[str] = field(default_factory=list)


Eager: TypeAlias = tuple[Trace, Attribution, Sites]
"""A trace of the same model in which every kernel has a launch call of its own."""


def sites_of(trace: Trace, attribution: Attribution, eager: Eager | None) -> Sites:
    """The sites of calls and of what they launched; of what replays launched, those of an eager trace of the
    same model.
    """
    calls = call_sites(trace)
    work = _launched(trace, calls)
    if eager is None:
        return Sites(calls, work)
    here = _places(trace, attribution, pd.DataFrame(index=work.index))
    here = here[(trace.device_events["call_kind"] == "graph").to_numpy()[here.index]]
    if here.empty:
        why = "the steps replay no graph, so their kernels have names"
        return Sites(calls, work, None, [f"--names-from is not used: {why}"])
    other, its_attribution, its_sites = eager
    named = _matched(here, _places(other, its_attribution, its_sites.work))
    work.loc[here.index] = named
    share = float((named != "").any(axis=1).mean())
    why = "it is of another model, or its kernels are replayed too, or it has no ops"
    notes = [] if share else [f"--names-from {other.path} names none of the replayed kernels: {why}"]
    return Sites(calls, work, share, notes)


def call_sites(trace: Trace) -> pd.DataFrame:
    """Per row of `Trace.calls` the innermost `op` around it, and as `module` the path of modules by class,
    without those the innermost frame of the program; "" where the trace shows none.
    """
    calls = trace.calls
    thread, time = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    frames = _holding(trace.in_categories(PYTHON_CATEGORIES), thread, time)
    modules, programs = (_spans(frames[matching(frames["name"], what)]) for what in (_MODULE, _OWN_FRAME))
    modules = modules.assign(name=_paths(modules))
    out = pd.DataFrame({"op": "", "module": ""}, index=calls.index, dtype=object)
    for column, spans in (("op", trace.host_ops), ("module", programs), ("module", modules)):
        around = _innermost(spans, thread, time)
        inside = around >= 0
        out.loc[inside, column] = spans["name"].astype(object).to_numpy()[around[inside]]
    return out


def _launched(trace: Trace, of_calls: pd.DataFrame) -> pd.DataFrame:
    """Per device event the site of its launch call; "" for what a graph or no call launched."""
    work = trace.device_events
    out = pd.DataFrame({"op": "", "module": ""}, index=work.index, dtype=object)
    linked = ((work["call"] >= 0) & (work["call_kind"] != "graph")).to_numpy()
    out.loc[linked] = of_calls.to_numpy()[work["call"].to_numpy()[linked]]
    return out


def _holding(events: pd.DataFrame, thread: Int, time: Int) -> pd.DataFrame:
    """The events in which one of some times of their thread lies: few of a million Python frames."""
    of, start = events["thread"].to_numpy(), events["ts_ns"].to_numpy()
    end = start + events["dur_ns"].to_numpy()
    held = np.zeros(len(events), np.bool_)
    for one in np.unique(thread).tolist():
        here, times = of == one, np.sort(time[thread == one])
        held[here] = np.searchsorted(times, start[here]) < np.searchsorted(times, end[here])
    return events[held]


def _spans(events: pd.DataFrame) -> pd.DataFrame:
    """Events by thread and start, nested: `name`, `thread`, `start_ns`, `end_ns`, `parent`."""
    start = events["ts_ns"].to_numpy()
    end, thread = start + events["dur_ns"].to_numpy(), events["thread"].to_numpy()
    order = np.lexsort((-end, start, thread))
    parent, cut = nest(thread[order], start[order], end[order])
    columns = {"name": events["name"].astype(object).to_numpy()[order], "thread": thread[order]}
    return pd.DataFrame(columns | {"start_ns": start[order], "end_ns": cut, "parent": parent})


def _paths(modules: pd.DataFrame) -> list[str]:
    """Per module its class behind those of the modules around it."""
    paths: list[str] = []
    for name, parent in zip(modules["name"].tolist(), modules["parent"].tolist(), strict=True):
        module = _MODULE.sub(r"\1", name)
        paths.append(f"{paths[parent]}.{module}" if parent >= 0 else module)
    return paths


def _innermost(spans: pd.DataFrame, thread: Int, time: Int) -> Int:
    """Per time on a thread the row of the innermost span that holds it, -1 for none; `spans` by thread and
    start, with `parent`.
    """
    of, start, end, parent = (spans[key].to_numpy() for key in ("thread", "start_ns", "end_ns", "parent"))
    out = np.full(len(time), -1, np.int64)
    if not len(of):
        return out
    for one in np.unique(thread).tolist():
        first, behind = np.searchsorted(of, [one, one + 1])
        here = thread == one
        at = np.searchsorted(start[first:behind], time[here], "right") - 1
        out[here] = np.where(at >= 0, at + first, -1)
    while (ended := (out >= 0) & (end[out] <= time)).any():
        out[ended] = parent[out[ended]]
    return out


def _places(trace: Trace, attribution: Attribution, of_work: pd.DataFrame) -> pd.DataFrame:
    """Kernels of the steps with their sites: `place`, the how many-th of its `name` in its step, and `of` how
    many; rows as in `device_events`.
    """
    work, step = trace.device_events, attribution.owner
    rows = work.loc[(step >= 0) & (work["kind"] == "kernel"), ["name", "device"]].astype(object)
    in_step = rows.groupby([step[rows.index], rows["device"], rows["name"]])["name"]
    return rows.assign(place=in_step.cumcount(), of=in_step.transform("size")).join(of_work)


def _matched(here: pd.DataFrame, there: pd.DataFrame) -> pd.DataFrame:
    """`op` and `module` for the kernels `here` by those `there`; "" where they do not settle it."""
    known = there.drop_duplicates(_KEY).set_index(_KEY)[["op", "module"]]
    by_order = known.reindex(pd.MultiIndex.from_frame(here[_KEY])).set_axis(here.index)
    of_name = there.groupby("name")[["op", "module"]]
    always = of_name.first()[(of_name.nunique() == 1).all(axis=1)]  # launched from one place only
    return by_order.fillna(always.reindex(here["name"]).set_axis(here.index)).fillna("")
