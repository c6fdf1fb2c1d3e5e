"""Host ops and how they nest: each instant of a thread belongs to the innermost op that covers it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiling.trace.names import OP_CATEGORIES, is_implicit, op_class

Int = npt.NDArray[np.int64]


def host_ops_of(events: pd.DataFrame) -> pd.DataFrame:
    """The `host_ops` table of `profiling.trace.Trace`."""
    rows = events[events["cat"].isin(list(OP_CATEGORIES))]
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
