"""Writes what `experiments.explain` found: explain.json, report.md, and a picture of one step per file.

Needs nothing but that object: no torch, no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import orjson
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from variants.errors import UserError

COLOURS = {
    "op": "#9aa5b1",
    "python": "#efe3b8",
    "compute": "#2c6e49",
    "overhead": "#d68c45",
    "unknown": "#b8b8b8",
    "kernel": "#2c6e49",
    "graph": "#145c9e",
    "memcpy": "#7b5ea7",
    "memset": "#b79ad1",
    "sync": "#111111",
    "before_call": "#c8553d",
    "during_call": "#f2a541",
    "after_call": "#8fb8de",
    "tail": "#d9d9d9",
    "empty": "#d9d9d9",
}
MEANING = {
    "op": "host op",
    "python": "Python outside ops",
    "compute": "compute op",
    "overhead": "view, allocation, dispatch",
    "unknown": "unknown",
    "kernel": "kernel or its launch",
    "graph": "graph launch",
    "memcpy": "copy",
    "memset": "fill",
    "sync": "host waits for the device",
    "before_call": "wait: not issued yet",
    "during_call": "wait: inside the launch call",
    "after_call": "wait: issued, not started",
    "tail": "after the last device event",
    "empty": "device did nothing",
}


def write(folder: Path, answer: dict[str, Any], pictures: Sequence[dict[str, Any]]) -> None:
    """Write the report's folder; UserError where it cannot be written. Each file replaces an older one
    whole.
    """
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        drawn = []
        for number, (entry, picture) in enumerate(zip(answer["files"], pictures, strict=False)):
            name = f"figures/step_{number + 1}.png"
            if picture and picture["rows"]:
                _replace(folder / name, lambda path, p=picture, e=entry: draw(p, e, path))
            drawn.append(name if picture and picture["rows"] else None)
        _replace(folder / "explain.json", lambda path: path.write_bytes(_dump(answer)))
        _replace(folder / "report.md", lambda path: path.write_text(markdown(answer, drawn)))
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror or error})") from error


def _dump(value: Any) -> bytes:
    return orjson.dumps(
        value, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    )


def _replace(path: Path, make: Any) -> None:
    temporary = path.with_name(f".{path.name}.partial{path.suffix}")
    try:
        make(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def draw(picture: dict[str, Any], entry: dict[str, Any], path: Path) -> None:
    """One step: a row each for host ops, calls, device streams and waits, on one time axis."""
    rows = picture["rows"]
    scale, unit = (1000, "ms") if picture["length_us"] >= 10_000 else (1, "us")
    figure, axes = plt.subplots(figsize=(11, 1.5 + 0.45 * len(rows)), layout="constrained")
    used: dict[str, None] = {}
    for height, row in enumerate(reversed(rows)):
        _draw_row(axes, row["bars"], height, scale, picture["length_us"])
        used |= dict.fromkeys(kind for _, _, kind in row["bars"])
    axes.set_yticks(range(len(rows)), [row["label"] for row in reversed(rows)])
    axes.set_xlim(0, picture["length_us"] / scale)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    for edge in picture["window_us"]:
        axes.axvline(edge / scale, color="#111111", linewidth=0.8, linestyle=":")
    axes.set_xlabel(f"{unit} (dotted: the step's host window)")
    axes.set_title(f"{picture['name'][:60]}: {entry['reading']}", loc="left", fontsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = [Patch(color=COLOURS[kind], label=MEANING[kind]) for kind in COLOURS if kind in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _draw_row(axes: Axes, bars: list[list[Any]], height: int, scale: float, length_us: float) -> None:
    """Bars in their order: an op lies over the one that calls it."""
    least = length_us / 3000  # a pixel, so that short kernels are seen
    spans = [(start / scale, max(lasted, least) / scale) for start, lasted, _ in bars]
    colours = [COLOURS[kind] for _, _, kind in bars]
    axes.broken_barh(spans, (height - 0.36, 0.72), facecolors=colours, linewidth=0)


def markdown(answer: dict[str, Any], drawn: Sequence[str | None]) -> str:
    """The report's text."""
    lines = ["# What sets the step", ""]
    for entry, name in zip(answer["files"], drawn, strict=False):
        lines += _file_section(entry, name)
    if "comparison" in answer:
        lines += _comparison_section(answer["comparison"])
    return "\n".join(lines) + "\n"


