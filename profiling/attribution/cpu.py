"""A step on the host thread that runs it: own times by class of op. The parts sum to the step's window, in
integer ns.

Ops nest (`aten::addmm` has children), so each instant belongs to the innermost op that covers it. Outside
every op the interpreter runs: "python". Compiled code shows its kernels only when they were built with the
kernel-profile option; what no event covers inside it is "unknown".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiling.trace.load import Trace
from profiling.trace.names import OP_CATEGORIES, is_implicit, op_class

Int = npt.NDArray[np.int64]
PARTS = ("compute", "overhead", "python", "unknown")


def host_ops(trace: Trace) -> pd.DataFrame:
    """Host ops by thread and start, an op ahead of those it calls: `name`, `thread`, `start_ns`, `end_ns`,
    `parent` (row, -1: none), `self_ns`, `class` (see `names.op_class`), `recorded` (a recording of the step
    would hold it: it has a kernel and no op above it has one).
    """
    rows = trace.in_categories(OP_CATEGORIES)
    start = rows["ts_ns"].to_numpy()
    end = start + rows["dur_ns"].to_numpy()
    thread = rows["thread"].to_numpy()
    order = np.lexsort((-end, start, thread))
    start, end, thread = start[order], end[order], thread[order]
    parent, end = nest(thread, start, end)
    nested = parent >= 0
    own = (end - start) - np.bincount(parent[nested], (end - start)[nested], len(start)).astype(np.int64)
    names = rows["name"].cat.categories
    codes = rows["name"].cat.codes.to_numpy()[order]
    classes = np.array([op_class(str(n)) for n in names], dtype=object)
    if "unknown" in classes[np.unique(codes)]:
        classes[classes == "region"] = "overhead"
    classes[classes == "region"] = "unknown"
    implicit = np.array([is_implicit(str(n)) for n in names], np.bool_)[codes]
    return pd.DataFrame(
        {
            "name": rows["name"].array[order],
            "thread": thread,
            "start_ns": start,
            "end_ns": end,
            "parent": parent,
            "self_ns": own,
            "class": classes[codes],
            "recorded": _recorded(parent, implicit),
        }
    )


def nest(thread: Int, start: Int, end: Int) -> tuple[Int, Int]:
    """Row of the innermost op around each one (-1 for none), and its end: no later than that op's own.

    Rows by thread, start, and longest first. Ops of one thread nest; where they overlap by a rounding
    error, or because the file is not what it should be, the inner one is cut.
    """
    parent = np.full(len(start), -1, np.int64)
    cut = end.copy()
    stack: list[tuple[int, int]] = []
    current = None
    for row, (t, s, e) in enumerate(zip(thread.tolist(), start.tolist(), end.tolist(), strict=True)):
        if t != current:
            stack, current = [], t
        while stack and stack[-1][0] <= s:
            stack.pop()
        if stack:
            outer_end, parent[row] = stack[-1]
            if e > outer_end:
                cut[row] = e = outer_end
        stack.append((e, row))
    return parent, cut


def _recorded(parent: Int, implicit: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    open_above = np.ones(len(parent), np.bool_)
    for row, above in enumerate(parent.tolist()):
        if above >= 0:
            open_above[row] = open_above[above] and implicit[above]
    return open_above & ~implicit


def parts_ns(ops: pd.DataFrame | None, start: int, end: int) -> dict[str, int]:
    """Parts of the window [start, end) on one thread; `ops`: that thread's `host_ops`, None where it has
    none.

    An op that crosses the window's edge counts with what lies inside, as do the ops in it.
    """
    if ops is None:  # nothing was recorded there, which does not make it Python's time
        return dict.fromkeys(PARTS, 0) | {"unknown": end - start}
    behind = int(np.searchsorted(ops["start_ns"].to_numpy(), end, "left"))
    candidates = ops.iloc[:behind]
    inside = candidates[candidates["end_ns"] > start]
    lasted = np.minimum(inside["end_ns"].to_numpy(), end) - np.maximum(inside["start_ns"].to_numpy(), start)
    position = dict(zip(inside.index.tolist(), range(len(inside)), strict=True))
    above = np.array([position.get(row, -1) for row in inside["parent"].tolist()], np.int64)
    nested = above >= 0
    own = lasted - np.bincount(above[nested], lasted[nested], len(inside)).astype(np.int64)
    classes = inside["class"].to_numpy()
    out = {part: int(own[classes == part].sum()) for part in PARTS}
    return out | {"python": int(end - start - lasted[~nested].sum())}
