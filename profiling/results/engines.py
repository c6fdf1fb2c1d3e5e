"""Engines of others beside ours: a row each, and the fastest of others at each precision. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from profiling.results.metrics import Measured
from profiling.results.record import Entry
from profiling.results.stats import Interval, Quantiles

# ours at each precision, to which others of it are compared
AGAINST = {
    "float32": "onelaunch",
    "bfloat16": "onelaunch-bf16",
    "int8": "onelaunch-int8",
    "int4": "onelaunch-int4",
}


@dataclass(frozen=True)
class EngineRow:
    """One engine or rung: its step in ms, `ratio` of it to our one launch at its precision, to the plain read
    of its own bytes (`over_floor`), and the share of tokens that full precision gives. Unknown is None.
    """

    name: str
    ours: bool
    precision: str
    step_ms: Quantiles
    ratio: Interval | None
    floor_ms: float | None
    over_floor: Interval | None
    agreement: float | None


def rows(measured: Measured, context: int) -> list[EngineRow]:
    """The rows precision by precision, in the record's order; what has no times there has no row.

    Ratios are taken within rounds.
    """
    entries = measured.record.variants
    steps = {name: measured.step_quantiles(name, context) for name in entries if measured.has_times(name)}
    in_order = [_row(measured, name, context, step) for name, step in steps.items() if step]
    return sorted(in_order, key=lambda row: [*AGAINST, row.precision].index(row.precision))


def _row(measured: Measured, name: str, context: int, step: Quantiles) -> EngineRow:
    entry, by_round = measured.entry(name), measured.steps(name, context)
    floors = measured.memory_floor(name, context)
    ours = AGAINST.get(entry.precision)
    return EngineRow(
        name=name,
        ours=not entry.elsewhere,
        precision=entry.precision,
        step_ms=step,
        ratio=measured.ratio(by_round, measured.steps(ours, context)) if ours else None,
        floor_ms=measured.memory_floor_ms(name, context),
        over_floor=measured.ratio(by_round, floors),
        agreement=_agreement(entry),
    )


def _agreement(entry: Entry) -> float | None:
    """All tokens of what is proven at full precision; of fewer bits those of its drift."""
    gate = entry.gate
    if gate is None:
        return None
    if gate.drift is not None:
        return gate.drift.top1_agreement
    return None if any(check.check == "timed tokens" for check in gate.unproven) else 1.0


def fastest_others(rows: list[EngineRow]) -> dict[str, tuple[EngineRow, EngineRow]]:
    """Per precision that has both: the row of our one launch, and the row of the fastest engine of others."""
    pairs = {}
    for precision, name in AGAINST.items():
        mine = [row for row in rows if row.name == name]
        others = [row for row in rows if row.precision == precision and not row.ours]
        if mine and others:
            pairs[precision] = mine[0], min(others, key=lambda row: row.step_ms.median)
    return pairs
