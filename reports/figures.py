"""The report's pictures. They draw what they are given and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator

from profiling.stats import Interval
from reports.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MARKERS,
    ORANGE,
    PAPER,
    PURPLE,
    SERIES,
    SKY,
    VERMILION,
    WIDTH_IN,
    styled,
)

KIND_COLOURS = {
    **dict.fromkeys(("compute", "busy", "kernel"), BLUE),
    **dict.fromkeys(("overhead", "gap_during_call", "during_call"), ORANGE),
    **dict.fromkeys(("python", "gap_before_call", "before_call"), VERMILION),
    **dict.fromkeys(("gap_after_call", "after_call", "op"), SKY),
    **dict.fromkeys(("graph", "lead_in"), GREEN),
    **dict.fromkeys(("memcpy", "memset", "tail", "sync"), PURPLE),
    **dict.fromkeys(("unknown", "gap_unknown"), GREY),
}
HELD = {"weights": BLUE, "cache": SKY, "mask": ORANGE, "artefact": VERMILION}


@styled
def ladder(bars: Sequence[tuple[str, float, float | None]], context: int) -> Figure:
    """`bars`: variant, median step in ms, memory floor in ms."""
    figure, axes = _rows([name for name, _, _ in bars])
    longest = max(step for _, step, _ in bars)
    for row, (_, step, floor) in enumerate(bars):
        reached = min(step, floor or 0.0)
        axes.barh(row, reached, 0.64, color=BLUE)
        axes.barh(row, step - reached, 0.64, left=reached, color=ORANGE)
        if floor is not None:
            axes.plot([floor, floor], [row - 0.42, row + 0.42], color=INK, linewidth=1.6)
        text = _ms(step) if floor is None else f"{_ms(step)}  ({step / floor:.2f} x floor)"
        axes.text(max(step, floor or 0.0) + longest * 0.012, row, text, va="center", fontsize=8.5)
    axes.set_xlim(0, longest * 1.24)
    axes.set_xlabel(f"median step at context {context}, ms")
    handles = [Patch(color=BLUE, label="up to the memory floor"), Patch(color=ORANGE, label="above it")]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


@styled
def parts(stacks: Mapping[str, Mapping[str, float]]) -> Figure:
    """Per variant its parts in us."""
    figure, axes = _rows(list(stacks))
    used: dict[str, None] = {}
    for row, stack in enumerate(stacks.values()):
        left = 0.0
        for part, us in stack.items():
            axes.barh(
                row, us / 1e3, 0.64, left=left, color=KIND_COLOURS[part], edgecolor=PAPER, linewidth=0.4
            )
            left += us / 1e3
            if us:
                used[part] = None
        axes.text(left, row, f" {_ms(left)}", va="center", fontsize=8.5)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.05)
    axes.set_xlabel("per traced step, the profiler's cost included, ms")
    _key(figure, list(used))
    return figure


@styled
def context(curves: Mapping[str, Sequence[tuple[int, float]]], floors: Sequence[tuple[int, float]]) -> Figure:
    """Per variant (tokens in the cache, ms); `floors` likewise."""
    figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
    axes = figure.subplots()
    ordered = sorted(curves.items(), key=lambda curve: -curve[1][-1][1])
    for number, (name, points) in enumerate(ordered):
        axes.plot(*zip(*points, strict=True), label=name, **_line(number))
    if floors:
        axes.plot(*zip(*floors, strict=True), label="memory floor", color=INK, linestyle="--", linewidth=1.4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sorted({n for points in curves.values() for n, _ in points}))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if _few(axes, value) else ""))
    axes.set_xlabel("context: tokens in the cache (log)")
    axes.set_ylabel("median step, ms (log)")
    figure.legend(loc="outside right upper", fontsize=8.5)
    return figure


def _few(axes: Axes, value: float) -> bool:
    """On an axis shorter than a decade or two, 2 and 5 get a number as well."""
    low, high = axes.get_ylim()
    return high / low < 100 and f"{value:e}"[0] in "25"


@styled
def excess(curves: Mapping[str, Sequence[tuple[int, Interval]]]) -> Figure:
    """Per variant (width, excess in ms with its interval)."""
    figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
    axes = figure.subplots()
    ordered = sorted(curves.items(), key=lambda curve: -curve[1][-1][1].mid)
    for number, (name, points) in enumerate(ordered):
        widths, values = [w for w, _ in points], [e.mid for _, e in points]
        reach = [[e.mid - e.low for _, e in points], [e.high - e.mid for _, e in points]]
        axes.errorbar(widths, values, yerr=reach, label=name, elinewidth=0.8, **_line(number))
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xticks(sorted({w for points in curves.values() for w, _ in points}))
    axes.set_xlim(left=0)
    axes.set_xlabel("width of the model (same layers, same ops)")
    axes.set_ylabel("step less its own read, ms (95 % interval)")
    figure.legend(loc="outside right upper", fontsize=8.5)
    return figure


@styled
def price(bars: Mapping[str, tuple[float, Mapping[str, int | None]]]) -> Figure:
    """Per variant warm-up in s, and memory in bytes by what holds it."""
    figure = Figure(figsize=(WIDTH_IN, 1.3 + 0.3 * len(bars)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for row, (seconds, memory) in enumerate(bars.values()):
        left.barh(row, seconds, 0.64, color=BLUE)
        left.text(seconds, row, f" {seconds:.3g}", va="center", fontsize=8.5)
        start = 0.0
        for held, colour in HELD.items():
            size = (memory.get(f"{held}_bytes") or 0) / 1e6
            right.barh(row, size, 0.64, left=start, color=colour)
            start += size
    left.set_yticks(range(len(bars)), list(bars))
    left.invert_yaxis()
    left.set_xscale("log")
    left.set_xlim(right=left.get_xlim()[1] * 4)
    left.set_xlabel("warm-up, s (log)")
    right.set_xlabel("memory, MB")
    for axes in (left, right):
        axes.grid(axis="y", visible=False)
    handles = [Patch(color=colour, label=held) for held, colour in HELD.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


@styled
def timeline(data: Mapping[str, Any]) -> Figure:
    """See `profiling.timeline`; all steps on one time axis."""
    rows = [(step, row) for step in data["steps"] for row in step["rows"]]
    gaps = len(data["steps"]) - 1
    figure = Figure(figsize=(WIDTH_IN, 1.2 + 0.28 * (len(rows) + gaps)), layout="constrained")
    axes = figure.subplots()
    height, ticks, used = 0.0, [], dict[str, None]()
    for step in data["steps"]:
        for number, row in enumerate(step["rows"]):
            spans = [(start / 1e3, length / 1e3) for start, length, _, _ in row["bars"]]
            kinds = [data["kinds"][kind] for _, _, kind, _ in row["bars"]]
            colours = [KIND_COLOURS[kind] for kind in kinds]
            used |= dict.fromkeys(kinds)
            axes.broken_barh(spans, (height - 0.4, 0.8), facecolors=colours, linewidth=0, rasterized=True)
            ticks.append((height, f"{step['variant']}: {row['label']}" if number == 0 else row["label"]))
            height += 1
        axes.axvline(step["length_us"] / 1e3, color=INK, linewidth=0.8, linestyle=":")
        height += 1
    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    axes.set_ylim(height - 1.5, -0.6)
    axes.set_xlim(0, max(step["length_us"] for step in data["steps"]) / 1e3 * 1.01)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("ms from the step's start (dotted: a step's end); white is time outside ops")
    _key(figure, list(used))
    return figure


def _rows(names: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with one named row per variant, first on top."""
    figure = Figure(figsize=(WIDTH_IN, 1.1 + 0.3 * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.set_yticks(range(len(names)), list(names))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure, axes


def _key(figure: Figure, kinds: Sequence[str]) -> None:
    handles = [Patch(color=KIND_COLOURS[kind], label=kind.replace("_", " ")) for kind in kinds]
    figure.legend(handles=handles, loc="outside upper center", ncols=4)


def _line(number: int) -> dict[str, Any]:
    """Colour, marker and dash: no two lines share all three, and colour is never the only difference."""
    colours = len(SERIES)
    return {
        "color": SERIES[number % colours],
        "marker": MARKERS[(number + number // colours) % len(MARKERS)],
        "linestyle": ("-", ":", "-.")[number // colours % 3],
        "markersize": 4.5,
        "linewidth": 1.3,
    }


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"
