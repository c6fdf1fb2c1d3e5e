"""What `experiments.peers` shows of its record: tables, bars, one line that answers, its report."""

from __future__ import annotations

import argparse
from typing import Any

from experiments.shared import cli
from experiments.shared.outcome import as_rich, keep
from profiling.peers.compare import AGAINST, fastest_others, rows, wrong
from profiling.results.record import RunFolder
from reports.numbers import interval
from reports.shown import Bars, Shown

Rows = list[dict[str, Any]]


def show(arguments: argparse.Namespace, doc: str, run: RunFolder) -> int:
    """Store, report and print what was measured."""
    found = {context: rows(run.data, context) for context in run.data["workload"]["contexts"]}
    tables = [_steps(context, made) for context, made in found.items()]
    tables += [_fastest(context, made) for context, made in found.items()]
    first = next(iter(found.values()))
    verdict = _verdict(first)
    picture = _bars(first, run.data["workload"])
    keep(doc, run, verdict, [*tables, _settings(run.data["engines"])], picture, _notes(run.data, first))
    console = cli.console(arguments)
    for table in tables:
        console.print(as_rich(table))
    for name, entry in run.data["engines"].items():
        if entry["status"] == "left out":
            console.print(f"- not run: {name}, {entry['reason']}")
    console.print(f"Run folder: {run.path}", soft_wrap=True)
    console.print(verdict, soft_wrap=True)
    if arguments.json:
        cli.print_json({"run": str(run.path), "contexts": found, "verdict": verdict})
    return 0


def _steps(context: int, made: Rows) -> Shown:
    cells = [
        (
            row["precision"],
            row["name"],
            row["version"],
            f"{row['step_ms']['median']:.2f}",
            f"{row['step_ms']['p95']:.2f}",
            interval(row["ratio"]),
            "unknown" if row["right_tokens"] is None else f"{row['right_tokens']:.0%}",
        )
        for row in made
    ]
    heads = ("precision", "engine", "version", "median ms", "p95 ms", "over one launch", "as sdpa")
    return Shown(f"Step after a prompt of {context}", heads, cells, text_columns=3)


def _fastest(context: int, made: Rows) -> Shown:
    cells = [
        (
            precision,
            f"{mine['step_ms']['median']:.2f}",
            other["name"],
            f"{other['step_ms']['median']:.2f}",
            interval(other["ratio"]),
        )
        for precision, (mine, other) in fastest_others(made).items()
    ]
    heads = ("precision", "one launch, ms", "fastest of others", "its ms", "over one launch")
    return Shown(f"Our one launch and the fastest of others, prompt of {context}", heads, cells)


def _settings(engines: dict[str, dict[str, Any]]) -> Shown:
    cells = [
        (
            name,
            entry["version"] or "-",
            entry["settings"] if entry["status"] == "measured" else f"not run: {entry['reason']}",
        )
        for name, entry in engines.items()
    ]
    return Shown("Settings", ("engine", "version", "settings"), cells, text_columns=3)


def _bars(made: Rows, workload: dict[str, Any]) -> Bars:
    groups: dict[str, dict[str, tuple[float, str]]] = {}
    for precision in AGAINST:
        of_it = [row for row in made if row["precision"] == precision]
        for row in sorted(of_it, key=lambda row: float(row["step_ms"]["median"])):
            ms, ratio = row["step_ms"]["median"], row["ratio"]
            text = f"{ms:.2f}" + ("" if ratio is None else f"  ({ratio.mid:.2f} x one launch)")
            groups.setdefault(precision, {})[row["name"]] = ms, text
    caption = f"Median step after a prompt of {workload['contexts'][0]}; ours in blue."
    ours = [row["name"] for row in made if row["ours"]]
    return Bars(caption, "median step, ms", groups, ours)


def _notes(record: dict[str, Any], made: Rows) -> list[str]:
    workload, environment = record["workload"], record["environment"]
    notes = [
        f"{workload['rounds']} rounds, each visits every engine once in shuffled order: prefill and "
        f"{workload['settle']} steps untimed, then {workload['steps']} timed; ratios within rounds, 95 %",
        f"{workload['threads']} threads for every engine, each in a process of its own; "
        f"{environment['simd']}, load at start {environment['load_at_start']:.2f}",
        "as sdpa: tokens equal to those of our float32 `sdpa`; random weights have close logits",
    ]
    if names := wrong(made):
        notes.append(f"float32 and yet other tokens: {', '.join(names)}; their time is of other work")
    return notes


def _verdict(made: Rows) -> str:
    found = fastest_others(made)
    parts = [
        f"{precision}: {mine['step_ms']['median']:.1f} ms, {other['name']} takes "
        f"{interval(other['ratio'])} times as long"
        for precision, (mine, other) in found.items()
    ]
    return f"Our one launch and the fastest of others: {'; '.join(parts) or 'nothing to compare'}."
