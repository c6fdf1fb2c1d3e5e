"""Tables of the longest lists of a trace, from the `top` of `--json`: what the device is busy with, what it
waits for, and where the host waits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from profiling.results.record.page import Table
from reports.numbers import UNKNOWN, code

Entry = Mapping[str, Any]
GRAPHS_OWN = "next graph node"
"""What a gap between two nodes of one replay waited for."""
WAITED_FOR = {
    "before_call": "host to issue work",
    "during_call": "launch call",
    "after_call": "issued work to start",
    "unknown": "no launch call",
}
"""Others by the part of the gap that is largest."""
_ADDRESS = re.compile(r" of .* object at 0x[0-9a-f]+>")
MAX_LETTERS = 90  # of a name: templates of kernels run over pages


def tables(top: Entry, n_steps: int) -> list[Table]:
    """The tables of `top` that have a row, us and counts per step: sums over `n_steps` steps are divided."""
    families = [
        (row["family"], _site(row["sites"][0]), brief(row["us"]), brief(row["count"]))
        for row in top["families"]
    ]
    every = [
        Table(("busy with, per step", "most of it from", "us", "events"), families, text_columns=2),
        _gaps(top["gaps"], n_steps),
        _places("in no graph, per step", top["outside_graphs"]),
        _places("host waits for the device, per step", top["host_waits"]),
        _by_name("kernels by device time", "total_us", top["kernels"]),
        _by_name("host ops by own time", "self_us", top["host_ops"]),
    ]
    return [table for table in every if table.rows]


def _gaps(gaps: Sequence[Entry], n_steps: int) -> Table:
    rows = []
    for gap in gaps:
        times = (gap["total_us"] / n_steps, gap["count"] / n_steps, gap["length_us"])
        waited_for = str(gap["waited_for"])
        rows.append((_doing(gap), WAITED_FOR.get(waited_for, waited_for), *map(brief, times)))
    heads = ("longest gaps per step, what the host did", "waited for", "us", "gaps", "longest us")
    return Table(heads, rows, text_columns=2)


def _doing(gap: Entry) -> str:
    """What the host did; inside a graph, where that means nothing, between which nodes the gap is."""
    if gap["waited_for"] == GRAPHS_OWN:
        return f"{name_of(gap['after'])} to {name_of(gap['before'])}"
    return _place(gap["op"] or gap["call"], gap["frame"]) or "nothing recorded"


def _places(title: str, places: Sequence[Entry]) -> Table:
    rows = [(name_of(row["name"]), _site(row), brief(row["us"]), brief(row["count"])) for row in places]
    return Table((title, "called from", "us", "events"), rows, text_columns=2)


def _site(site: Entry) -> str:
    return _place(site["op"], site["module"]) or UNKNOWN


def _place(what: str | None, where: str | None) -> str:
    """An op or call and the module or frame around it; "" where neither is known."""
    return " in ".join([*([name_of(what)] if what else []), *([name_of(_inner(where))] if where else [])])


def _inner(place: str) -> str:
    """Of a path of modules, or of folders in a Python frame, the last two; of what is built in, its name."""
    mark = "/" if ".py(" in place else "."
    return _ADDRESS.sub(">", place) if place.startswith("<") else mark.join(place.split(mark)[-2:])


def _by_name(title: str, value: str, top: Sequence[Entry]) -> Table:
    rows = [
        (name_of(row["name"]), f"{row[value]:.1f}", str(row["count"]), brief(row["mean_us"])) for row in top
    ]
    return Table((title, value.replace("_", " "), "count", "mean us"), rows)


def name_of(name: str) -> str:
    """A kernel's, op's or frame's name, cut where it runs over pages."""
    name = name.removeprefix("void ")
    return code(name if len(name) <= MAX_LETTERS else f"{name[: MAX_LETTERS - 3]}...")


def brief(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
