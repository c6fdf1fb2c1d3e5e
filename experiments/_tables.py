"""Console tables of a floor study. Numbers come from `profiling.metrics`; nothing is computed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from profiling.metrics import Measured
from profiling.record import RunFolder
from profiling.stats import Interval
from profiling.verdict import verdict
from variants.spec import Variant

if TYPE_CHECKING:
    from rich.console import Console


def table(title: str, columns: list[str], rows: list[list[str]], numeric_from: int = 1) -> Any:
    """A rich table whose columns are right-aligned from `numeric_from` on."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for number, name in enumerate(columns):
        made.add_column(name, justify="right" if number >= numeric_from else "left")
    for row in rows:
        made.add_row(*row)
    return made


def number(value: float | None, digits: int = 2) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"


def interval(value: Interval | None, digits: int = 2) -> str:
    """'1.02 [0.99, 1.05]'."""
    if value is None:
        return "unknown"
    return f"{value.mid:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def print_list(console: Console, variants: dict[str, Variant], device: str) -> None:
    """Every variant: parent, slot changed, what it should remove, and why it cannot run here."""
    from variants.requirements import why_not

    rows = []
    for variant in variants.values():
        changed = variant.difference
        what = f"{changed[0]}: {changed[2]}" if changed else "the root"
        parent = variant.parent.name if variant.parent else ""
        rows.append([variant.name, parent, what, why_not(variant, device) or variant.removes])
    heads = ["variant", "parent", "slot changed", "should remove, or why it cannot run here"]
    console.print(table("Variants", heads, rows, numeric_from=9))


def print_prediction(console: Console, record: dict[str, Any]) -> None:
    """What the steps should cost, before anything is timed."""
    context = str(record["workload"]["contexts"][0])
    rows = [
        [
            name,
            f"{entry['prediction'][context]['bytes'] / 1e6:.1f}",
            f"{entry['prediction'][context]['macs'] / 1e6:.1f}",
            str(entry["ops"]["computing_ops"]),
            f"{entry['prediction'][context]['memory_ms']:.2f}",
            f"{entry['prediction'][context]['arithmetic_ms']:.2f}",
        ]
        for name, entry in record["variants"].items()
        if "prediction" in entry
    ]
    heads = ["variant", "MB read", "M MACs", "ops", "memory ms", "arithmetic ms"]
    read = record["ceilings"]["read_gb_per_s"]
    title = f"Predicted step at context {context}, from a read rate of {read:.1f} GB/s measured now"
    console.print(table(title, heads, rows))


def print_summary(console: Console, run: RunFolder) -> None:
    """The ladder, the verdict, the warnings, and where the rest is."""
    measured = Measured(run.data)
    console.print(_ladder(measured))
    for row in measured.ladder():
        if row["reason"]:
            console.print(f"{row['variant']}: {row['status']}: {row['reason']}")
    aa = measured.aa_ratio
    console.print(f"A/A (the baseline against itself): {interval(aa, 3)}")
    judged = verdict(measured)
    console.print(f"Verdict on 'launch overhead sets the floor': {judged.word}: {judged.rule}")
    if judged.numbers:
        n = judged.numbers
        console.print(
            f"  drop {judged.parent} -> {judged.replay} {interval(n.drop)} ms, gap {interval(n.gap)} ms, "
            f"excess {interval(n.excess)} ms, noise {n.noise:.2f} ms"
        )
    for warning in run.data["warnings"]:
        console.print(f"note: {warning}")
    console.print(f"run folder: {run.path}")


def _ladder(measured: Measured) -> Any:
    rows = []
    for row in measured.ladder():
        if not row["measured"]:
            continue
        cells = [row["variant"]]
        for quantiles in row["steps"].values():
            cells.append("/".join(f"{q:.1f}" for q in quantiles.values()) if quantiles else "unknown")
        ratio = row["ratio_to_memory_floor"]
        cells += [number(row["memory_floor_ms"], 1), number(ratio.mid if ratio else None)]
        rows.append(cells)
    heads = ["variant", *(f"ctx {n}" for n in measured.contexts), "floor", "x floor"]
    title = "Step, ms: median/p95/p99 by context; memory floor of its own bytes, and the ratio to it"
    return table(title, heads, rows)
