"""Console tables of a floor study, for 80 columns. Numbers come from `profiling`, none is computed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

from experiments.shared.ruled import ruled
from profiling.results.metrics import Measured
from profiling.results.record import RunFolder
from profiling.results.verdict import Verdict, verdict
from reports.numbers import interval, number
from variants.spec import Variant

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = 80
CONTEXTS_ABREAST = 4  # at most: as many as fit beside the longest name


def print_list(console: Console, variants: dict[str, Variant], device: str) -> None:
    """Every variant: parent, slot changed, what it should remove, and why it cannot run here."""
    from variants.requirements import why_not

    table = ruled("Variants", ("variant", "from", "what it changes, and what that should remove"), ())
    for variant in variants.values():
        changed = variant.difference
        what = f"{changed[0]}: {changed[2]}" if changed else "the root"
        reason = why_not(variant, device)
        about = f"not here: {reason}" if reason else variant.removes
        table.add_row(variant.name, variant.parent.name if variant.parent else "", f"{what}\n[dim]{about}[/]")
    console.print(table)


def print_prediction(console: Console, record: dict[str, Any]) -> None:
    """What the steps should cost, before anything is timed."""
    context = str(record["workload"]["contexts"][0])
    heads = ("MB read", "M MACs", "ops", "memory ms", "arithmetic ms")
    table = ruled(f"Predicted step at context {context}", ("variant",), heads)
    for name, entry in record["variants"].items():
        if "prediction" in entry:
            predicted = entry["prediction"][context]
            table.add_row(
                name,
                number(predicted["bytes"] / 1e6),
                number(predicted["macs"] / 1e6),
                str(entry["ops"]["computing_ops"]),
                number(predicted["memory_ms"]),
                number(predicted["arithmetic_ms"]),
            )
    console.print(table)
    console.print(f"from a read rate of {number(record['ceilings']['read_gb_per_s'])} GB/s measured now")


def live_ladder(record: dict[str, Any]) -> Table | None:
    """The ladder as far as it is measured; None before there is a time."""
    tables = ladder(Measured(record)) if record["samples"] else []
    return tables[0] if tables else None


def print_summary(console: Console, run: RunFolder) -> None:
    """The ladder, what is not in it, the verdict, the warnings, and where the rest is."""
    measured = Measured(run.data)
    for table in ladder(measured):
        console.print(table)
    for name, entry in run.data["variants"].items():
        if entry["reason"]:
            console.print(f"{name}: {entry['status']}: {entry['reason']}")
    console.print(f"A/A, the baseline over itself: {interval(measured.aa_ratio)}")
    _print_verdict(console, verdict(measured))
    for warning in run.data["warnings"]:
        console.print(f"note: {warning}")
    console.print(f"report: {run.path / 'report.md'}, report.html", soft_wrap=True)


def _print_verdict(console: Console, judged: Verdict) -> None:
    console.print(f"[bold]Does launch overhead set the floor? {judged.word}[/]: {judged.rule}")
    if judged.numbers:
        n = judged.numbers
        console.print(f"  drop {judged.parent} -> {judged.replay}: {interval(n.drop)} ms")
        console.print(f"  gap: {interval(n.gap)} ms; excess: {interval(n.excess)} ms")
        console.print(f"  noise: {number(n.noise)} ms")


def ladder(measured: Measured) -> list[Table]:
    """Measured variants; more contexts than fit abreast go into further tables."""
    rows = [row for row in measured.ladder() if row["measured"]]
    if not rows:
        return []
    tables: list[Table] = []
    for abreast in range(CONTEXTS_ABREAST, 0, -1):
        tables = _abreast(measured, rows, abreast)
        if max(Console(width=1000).measure(table).maximum for table in tables) <= COLUMNS:
            break
    return tables


def _abreast(measured: Measured, rows: list[dict[str, Any]], abreast: int) -> list[Table]:
    tables = []
    for first in range(0, len(measured.contexts), abreast):
        contexts = measured.contexts[first : first + abreast]
        heads = (*(f"ctx {n}" for n in contexts), "floor", "x floor")
        table = ruled("Step, ms: median, below it p95/p99", ("variant",), heads)
        for row in rows:
            ratio = row["ratio_to_memory_floor"]
            cells = [_quantiles(row["steps"][n]) for n in contexts]
            beside = [number(row["memory_floor_ms"]), number(ratio.mid if ratio else None)]
            table.add_row(row["variant"], *cells, *beside)
        tables.append(table)
    return tables


def _quantiles(step: dict[str, float] | None) -> str:
    if step is None:
        return ""
    return f"{number(step['median'])}\n[dim]{number(step['p95'])}/{number(step['p99'])}[/]"
