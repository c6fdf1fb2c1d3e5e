"""The page of `experiments.peers`, from its record: bars, tables, one line that answers."""

from __future__ import annotations

import argparse

from experiments.shared.outcome import page_of, publish
from profiling.peers.compare import AGAINST, PeerRow, fastest_others, rows, wrong
from profiling.results.folder import RunFolder
from profiling.results.record import PeerEntry, PeersRecord, PeersWorkload
from profiling.results.record.page import Block, Bullets, Figure, Table
from profiling.results.record.pictures import Bar, Bars
from reports.numbers import interval, number

Rows = list[PeerRow]


def end(arguments: argparse.Namespace, doc: str, run: RunFolder[PeersRecord], workload: PeersWorkload) -> int:
    """Keep, report and print what was measured."""
    by_context = {context: rows(run.record, context) for context in workload.contexts}
    first = next(iter(by_context.values()))
    verdict = _verdict(first)
    measured: list[Block] = [
        _figure(first, workload),
        *(_steps(context, engine_rows) for context, engine_rows in by_context.items()),
        *(_fastest(context, engine_rows) for context, engine_rows in by_context.items()),
        _settings(run.record.engines),
        Bullets(_notes(run.record, workload, first)),
    ]
    page = page_of(doc, run, verdict, measured)
    return publish(arguments, run, page, contexts=by_context, verdict=verdict)


def _steps(context: int, engine_rows: Rows) -> Table:
    cells = [
        (
            row.precision,
            row.name,
            f"{row.step_ms.median:.2f}",
            f"{row.step_ms.p95:.2f}",
            number(row.floor_ms),
            interval(row.over_floor),
            interval(row.ratio),
            "unknown" if row.right_tokens is None else f"{row.right_tokens:.0%}",
        )
        for row in engine_rows
    ]
    heads = (
        "precision",
        "engine",
        "median ms",
        "p95 ms",
        "floor ms",
        "x floor",
        "over one launch",
        "as sdpa",
    )
    return Table(heads, cells, 2, f"Step after a prompt of {context}")


def _fastest(context: int, engine_rows: Rows) -> Table:
    cells = [
        (
            precision,
            f"{mine.step_ms.median:.2f}",
            other.name,
            f"{other.step_ms.median:.2f}",
            interval(other.ratio),
        )
        for precision, (mine, other) in fastest_others(engine_rows).items()
    ]
    heads = ("precision", "one launch, ms", "fastest of others", "its ms", "over one launch")
    title = f"Our one launch and the fastest of others, prompt of {context}"
    return Table(heads, cells, title=title)


def _settings(engines: dict[str, PeerEntry]) -> Table:
    cells = [
        (
            name,
            entry.version or "-",
            entry.settings if entry.status == "measured" else f"not run: {entry.reason}",
        )
        for name, entry in engines.items()
    ]
    return Table(("engine", "version", "settings"), cells, 3, "Settings")


def _figure(engine_rows: Rows, workload: PeersWorkload) -> Figure:
    bars = []
    for precision in AGAINST:
        of_it = [row for row in engine_rows if row.precision == precision]
        for row in sorted(of_it, key=lambda row: row.step_ms.median):
            ms, ratio = row.step_ms.median, row.ratio
            text = f"{ms:.2f} ms" + ("" if ratio is None else f"  ({ratio.mid:.2f} x one launch)")
            length = {"ours" if row.ours else "others": ms}
            bars.append(Bar(row.name, length, text, row.floor_ms, precision))
    caption = (
        f"Median step after a prompt of {workload.contexts[0]}, marked at the plain read of its own bytes."
    )
    return Figure("peers", caption, [Bars("median step, ms", bars)])


def _notes(record: PeersRecord, workload: PeersWorkload, engine_rows: Rows) -> list[str]:
    environment = record.environment
    assert environment is not None  # described before anything is timed
    notes = [
        f"{workload.rounds} rounds, each visits every engine once in shuffled order: prefill and "
        f"{workload.warm_up} steps untimed, then {workload.steps} timed; ratios within rounds, 95 %",
        f"{workload.threads} threads for every engine, each in a process of its own; "
        f"{environment.simd}, load at start {environment.load_at_start:.2f}",
        "floor: a plain read of the bytes of weights and cache that the engine's step must read at its "
        "precision, in the same rounds; x floor within rounds, 95 %",
        "as sdpa: tokens equal to those of our float32 `sdpa`; random weights have close logits",
    ]
    if names := wrong(engine_rows):
        notes.append(f"float32 and yet other tokens: {', '.join(names)}; their time is of other work")
    return notes


def _verdict(engine_rows: Rows) -> str:
    pairs = fastest_others(engine_rows)
    parts = [
        f"{precision}: {mine.step_ms.median:.1f} ms, {other.name} takes {interval(other.ratio)} times as long"
        for precision, (mine, other) in pairs.items()
    ]
    return f"Our one launch and the fastest of others: {'; '.join(parts) or 'nothing to compare'}."
