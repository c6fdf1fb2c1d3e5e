"""How `explain` shows its answer on a console of 80 columns; everything comes from the object that `--json`
prints.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

PARTS = {
    "busy": "device busy",
    "lead_in": "before the first device event",
    "gap_before_call": "gap: host had not issued the next work",
    "gap_during_call": "gap: host inside the launch call",
    "gap_after_call": "gap: issued, device had not started",
    "gap_unknown": "gap: no launch call in the file",
    "tail": "after the last device event",
    "compute": "host: compute ops",
    "overhead": "host: views, allocation, dispatch",
    "python": "host: Python outside ops",
    "unknown": "host: no event covers it",
}


def show(out: Console, answer: dict[str, Any]) -> None:
    """Print one block per file, a table over all of them, and the comparison."""
    for entry in answer["files"]:
        _show_file(out, entry)
    if len(answer["files"]) > 1:
        _show_all(out, answer["files"])
    if "comparison" in answer:
        _show_comparison(out, answer["comparison"])


def judged(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps in which the main device worked; all, where none did."""
    return [s for s in entry["steps"] if s["parts_us"].get("busy")] or entry["steps"]


def mean_parts(entry: dict[str, Any]) -> dict[str, float]:
    """Parts of the judged steps, mean in us."""
    rows = [step["parts_us"] for step in judged(entry)]
    return {part: fmean(row.get(part, 0.0) for row in rows) for part in rows[0]} if rows else {}


def _show_file(out: Console, entry: dict[str, Any]) -> None:
    out.rule(escape(entry["file"]), align="left", style="dim")
    out.print(f"[bold]{entry['reading']}[/bold]: {escape(entry['rule'])}")
    steps = entry["steps"]
    out.print(f"{len(steps)} steps from {escape(entry['step_source'])}", style="dim")
    if steps:
        _show_parts(out, entry)
    _show_prediction(out, entry["prediction"])
    for warning in entry["warnings"]:
        out.print(f"[yellow]note[/yellow] {escape(warning)}")
    _show_top(out, entry["top"])
    out.print()


def _show_parts(out: Console, entry: dict[str, Any]) -> None:
    steps, parts = judged(entry), mean_parts(entry)
    total = sum(parts.values())
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(f"where a step's {total:.1f} us go")
    for name in ("us", "share"):
        table.add_column(name, justify="right")
    for part, value in parts.items():
        if value:
            table.add_row(PARTS[part], f"{value:.1f}", f"{value / total:.1%}")
    out.print(table)
    counts = {what: fmean(s["counts"][what] for s in steps) for what in steps[0]["counts"]}
    listed = ", ".join(f"{n:g} {what.replace('_', ' ')}" for what, n in counts.items() if n)
    out.print(
        f"per step: {listed or 'nothing counted'}; host window {fmean(s['wall_us'] for s in steps):.1f} us"
    )


def _show_prediction(out: Console, prediction: dict[str, Any] | None) -> None:
    if prediction is None:
        return
    if prediction["replay_us"] is None:
        left = {k.replace("_", " "): v for k, v in prediction["left"].items() if v is not None}
        out.print(f"{prediction['kind']}; per step: " + ", ".join(f"{k} {v:g}" for k, v in left.items()))
        return
    replay, step_us = prediction["replay_us"], prediction["step_us"]
    out.print(
        f"predicted {prediction['kind']}: [bold]{replay['mid']:.0f} us[/bold] "
        f"({replay['low']:.0f} to {replay['high']:.0f}) instead of {step_us:.0f} us"
    )
    for assumption in prediction["assumptions"]:
        out.print(f"  assuming {escape(assumption)}", style="dim")


def _show_top(out: Console, top: dict[str, Any]) -> None:
    for title, rows, value in (
        ("kernels by device time", top["kernels"], "total_us"),
        ("host ops by own time", top["host_ops"], "self_us"),
    ):
        if rows:
            table = _listing(title, value.replace("_", " "), "count")
            for row in rows:
                table.add_row(_short(row["name"]), f"{row[value]:.1f}", str(row["count"]))
            out.print(table)
    if top["gaps"]:
        table = _listing("longest gaps, what the host did", "us", "waited for")
        for gap in top["gaps"]:
            doing = gap["op"] or gap["call"] or gap["frame"] or "nothing recorded"
            frame = f" in {gap['frame']}" if gap["frame"] and gap["frame"] != doing else ""
            table.add_row(
                _short(doing + frame), f"{gap['length_us']:.1f}", gap["waited_for"].replace("_", " ")
            )
        out.print(table)


def _listing(title: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(title, no_wrap=True, overflow="ellipsis", max_width=54)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _short(name: str) -> str:
    return escape(name.removeprefix("void "))


def _show_all(out: Console, entries: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("file", no_wrap=True, overflow="ellipsis", max_width=30)
    table.add_column("reading")
    for name in ("step us", "busy", "launches", "replay us"):
        table.add_column(name, justify="right")
    for entry in entries:
        steps, parts = judged(entry), mean_parts(entry)
        total = sum(parts.values())
        launches = [s["kernel_launch_calls"] + s["graph_launch_calls"] for s in steps]
        replay = (entry["prediction"] or {}).get("replay_us")
        table.add_row(
            escape(entry["file"]),
            entry["reading"],
            f"{total:.0f}" if steps else "unknown",
            f"{parts['busy'] / total:.0%}" if total and "busy" in parts else "none",
            f"{fmean(launches):g}" if launches else "none",
            f"{replay['mid']:.0f}" if replay else "-",
        )
    out.print(table)


def _show_comparison(out: Console, comparison: dict[str, Any]) -> None:
    out.rule("comparison", align="left", style="dim")
    out.print(f"[bold]{escape(comparison['finding'])}[/bold]")
    table = _listing("per step", "this", "against")
    for key, row in comparison["per_step"].items():
        if row["this"] or row["against"]:
            table.add_row(key.replace("_", " "), *(_number(row[side]) for side in ("this", "against")))
    out.print(table)
    if comparison["kernels"]:
        table = _listing("kernels that changed", "how", "per step", "mean us")
        for row in comparison["kernels"][:10]:
            sides = [row["against"] or {}, row["this"] or {}]
            table.add_row(
                _short(row["name"]),
                row["change"],
                " > ".join(_number(s.get("per_step")) for s in sides),
                " > ".join(_number(s.get("mean_us")) for s in sides),
            )
        out.print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