def _file_section(entry: dict[str, Any], drawn: str | None) -> list[str]:
    lines = [f"## {_code(entry['file'])}", "", f"**{entry['reading']}**: {entry['rule']}.", ""]
    if drawn:
        lines += [f"![One step, its host ops, calls, device work and waits]({drawn})", ""]
    lines += [f"Steps from {entry['step_source']}. Times in us; a step's parts sum to its interval.", ""]
    if entry["steps"]:
        parts = list(entry["steps"][0]["parts_us"])
        counted = ["wall_us", "interval_us", "kernel_launch_calls", "graph_launch_calls"]
        rows = [
            [_code(s["name"]), *(s[key] for key in counted), *(s["parts_us"].get(part) for part in parts)]
            for s in entry["steps"][:20]
        ]
        head = ["step", "host window", "interval", "kernel launches", "graph launches", *parts]
        lines += _table([h.replace("_", " ") for h in head], rows)
        if len(entry["steps"]) > 20:
            lines += [f"{len(entry['steps']) - 20} more steps are in explain.json.", ""]
    lines += _prediction_section(entry["prediction"])
    if entry["warnings"]:
        lines += ["Notes:", "", *(f"- {warning}" for warning in entry["warnings"]), ""]
    for title, key, columns in (
        ("Kernels by device time", "kernels", ["name", "count", "total_us", "mean_us"]),
        ("Host ops by own time", "host_ops", ["name", "count", "self_us", "mean_us"]),
        ("Longest gaps", "gaps", ["length_us", "where", "waited_for", "call", "op", "frame"]),
    ):
        if entry["top"][key]:
            lines += [f"### {title}", ""]
            lines += _table(
                [c.replace("_", " ") for c in columns],
                [
                    [_code(row[c]) if isinstance(row[c], str) else row[c] for c in columns]
                    for row in entry["top"][key]
                ],
            )
    return lines


def _prediction_section(prediction: dict[str, Any] | None) -> list[str]:
    if prediction is None:
        return []
    if prediction["replay_us"] is None:
        left = [[key.replace("_", " "), value] for key, value in prediction["left"].items()]
        return [
            f"{prediction['kind'].capitalize()}. What is left beside them, per step:",
            "",
            *_table(["what", "value"], left),
        ]
    low, mid, high = (prediction["replay_us"][key] for key in ("low", "mid", "high"))
    return [
        f"Predicted {prediction['kind']}: **{mid:.0f} us** ({low:.0f} to {high:.0f}) instead of "
        f"{prediction['step_us']:.0f} us, if",
        "",
        *(f"- {assumption}" for assumption in prediction["assumptions"]),
        "",
    ]


def _comparison_section(comparison: dict[str, Any]) -> list[str]:
    rows = [
        [key.replace("_", " "), row["this"], row["against"]] for key, row in comparison["per_step"].items()
    ]
    lines = [
        "## Comparison",
        "",
        f"**{comparison['finding']}**",
        "",
        *_table(["per step", "this", "against"], rows),
    ]
    if comparison["kernels"]:
        changed = [
            [
                _code(row["name"]),
                row["change"],
                *(
                    (row[side] or {}).get(key)
                    for key in ("per_step", "mean_us")
                    for side in ("against", "this")
                ),
            ]
            for row in comparison["kernels"][:30]
        ]
        head = ["kernel", "change", "per step before", "per step now", "mean us before", "mean us now"]
        lines += _table(head, changed)
    return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    aligned = ["---" if index == 0 else "---:" for index in range(len(head))]
    body = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(head) + " |", "| " + " | ".join(aligned) + " |", *body, ""]


def _cell(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 1 else f"{value:.1f}"
    return str(value)


def _code(name: str) -> str:
    """A name as code, short enough for a table; a bar would end the cell."""
    text = name.replace("|", "/").replace("`", "'")
    return f"`{text[:90]}…`" if len(text) > 90 else f"`{text}`"
