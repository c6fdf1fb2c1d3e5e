"""The report's pictures. They draw what they are given and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from reports.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PAPER,
    PURPLE,
    SKY,
    VERMILION,
    VIOLET,
    WIDTH_IN,
    YELLOW,
    styled,
)
from reports.numbers import number

KIND_COLOURS = {
    **dict.fromkeys(("compute", "busy", "kernel"), BLUE),
    **dict.fromkeys(("overhead", "gap_during_call", "during_call"), ORANGE),
    **dict.fromkeys(("python", "gap_before_call", "before_call"), VERMILION),
    **dict.fromkeys(("gap_after_call", "after_call"), SKY),
    **dict.fromkeys(("graph", "lead_in"), GREEN),
    **dict.fromkeys(("memcpy", "memset"), YELLOW),
    **dict.fromkeys(("unknown", "gap_unknown"), GREY),
    "tail": PURPLE,
    "sync": VIOLET,
    "op": PALE,
}
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
HELD = {"weights": BLUE, "cache": SKY, "mask": ORANGE, "artefact": VERMILION}


@styled
def ladder(bars: Sequence[tuple[str, float, float | None, float | None]], context: int) -> Figure:
    """`bars`: variant, median step in ms, memory floor in ms, ratio of the two."""
    figure, axes = _rows([name for name, *_ in bars])
    longest = max(step for _, step, *_ in bars)
    for row, (_, step, floor, ratio) in enumerate(bars):
        reached = min(step, floor or 0.0)
        axes.barh(row, reached, 0.64, color=BLUE)
        axes.barh(row, step - reached, 0.64, left=reached, color=ORANGE)
        if floor is not None:
            axes.plot([floor, floor], [row - 0.42, row + 0.42], color=INK, linewidth=1.6)
        text = _ms(step) if ratio is None else f"{_ms(step)}  ({number(ratio)} x floor)"
        axes.text(max(step, floor or 0.0) + longest * 0.012, row, text, va="center", fontsize=8.5)
    axes.set_xlim(0, longest * 1.26)
    axes.set_xlabel(f"median step at context {context}, ms")
    handles = [Patch(color=BLUE, label="up to the memory floor"), Patch(color=ORANGE, label="above it")]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


@styled
def parts(stacks: Mapping[str, Mapping[str, float]]) -> Figure:
    """Per variant its parts in ms, and `step`, their sum."""
    figure, axes = _rows(list(stacks))
    used: dict[str, None] = {}
    for row, stack in enumerate(stacks.values()):
        left = 0.0
        for part, ms in stack.items():
            if part != "step" and ms:
                axes.barh(row, ms, 0.64, left=left, color=colour(part), edgecolor=PAPER, linewidth=0.4)
                left += ms
                used[part] = None
        axes.text(left, row, f" {_ms(stack['step'])}", va="center", fontsize=8.5)
    axes.set_xlim(0, max(stack["step"] for stack in stacks.values()) * 1.12)
    axes.set_xlabel("per traced step, the profiler's cost included, ms")
    _key(figure, list(used))
    return figure


@styled
def price(bars: Mapping[str, tuple[float, Mapping[str, int | None]]]) -> Figure:
    """Per variant warm-up in s, and memory in bytes by what holds it."""
    figure = Figure(figsize=(WIDTH_IN, 1.3 + 0.3 * len(bars)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for row, (seconds, memory) in enumerate(bars.values()):
        left.barh(row, seconds, 0.64, color=BLUE)
        left.text(seconds, row, f" {number(seconds)} s", va="center", fontsize=8.5)
        start = 0.0
        for held, shade in HELD.items():
            size = (memory.get(f"{held}_bytes") or 0) / 1e6
            if size:  # an empty bar would hold the axis at its edge
                right.barh(row, size, 0.64, left=start, color=shade)
            start += size
    left.set_yticks(range(len(bars)), list(bars))
    left.invert_yaxis()
    left.set_xscale("log")
    left.set_xlim(right=left.get_xlim()[1] * 6)
    left.xaxis.set_major_formatter(PLAIN)
    left.set_xlabel("warm-up, s (logarithmic)")
    right.set_xlabel("memory, MB")
    right.tick_params(axis="y", length=0)
    for axes in (left, right):
        axes.grid(axis="y", visible=False)
    handles = [Patch(color=shade, label=held) for held, shade in HELD.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return figure


@styled
def timeline(data: Mapping[str, Any]) -> Figure:
    """See `profiling.analysis.timeline`; all steps on one time axis, the innermost op on top."""
    lines = sum(1 + len(step["rows"]) for step in data["steps"])
    figure = Figure(figsize=(WIDTH_IN, 1.3 + 0.42 * lines), layout="constrained")
    axes = figure.subplots()
    height, labels, used = 0, [], dict[str, None]()
    for step in data["steps"]:
        outside = (
            [] if step["rows"] else [[0, step["length_us"], None, None]]
        )  # beside a device it is no part
        host = [bar for depth in [outside, *step["host"]] for bar in depth]
        for label, bars in [(step["variant"], host), *((r["label"], r["bars"]) for r in step["rows"])]:
            kinds = ["python" if bar[2] is None else data["kinds"][bar[2]] for bar in bars]
            spans = [(bar[0] / 1e3, bar[1] / 1e3) for bar in bars]
            shades = [colour(kind) for kind in kinds]
            axes.broken_barh(spans, (height - 0.38, 0.76), facecolors=shades, linewidth=0, rasterized=True)
            used |= dict.fromkeys(kinds)
            labels.append(label)
            height += 1
    axes.set_yticks(range(height), labels)
    axes.set_ylim(height - 0.4, -0.6)
    axes.set_xlim(0, max(step["length_us"] for step in data["steps"]) / 1e3 * 1.01)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("ms from the step's start")
    _key(figure, list(used))
    return figure


def colour(kind: str) -> str:
    """Of a part, an op's class, a call or a device event."""
    return KIND_COLOURS.get(kind, GREY)


def _rows(names: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with one named row per variant, first on top."""
    figure = Figure(figsize=(WIDTH_IN, 1.1 + 0.3 * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.set_yticks(range(len(names)), list(names))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure, axes


def _key(figure: Figure, kinds: Sequence[str]) -> None:
    handles = [Patch(color=colour(kind), label=kind.replace("_", " ")) for kind in kinds]
    figure.legend(handles=handles, loc="outside upper center", ncols=4)


def _ms(value: float) -> str:
    return f"{number(value)} ms"
